"""Every network that can be built here is exported, passes the gate, and is trained a few steps."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import CROSS_ENTROPY, targets_of
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import NETWORKS, build
from device_runtime.models.training.optimizer import Sgd

pytestmark = pytest.mark.slow

CLASSES = 10
SAMPLES = 8
SETS = ("all", "mid", "head", "bias")
MAX_BYTES = 1_500_000  # of a graph
SHARE = 0.05  # of the loss, which the first step would take off if it were linear


@dataclass(frozen=True)
class Case:
    """A network as small as it makes sense, and what it takes. left: most of the loss after the steps."""

    build: str
    input: InputSpec
    settings: dict[str, Any] = field(default_factory=dict)
    batchnorm: str = "frozen"
    steps: int = 5
    left: float = 0.95


SMALL, IMAGE = InputSpec((3, 16, 16)), InputSpec((3, 64, 64))
WINDOW = InputSpec((3, 40))
TEXT = InputSpec((6,), dtype="int64", vocabulary=50)
LAYERS = {"dim": 16, "depth": 3, "heads": 2}
CASES = {
    "linear": Case("linear", SMALL, {"inputs": 3 * 16 * 16}),
    "mlp": Case("mlp", SMALL, {"inputs": 3 * 16 * 16, "hidden": 16, "depth": 3}),
    "autoencoder": Case(
        "autoencoder", SMALL, {"inputs": 3 * 16 * 16, "hidden": 16, "code": 4}, steps=20, left=0.98
    ),
    "cnn": Case("cnn", SMALL, {"size": 16}),
    **{f"wrn-{depth}": Case("wrn", SMALL, {"depth": depth}) for depth in (10, 16, 22, 28, 34, 40)},
    "wrn with batch norm": Case("wrn", SMALL, {"depth": 16, "norm": "batch"}),
    "wrn with batch norm in training": Case("wrn", SMALL, {"depth": 16, "norm": "batch"}, "training"),
    "squeezenet 1.0": Case("squeezenet", IMAGE, {"version": "1.0"}),
    "squeezenet 1.1": Case("squeezenet", IMAGE, {"version": "1.1"}),
    "mobilenet_v2": Case("mobilenet_v2", IMAGE, {"width": 0.25}),
    "mobilenet_v2 in training": Case("mobilenet_v2", IMAGE, {"width": 0.25}, "training"),
    "resnet18": Case("resnet18", IMAGE),
    "mobilenet_v3_small": Case("mobilenet_v3_small", IMAGE),
    "shufflenet_v2_x0_5": Case("shufflenet_v2_x0_5", IMAGE),
    "efficientnet_b0": Case("efficientnet_b0", IMAGE),
    "vit": Case("vit", SMALL, {"image": 16, "patch": 8, **LAYERS}),
    "lstm": Case("lstm", TEXT, {"vocabulary": 50, "dim": 8, "hidden": 16}),
    "gru": Case("gru", TEXT, {"vocabulary": 50, "dim": 8, "hidden": 16}),
    "keywords": Case("keywords", InputSpec((1, 31, 20)), {"channels": 16}),
    "cnn1d": Case("cnn1d", WINDOW, {"width": 0.5}),
    "dscnn1d": Case("dscnn1d", WINDOW, {"width": 0.5}),
    "dscnn1d in training": Case("dscnn1d", WINDOW, {"width": 0.5, "norm": "batch"}, "training"),
    "bert": Case("bert", TEXT, {"vocabulary": 50, "length": 6, **LAYERS}),
    "distilbert": Case("distilbert", TEXT, {"vocabulary": 50, "length": 6, **LAYERS}),
    "roberta": Case("roberta", TEXT, {"vocabulary": 50, "length": 6, **LAYERS}),
    "opt": Case("opt", TEXT, {"vocabulary": 50, "length": 6, **LAYERS}),
}


def samples(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (SAMPLES, *case.input.shape)
    y = rng.integers(CLASSES, size=SAMPLES)
    if case.input.vocabulary is not None:
        return rng.integers(case.input.vocabulary, size=shape), y
    if case.build == "autoencoder":  # a pattern that few values can describe
        return (rng.standard_normal((SAMPLES, 1)) * rng.standard_normal(shape[1:]).reshape(1, -1)).reshape(
            shape
        ).astype(np.float32), y
    return rng.standard_normal(shape, np.float32), y


def network(case: Case) -> "torch.nn.Module":
    """With statistics of random images where it has batch normalisation: without, values fade out."""
    torch.manual_seed(0)
    try:
        classes = {} if case.build == "autoencoder" else {"classes": CLASSES}
        module = build(case.build, {**case.settings, **classes})
    except ExportError as error:
        pytest.skip(str(error))
    if any(isinstance(part, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)) for part in module.modules()):
        with torch.no_grad():
            for _ in range(30):
                module.train()(torch.randn(SAMPLES, *case.input.shape))
    return module.eval()


def losses(bundle, case: Case, tunable: str) -> tuple[float, float]:
    """Of one batch, before and after the case's steps of SGD."""
    trainer = OnnxModel(bundle).trainer(tunable)
    x, y = samples(case)
    before = trainer.loss_and_grads(x, y)
    rate = SHARE * before / float(trainer.grads.vector @ trainer.grads.vector)
    steps = Sgd(lr=rate).start(trainer.params.vector)
    for _ in range(case.steps):
        trainer.loss_and_grads(x, y)
        steps.step(trainer.params.vector, trainer.grads.vector)
    return before, trainer.loss_and_grads(x, y)


def test_no_network_is_left_out():
    assert {case.build for case in CASES.values()} == set(NETWORKS)


@pytest.mark.parametrize("name", CASES)
def test_network_is_exported_passes_the_gate_and_learns(name, tmp_path):
    case = CASES[name]
    labels = tuple(str(label) for label in range(CLASSES))
    loss = targets_of("mse", labels, "input") if case.build == "autoencoder" else CROSS_ENTROPY
    sets = {key: {} for key in SETS}
    spec = ExportSpec("it", case.input, labels, sets=sets, batchnorm=case.batchnorm, loss=loss)
    bundle = export(network(case), spec, tmp_path / "bundle")
    assert max(graph.bytes for graph in bundle.manifest.graphs.values()) < MAX_BYTES
    for tunable in SETS:
        before, after = losses(bundle, case, tunable)
        assert after < case.left * before, tunable
