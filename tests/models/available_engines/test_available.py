"""All engines are held equal: the same contribution from the same data and seed, by model family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.available import engine_choices, open_model
from device_runtime.models.available_engines.onnx_engine import OnnxModel, available
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine.engine import TorchModel
from device_runtime.models.training.optimizer import Sgd

SETS = ("all", "mid", "head", "bias")
QUICK = ("all", "head")
OBJECTIVES = ("train", "moon", "distil", "kl", "attention", "above-low", "above-up", "prototype")
SAMPLES, BATCH, ROWS = 22, 8, 5  # batches of 8, 8, 6; in equal micro-batches of at most 5: 4 and 4, 4 and 2
EPOCHS = 2
SGD = Sgd(lr=0.05, momentum=0.9, weight_decay=1e-4)


@dataclass(frozen=True)
class Family:
    """A small network, and how far engines may be apart: of each tensor's largest value, or of 1 if larger.

    `once` bounds losses, outputs and the first gradient, `trained` what there is after 6 steps.
    """

    network: str
    settings: dict[str, Any]
    input: InputSpec
    once: float
    trained: float
    batchnorm: str = "frozen"
    objectives: tuple[str, ...] = OBJECTIVES
    ort_training: bool = True


IMAGE = InputSpec((1, 8, 8))
WRN = {"depth": 10, "width": 1, "in_channels": 1, "classes": 4}

# Seen on x86-64: at most 5e-7 everywhere, but once in 24 runs 1.3e-4 on WRN. There the input of a ReLU was
# 1e-7, and it fell on either side: a step of the gradient, which no engine can be held to.
FAMILIES = {
    "wrn-group": Family("wrn", WRN, IMAGE, once=3e-6, trained=5e-4),
    "wrn-batch": Family(
        "wrn",
        {**WRN, "norm": "batch"},
        IMAGE,
        once=3e-6,
        trained=5e-4,
        batchnorm="training",
        objectives=OBJECTIVES[:-1],  # a prototype's own pass would move running statistics twice
    ),
    "vit": Family(
        "vit",
        {"image": 8, "patch": 4, "dim": 16, "heads": 2, "depth": 3, "in_channels": 1, "classes": 4},
        IMAGE,
        once=3e-6,
        trained=3e-6,
    ),
    "gru": Family(
        "gru",
        {"vocabulary": 30, "dim": 6, "hidden": 8, "classes": 4},
        InputSpec((6,), dtype="int64", vocabulary=30),
        once=3e-6,
        trained=3e-6,
        ort_training=False,  # which has no gradient of a GRU
    ),
}

ENGINES: dict[str, Callable[..., DeviceModel]] = {
    "onnxruntime-training": partial(open_model, settings=EngineSettings("onnxruntime-training")),
    "torch": TorchModel,
    "torch on a GPU": partial(TorchModel, device="cuda"),
}
GPU_FACTOR = 5  # of a family's tolerances: other algorithms and orders of summation


@dataclass(frozen=True)
class Case:
    """A family, and a bundle of it."""

    family: Family
    bundle: Bundle

    def models(self, name: str) -> tuple[DeviceModel, DeviceModel, float]:
        """The default engine, another one, and the factor of the family's tolerances between them."""
        skip_if_missing(name, self.bundle)
        other = ENGINES[name](self.bundle, batch=ROWS)
        return OnnxModel(self.bundle, batch=ROWS), other, GPU_FACTOR if "GPU" in name else 1


def skip_if_missing(name: str, bundle: Bundle | None = None) -> None:
    if name == "torch on a GPU" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    for choice in engine_choices(bundle):
        if choice.name == name and not choice.usable:
            pytest.skip(choice.reason)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """The bundle of a family; with few sets and cross-entropy alone it is exported in a tenth of the time."""

    @cache
    def new_case(name: str, every_objective: bool) -> Case:
        family = FAMILIES[name]
        graphs_too = family.ort_training and not available()
        if name == "wrn-group" and not every_objective and not graphs_too:
            return Case(family, Bundle.open(shipped_folder("digits-wrn-10-1")))
        torch.manual_seed(0)
        spec = ExportSpec(
            name,
            family.input,
            tuple("abcd"),
            sets={tunable: {} for tunable in (SETS if every_objective else QUICK)},
            objectives=family.objectives if every_objective else ("train",),
            features=("low", "mid", "up"),
            batchnorm=family.batchnorm,
            ort_training=graphs_too,
            source=Source(family.network, family.settings),
        )
        module = build(family.network, family.settings)
        return Case(family, export(module, spec, tmp_path_factory.mktemp(name)))

    return new_case


def samples(bundle: Bundle) -> tuple[np.ndarray, np.ndarray]:
    rng, spec = np.random.default_rng(1), bundle.manifest.input
    shape, classes = (SAMPLES, *spec.shape), len(bundle.manifest.labels)
    x = rng.integers(spec.vocabulary, size=shape) if spec.vocabulary else rng.normal(size=shape)
    return x.astype(spec.dtype), rng.integers(classes, size=SAMPLES)


def extras(bundle: Bundle, graph: str) -> dict[str, np.ndarray]:
    """Standard normal for all samples; scalars between 0.5 and 1."""
    rng, drawn = np.random.default_rng(2), {}
    for extra in bundle.manifest.graphs[graph].extras:
        shape = (SAMPLES, *extra.shape) if extra.per_sample else extra.shape
        drawn[extra.name] = rng.normal(size=shape) if shape else np.array(rng.uniform(0.5, 1))
    return {name: value.astype(np.float32) for name, value in drawn.items()}


def contribution(model: DeviceModel, bundle: Bundle, tunable: str, objective: str) -> dict[str, np.ndarray]:
    """Parameters, statistics and each step's loss of local SGD; the first step's gradient."""
    trainer = model.trainer(tunable, objective, BATCH)
    (x, y), inputs = samples(bundle), extras(bundle, f"{objective}.{tunable}")
    rows = {e.name for e in bundle.manifest.graphs[f"{objective}.{tunable}"].extras if e.per_sample}
    steps, rng, losses, first = SGD.start(trainer.params.vector), np.random.default_rng(3), [], None
    for _ in range(EPOCHS):
        order = rng.permutation(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            batch = order[start : start + BATCH]
            batch_inputs = {name: value[batch] if name in rows else value for name, value in inputs.items()}
            losses.append(trainer.loss_and_grads(x[batch], y[batch], batch_inputs))
            first = trainer.grads.vector.copy() if first is None else first
            steps.step(trainer.params.vector, trainer.grads.vector)
    return {
        "first gradient": first,
        "losses": np.array(losses),
        "parameters": trainer.params.vector,
        "statistics": trainer.statistics.vector,
    }


def apart(values: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, of the largest value or of 1."""
    assert values.shape == expected.shape
    assert np.isfinite(expected).all()
    if expected.size == 0:
        return 0.0
    return float(np.abs(values - expected).max() / max(1, np.abs(expected).max()))


def check_contributions(case: Case, name: str, objective: str) -> None:
    first, second, factor = case.models(name)
    graphs = case.bundle.manifest.graphs
    for tunable in (tunable for tunable in case.bundle.manifest.sets if f"{objective}.{tunable}" in graphs):
        expected = contribution(first, case.bundle, tunable, objective)
        update = contribution(second, case.bundle, tunable, objective)
        assert apart(update["first gradient"], expected["first gradient"]) <= factor * case.family.once, (
            tunable
        )
        for what in ("losses", "parameters", "statistics"):
            assert apart(update[what], expected[what]) <= factor * case.family.trained, (tunable, what)
        moved = np.abs(expected["parameters"] - start(first, tunable)).max()
        assert moved > 100 * case.family.trained, "too little was trained to compare"


def start(model: DeviceModel, tunable: str) -> np.ndarray:
    return model.trainer(tunable).params.vector


def check_outputs(case: Case, name: str) -> None:
    first, second, factor = case.models(name)
    x, y = samples(case.bundle)
    limit = factor * case.family.once
    for what in ("logits", "features"):
        assert apart(getattr(second.forward(x), what), getattr(first.forward(x), what)) <= limit
        assert apart(getattr(second, what)(x), getattr(first, what)(x)) <= limit
    for level in set(case.bundle.manifest.features) - {"head"}:
        assert apart(second.level_features(x, level), first.level_features(x, level)) <= limit
    for tunable in case.bundle.manifest.sets:
        probes = [model.probe(tunable) for model in (first, second)]
        direction = np.random.default_rng(4).standard_normal(probes[0].params.vector.size, np.float32)
        for scale in (0.0, 0.01, -0.02):  # two-sided, in place, as zeroth-order work does
            losses = []
            for probe in probes:
                probe.params.vector += np.float32(scale) * direction
                losses.append(probe.loss(x, y))
            assert losses[1] == pytest.approx(losses[0], abs=limit)


others = pytest.mark.parametrize("engine", ENGINES)
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.slow
@others
@families
def test_engines_give_the_same_outputs_and_zeroth_order_losses(case, family, engine):
    skip_if_missing(engine)
    check_outputs(case(family, every_objective=False), engine)


@pytest.mark.slow
@others
@families
def test_engines_give_the_same_contribution(case, family, engine):
    skip_if_missing(engine)
    check_contributions(case(family, every_objective=False), engine, "train")


@pytest.mark.slow
@others
@pytest.mark.parametrize(
    "family, objective", [(name, goal) for name, family in FAMILIES.items() for goal in family.objectives]
)
def test_engines_give_the_same_contribution_to_every_objective(case, family, engine, objective):
    if engine == "onnxruntime-training" and objective != "train":
        pytest.skip("it trains on cross-entropy only")
    skip_if_missing(engine)
    lesson = case(family, every_objective=True)
    check_contributions(lesson, engine, objective)
    if objective == "train":
        check_outputs(lesson, engine)


@pytest.mark.slow
@others
@pytest.mark.parametrize(
    "family, sets",
    [("vit", ("adapter", "prompt", "prefix", "lora", "sparse")), ("wrn-group", ("lora", "sparse"))],
)
def test_engines_give_the_same_contribution_of_sets_that_were_injected(tmp_path, family, sets, engine):
    skip_if_missing(engine)
    torch.manual_seed(0)
    network = FAMILIES[family]
    module, source = build(network.network, network.settings), Source(network.network, network.settings)
    settings = {"all": {}, **{tunable: {"seed": 7} for tunable in sets}}
    spec = ExportSpec(family, network.input, tuple("abcd"), sets=settings, source=source)
    check_contributions(Case(network, export(module, spec, tmp_path)), engine, "train")
