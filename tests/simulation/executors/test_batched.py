"""The batched executor gives what the plain one gives, whatever is asked of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.optimizer import Adam
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.batched import Batched
from device_runtime.simulation.executors.batched_many import (
    ACTIVATIONS_FACTOR,
    fitting,
    is_faster_together,
)
from device_runtime.simulation.executors.job import (
    ExecutorInputs,
    FailedJob,
    PlainExecutor,
    Result,
    TrainingJob,
)
from device_runtime.strategies.interface.device_half import FEW_SHOT, LocalData, Update
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.statistics import class_statistics, held_out, kind_statistics
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.terms.proximal import FedProx

SIZES = (23, 1, 40, 7, 64, 0, 12)
"""Device 1 has one sample, device 3 one class, device 5 nothing."""


class Watched:
    """The plain executor, and which devices it was asked for."""

    def __init__(self, inputs: ExecutorInputs) -> None:
        self.plain, self.calls = PlainExecutor(inputs), []
        self.name, self.closed = self.plain.name, False

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        self.calls.append([job.device for job in jobs])
        return self.plain.run(bases, jobs)

    def close(self) -> None:
        self.closed = True
        self.plain.close()


@pytest.fixture(scope="module")
def clients(digits: LocalData, bundle: Bundle) -> Clients:
    spec = bundle.manifest.input
    raw = digits.x * spec.std[0] + spec.mean[0]
    raw = (raw / spec.scale).astype(np.float32)
    rng, ends = np.random.default_rng(0), np.cumsum(SIZES)
    parts = np.split(rng.permutation(len(digits.y))[: ends[-1]], ends[:-1])
    parts[3] = np.flatnonzero(digits.y == 6)[: SIZES[3]]
    return Clients.of(raw, digits.y, parts)


@pytest.fixture(scope="module")
def inputs(bundle: Bundle, clients: Clients) -> ExecutorInputs:
    return ExecutorInputs(bundle, clients, EngineSettings("onnxruntime"))


def jobs(
    strategy: AnyStrategy, devices: Sequence[int] = range(len(SIZES)), base: str = "0"
) -> list[TrainingJob]:
    return [TrainingJob(device, f"pi-{device}", strategy, 77, base) for device in devices]


def results(executor, bases, jobs_) -> list[Result]:
    """As they come, copied: they are valid until the next."""
    return [copied(result) for result in executor.run(bases, jobs_)]


def copied(result: Result) -> Result:
    if isinstance(result, FailedJob):
        return result
    return replace(result, tensors={name: value.copy() for name, value in result.tensors.items()})


def assert_alike(updates: list[Result], expected: list[Result], within: float = 1e-5) -> None:
    assert len(updates) == len(expected)
    for actual, other in zip(updates, expected, strict=True):
        assert isinstance(actual, Update)
        assert isinstance(other, Update)
        assert (actual.kind, actual.num_examples) == (other.kind, other.num_examples)
        assert actual.train_loss == pytest.approx(other.train_loss, abs=within, nan_ok=True)
        assert actual.tensors.keys() == other.tensors.keys()
        for name, value in other.tensors.items():
            assert actual.tensors[name].dtype == value.dtype
            np.testing.assert_allclose(actual.tensors[name], value, atol=within, err_msg=name)


@pytest.mark.parametrize(
    "strategy",
    [
        FewShot(),
        FewShot(shots=3, epochs=4, batch=7, momentum=0.0, weight_decay=0.0, lr=0.1),
        FewShot(batch=64, weight_decay=0.1),
        Peft(tunable="head", lr=0.1, momentum=0.5, epochs=3, batch=8),
        ClassMeans(),
    ],
)
def test_head_only_kinds_are_trained_together_and_equal_the_plain_executor(inputs, bundle, strategy):
    bases, watched = {"0": bundle.weights()}, Watched(inputs)
    batched, devices = Batched(inputs, watched), [2, 0, 1, 3, 4, 6]
    expected = results(PlainExecutor(inputs), bases, jobs(strategy, devices))
    for _ in range(2):  # computed, then kept
        assert_alike(results(batched, bases, jobs(strategy, devices)), expected)
    assert watched.calls == []


def test_kinds_that_train_more_and_devices_without_samples_go_to_the_fallback_in_their_order(inputs, bundle):
    bases, watched = {"0": bundle.weights()}, Watched(inputs)
    full, few = FedAvg(epochs=1, batch=8), FewShot(epochs=2)
    mixed = [
        *jobs(full, [2]),
        *jobs(few, [4, 0]),
        *jobs(full, [6]),
        *jobs(few, [6]),
        *jobs(ClassMeans(), [5, 1]),
    ]
    updates = results(Batched(inputs, watched), bases, mixed)
    assert_alike(updates, results(PlainExecutor(inputs), bases, mixed))
    assert watched.calls == [[2, 6, 5]]
    assert [result.kind for result in updates] == [job.strategy.name for job in mixed]


def test_on_a_gpu_as_many_are_trained_together_as_fit_its_memory(bundle):
    values = sum(array.size for array in bundle.weights().values())
    activations = bundle.manifest.graphs["train.all"].activation_bytes(64)
    each = 16 * values + ACTIVATIONS_FACTOR * activations
    assert [fitting(bundle.manifest, times * each) for times in (0, 1.9, 2, 7.5)] == [1, 1, 2, 7]


@pytest.mark.slow
def test_on_another_engine_what_trains_more_than_the_head_goes_to_the_fallback(lesson):
    watched = Watched(lesson.inputs)
    updates = results(Batched(lesson.inputs, watched), lesson.bases, lesson.jobs)
    assert_alike(updates, results(PlainExecutor(lesson.inputs), lesson.bases, lesson.jobs))
    assert [result.variant for result in updates] == [job.strategy.variant for job in lesson.jobs]
    [devices_] = watched.calls
    assert len(devices_) == sum(job.strategy.name != "few-shot" for job in lesson.jobs)


def test_features_are_computed_anew_for_another_extractor_and_not_for_another_head(
    inputs, bundle, monkeypatch
):
    first, few = bundle.weights(), FewShot(epochs=2)
    head = bundle.manifest.head
    bodies = {name: value * np.float32(1.1) for name, value in first.items() if name != head.weight}
    other_head = {**{n: v.copy() for n, v in first.items()}, head.weight: first[head.weight] * 2}
    other_body = {**bodies, head.weight: first[head.weight]}
    bases = {"0": first, "1": other_head, "2": other_body}
    batched, sizes = Batched(inputs, PlainExecutor(inputs)), []
    features = batched._features
    compute = features._model.features
    monkeypatch.setattr(features._model, "features", lambda x: sizes.append(len(x)) or compute(x))
    for base, computed in (("0", [23, 40]), ("1", [23, 40]), ("2", [23, 40] * 2)):
        some_jobs = jobs(few, [0, 2], base)
        assert_alike(results(batched, bases, some_jobs), results(PlainExecutor(inputs), bases, some_jobs))
        assert sizes == computed


@pytest.fixture(scope="module")
def regression(clients: Clients, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> ExecutorInputs:
    """Softmax regression: all that is trained is the head."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    spec = ExportSpec("regression", bundle.manifest.input, bundle.manifest.labels)
    exported_ = export(
        build("linear", {"inputs": 64}), spec, tmp_path_factory.mktemp("bundles") / "regression"
    )
    return ExecutorInputs(exported_, clients, EngineSettings("onnxruntime"))


@pytest.mark.parametrize(
    "full",
    [
        FedAvg(epochs=1, lr=0.03, momentum=0.0, weight_decay=0.0, batch=10),
        FedAvg(epochs=3, lr=0.1, momentum=0.9, weight_decay=0.01, batch=8),
        FedAvg(epochs=2, lr=0.1, batch=64),
    ],
)
def test_full_updates_of_softmax_regression_are_heads_and_need_no_engine(regression, full, monkeypatch):
    bases, watched, devices = {"0": regression.bundle.weights()}, Watched(regression), [0, 1, 2, 3, 4, 6]
    batched = Batched(regression, watched)
    assert batched._features._given_through
    monkeypatch.setattr(batched._features._model, "features", None)  # never called
    expected = results(PlainExecutor(regression), bases, jobs(full, devices))
    assert_alike(results(batched, bases, jobs(full, devices)), expected)
    assert watched.calls == []


@pytest.mark.parametrize(
    "full", [FedAvg(epochs=1, terms=(FedProx(0.1),)), FedAvg(epochs=1, terms=(DpSgd(),))]
)
def test_full_updates_with_terms_that_heads_do_not_have_go_to_the_fallback(regression, full):
    bases, watched = {"0": regression.bundle.weights()}, Watched(regression)
    results(Batched(regression, watched), bases, jobs(full, [0, 2]))
    assert watched.calls == [[0, 2]]


def test_features_beyond_the_memory_given_are_forgotten_and_computed_again(inputs, bundle):
    bases, few = {"0": bundle.weights()}, FewShot(epochs=2)
    largest = 40 * (4 * (bundle.manifest.head.features + 1) + 8)  # device 2, the largest but one
    batched = Batched(inputs, PlainExecutor(inputs), cache_bytes=largest)
    expected = results(PlainExecutor(inputs), bases, jobs(few, [0, 2, 4]))
    for _ in range(2):
        assert_alike(results(batched, bases, jobs(few, [0, 2, 4])), expected)
    assert batched._features._bytes <= largest


def test_a_job_gives_the_same_bits_whatever_is_run_beside_it(inputs, bundle):
    bases, few = {"0": bundle.weights()}, FewShot()
    together = results(Batched(inputs, PlainExecutor(inputs)), bases, jobs(few, [0, 1, 2, 3, 4, 6]))
    [alone] = results(Batched(inputs, PlainExecutor(inputs)), bases, jobs(few, [3]))
    for name, value in alone.tensors.items():
        assert value.tobytes() == together[3].tensors[name].tobytes()


def test_a_training_that_diverges_is_told_and_leaves_the_others(inputs, bundle):
    weights = bundle.weights()
    head = bundle.manifest.head
    spoilt = {**weights, head.weight: np.full_like(weights[head.weight], 3e38)}
    bases, few = {"0": weights, "1": spoilt}, FewShot(lr=1e30, epochs=3)
    some_jobs = [*jobs(few, [2], "1"), *jobs(FewShot(), [2], "0")]
    updates = results(Batched(inputs, PlainExecutor(inputs)), bases, some_jobs)
    assert isinstance(updates[0], FailedJob)
    assert "non-finite" in updates[0].why
    assert isinstance(updates[1], Update)


def test_it_says_what_it_works_with_and_closes_it(inputs):
    watched = Watched(inputs)
    batched = Batched(inputs, watched)
    assert batched.name == "batched, plain"
    batched.close()
    batched.close()
    assert watched.closed


@pytest.fixture(scope="module")
def on_torch(bundle: Bundle, clients: Clients) -> ExecutorInputs:
    pytest.importorskip("torch")
    return ExecutorInputs(bundle, clients, EngineSettings("torch"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(epochs=1, lr=0.05, batch=8),
        EntropySubset(shares=(0.5,), epochs=2, lr=0.02, batch=8),
        EntropySubset(shares=(0.5,), epochs=2, lr=0.02, batch=8, select="random"),
        FedAvg(epochs=2, lr=0.04, batch=8, reduced_epochs=1).variants()[0],
    ],
)
def test_small_networks_are_trained_together_on_torch(on_torch, bundle, strategy):
    """As far apart as in test_torch_many: a ReLU whose input is 0 to rounding falls on either side."""
    bases, watched, devices = {"0": bundle.weights()}, Watched(on_torch), [0, 1, 2, 3, 4, 6]
    updates = results(Batched(on_torch, watched), bases, jobs(strategy, devices))
    expected = results(PlainExecutor(on_torch), bases, jobs(strategy, devices))
    assert_alike(updates, expected, within=5e-4)
    assert watched.calls == []


@pytest.fixture(scope="module")
def with_batch_norm(tmp_path_factory: pytest.TempPathFactory) -> ExecutorInputs:
    """A network that updates batch statistics, on series."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    source = Source("cnn1d", {"in_channels": 1, "classes": 4, "width": 0.25, "norm": "batch"})
    torch.manual_seed(0)
    spec = ExportSpec("series", InputSpec((1, 64)), tuple("abcd"), source=source, batchnorm="training")
    folder = tmp_path_factory.mktemp("bundles") / "series"
    exported_ = export(build(source.network, source.settings), spec, folder)
    rng, ends = np.random.default_rng(0), np.cumsum(SIZES)
    x = rng.standard_normal((ends[-1], 1, 64), np.float32)
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return ExecutorInputs(
        exported_, Clients.of(x, rng.integers(4, size=ends[-1]), parts), EngineSettings("torch")
    )


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(epochs=2, lr=0.05, batch=8),
        FedAvg(epochs=1, lr=0.05, batch=40),  # micro-batches of 20 on two devices, of 32 on the others
        EntropySubset(shares=(0.5,), epochs=1, lr=0.02, batch=8),
    ],
)
def test_networks_with_batch_statistics_are_trained_together_on_torch(with_batch_norm, strategy):
    bases, watched = {"0": with_batch_norm.bundle.weights()}, Watched(with_batch_norm)
    devices = [0, 1, 2, 3, 4, 6]
    updates = results(Batched(with_batch_norm, watched), bases, jobs(strategy, devices))
    expected = results(PlainExecutor(with_batch_norm), bases, jobs(strategy, devices))
    assert_alike(updates, expected)
    assert any(name.endswith("running_var") for name in updates[0].tensors)
    assert watched.calls == []


@pytest.mark.slow
def test_kinds_that_tune_a_part_are_the_same_together_or_not_trained_together(lesson):
    settings = {"epochs": 2, "lr": 0.05, "batch": 8}
    kinds = [
        registry.make("peft", {**settings, "tunable": tunable, "tunables": ()})
        for tunable in ("bias", "lora", "head")
    ]
    kinds += [
        registry.make("sparse", settings),
        registry.make("full", {**settings, "terms": {"moon": {"mu": 1.0}}}),
    ]
    on_torch, bases = replace(lesson.inputs, engine=EngineSettings("torch")), {"1": lesson.bases["1"]}
    some_jobs = [job for kind in kinds for job in jobs(kind, [0, 1, 2], "1")]
    updates = results(Batched(on_torch, PlainExecutor(on_torch), networks=True), bases, some_jobs)
    assert_alike(updates, results(PlainExecutor(on_torch), bases, some_jobs), within=5e-4)
    assert [result.memory is not None for result in updates] == [False] * 12 + [True] * 3


def test_networks_are_left_to_the_fallback_on_other_engines_or_when_told(inputs, on_torch, bundle):
    bases, full = {"0": bundle.weights()}, FedAvg(epochs=1, batch=8)
    for inputs_, networks, strategy in (
        (inputs, None, full),
        (inputs, True, full),
        (on_torch, False, full),
    ):
        watched = Watched(inputs_)
        results(Batched(inputs_, watched, networks=networks), bases, jobs(strategy, [1]))
        assert watched.calls == [[1]]


LEARNT = {"epochs": 2, "lr": 0.05, "batch": 8}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("width-slice", {"members": ("half",)}),
        ("width-slice", {"members": ("half",), "graded": True}),
        ("full+few-shot", {}),
        ("full+few-shot", {"drawn_epochs": True}),
        ("sparse", {}),
        *(("peft", {"tunable": tunable}) for tunable in ("bias", "lora", "head")),
        ("entropy-subset", {"shares": (0.5,)}),
        ("full", {"terms": {"fedprox": {"mu": 0.5}}, "clip_norm": 0.1}),
        ("full", {"terms": {"fscprox": {"mu": 0.5}}}),
        ("full", {"terms": {"moon": {"mu": 2.0}, "fedprox": {"mu": 0.5}}}),
        ("entropy-subset", {"shares": (0.5,), "terms": {"moon": {}}}),
        ("full", {"terms": {"dp-sgd": {"epsilon": 20.0, "max_norm": 0.5}, "fedprox": {"mu": 0.5}}}),
        ("peft", {"tunable": "lora", "terms": {"dp-sgd": {"epsilon": 20.0}}}),
        ("width-slice", {"members": ("half",), "terms": {"fedprox": {"mu": 0.5}}}),
    ],
)
def test_kinds_that_train_by_a_plan_are_trained_together_on_torch(lesson, kind, settings):
    assert_trained_together(replace(lesson.inputs, engine=EngineSettings("torch")), kind, settings)


@pytest.mark.parametrize("kind", ["representatives", "attention-transfer", "prototypes"])
def test_what_devices_send_beside_networks_is_of_the_same_samples(lesson, exported, kind):
    inputs = ExecutorInputs(Bundle.open(exported.taught), lesson.inputs.clients, EngineSettings("torch"))
    assert_trained_together(inputs, kind, {})


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory: pytest.TempPathFactory):
    """Makes a recurrent network on texts of 6 tokens, by its name."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    @cache
    def exported_(name: str) -> Bundle:
        source = Source(name, {"vocabulary": 40, "dim": 6, "hidden": 8, "classes": 4})
        torch.manual_seed(0)
        spec = ExportSpec(
            name,
            InputSpec((6,), dtype="int64", vocabulary=40),
            tuple("abcd"),
            source=source,
            sets={"all": {}},
        )
        return export(build(name, source.settings), spec, tmp_path_factory.mktemp("texts") / name)

    return exported_


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_recurrent_networks_are_trained_together(of_texts, network):
    rng = np.random.default_rng(0)
    parts = np.split(np.arange(40), [1, 12, 19])
    clients = Clients.of(rng.integers(1, 40, (40, 6)), rng.integers(4, size=40), parts)
    inputs = ExecutorInputs(of_texts(network), clients, EngineSettings("torch"))
    assert_trained_together(inputs, "full", {"terms": {"fedprox": {"mu": 0.5}}, "momentum": 0.9})
    assert_trained_together(inputs, "full", {"terms": {"dp-sgd": {"epsilon": 20.0}}})


@pytest.mark.parametrize("tunable", ["lora", "prompt", "adapter"])
def test_sets_of_a_transformer_are_trained_together(lesson, exported, tunable):
    inputs = ExecutorInputs(Bundle.open(exported.vit), lesson.inputs.clients, EngineSettings("torch"))
    assert_trained_together(inputs, "peft", {"tunable": tunable})


def assert_trained_together(inputs: ExecutorInputs, kind: str, settings: dict[str, Any]) -> None:
    """By the poorest form of the kind, in the second round, in which devices have kept something."""
    form = registry.make(kind, {**LEARNT, **settings}).variants()[-1]
    first, head = inputs.of(form.member).weights(), inputs.bundle.manifest.head
    aside = {FEW_SHOT + name: first[name] + 1 for name in (head.weight, head.bias)}
    bases, watched = {"2": first, "2//aside": aside}, Watched(inputs)
    trained = inputs.of(form.member).manifest.names(getattr(form, "trained", "all"))
    memory = {name: first[name] + np.float32(0.01) for name in trained}
    some_jobs = [
        replace(job, aside="2//aside", memory=memory if job.device % 2 else {})
        for job in jobs(form, range(len(inputs.clients)), "2")
    ]
    updates = results(Batched(inputs, watched, networks=True), bases, some_jobs)
    assert watched.calls == []
    expected = results(watched.plain, bases, some_jobs)
    assert_alike(updates, expected)
    assert [update.variant for update in updates] == [update.variant for update in expected]
    for update, other in zip(updates, expected, strict=True):
        assert (update.memory is None) == (other.memory is None)
        for name, value in (other.memory or {}).items():
            np.testing.assert_allclose(update.memory[name], value, atol=1e-5, err_msg=name)


def test_a_term_that_does_not_fit_fails_the_jobs_of_its_devices_alone(lesson):
    form = registry.make("full", {**LEARNT, "terms": {"fscprox": {"mu": 0.5}}})
    first = lesson.bases["1"]
    bases = {"2": first, "2//aside": {FEW_SHOT + "head.bias": first["head.bias"][:3]}}
    some_jobs = [replace(job, aside="2//aside" * (job.device == 1)) for job in jobs(form, [0, 1, 2], "2")]
    inputs = replace(lesson.inputs, engine=EngineSettings("torch"))
    updates = results(Batched(inputs, PlainExecutor(inputs), networks=True), bases, some_jobs)
    assert [isinstance(update, FailedJob) for update in updates] == [False, True, False]
    assert updates[1].why == "proximal anchor head.bias is float32 (3,), expected float32 (10,)"


@dataclass(frozen=True)
class ByAdam(FedAvg):
    """A kind whose devices train by Adam."""

    name = "by-adam"
    decoupled: bool = False

    def plan(self, model, data, run):
        adam = Adam(lr=0.01, weight_decay=0.1, decoupled=self.decoupled)
        return replace(super().plan(model, data, run), optimizer=adam)


@pytest.mark.parametrize("decoupled", [True, False])
def test_own_kinds_by_adam_are_trained_together(lesson, decoupled):
    inputs = replace(lesson.inputs, engine=EngineSettings("torch"))
    watched, bases = Watched(inputs), {"1": lesson.bases["1"]}
    some_jobs = jobs(ByAdam(**LEARNT, decoupled=decoupled), [0, 1, 2], "1")
    updates = results(Batched(inputs, watched, networks=True), bases, some_jobs)
    assert watched.calls == []
    assert_alike(updates, results(watched.plain, bases, some_jobs))


class OwnPull:
    """A gradient term of one's own."""

    def start(self, params):
        return self

    def add(self, params, grads):
        grads.vector += 0.1


class WithPull(FedAvg):
    """A kind with a gradient term of its own."""

    name = "with-pull"

    def plan(self, model, data, run):
        return replace(super().plan(model, data, run), gradients=(OwnPull(),))


class OwnSteps(FedAvg):
    """A kind whose devices do something of their own."""

    name = "own-steps"

    def train(self, model, data, run):
        return super().train(model, data, run)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OwnSteps(epochs=1), "it trains by its own code, not by a plan"),
        (registry.make("zeroth-order"), "it trains by its own code, not by a plan"),
        (WithPull(epochs=1), "term OwnPull adds gradients by its own code"),
        (FedAvg(epochs=1), "a sample's step has {} MFLOP, and a CPU gains up to 1 MFLOP only"),
    ],
)
def test_the_log_says_once_why_devices_are_trained_one_after_another(
    on_torch, bundle, kind, why, caplog, monkeypatch
):
    monkeypatch.setattr("device_runtime.simulation.executors.batched_many.PAYS_BELOW_FLOPS", 1_000_000)
    watched, bases = Watched(on_torch), {"0": bundle.weights()}
    batched = Batched(on_torch, watched)
    with caplog.at_level("INFO", "device_runtime"):
        for _ in range(2):
            results(batched, bases, jobs(kind, [0, 1]))
    assert watched.calls == [[0, 1]] * 2
    why = why.format(f"{bundle.manifest.graphs['train.all'].flops / 1e6:.3g}")
    assert caplog.messages == [f"devices of kind {kind.name} are trained one after another: {why}"]


def test_copies_pay_for_small_networks_and_on_a_gpu_for_all(on_torch, monkeypatch):
    assert is_faster_together(on_torch, "", "all")
    monkeypatch.setattr("device_runtime.simulation.executors.batched_many.PAYS_BELOW_FLOPS", 1_000_000)
    assert not is_faster_together(on_torch, "", "all")
    assert is_faster_together(replace(on_torch, engine=EngineSettings("torch", device="cuda")), "", "all")


def test_each_base_is_trained_from_by_its_own_jobs(on_torch, bundle):
    first, full = bundle.weights(), FedAvg(epochs=1, lr=0.05, batch=8)
    bases = {"4": first, "9": {name: value * np.float32(0.9) for name, value in first.items()}}
    mixed = [*jobs(full, [0], "4"), *jobs(full, [1], "9"), *jobs(full, [2], "4")]
    updates = results(Batched(on_torch, PlainExecutor(on_torch)), bases, mixed)
    assert_alike(updates, results(PlainExecutor(on_torch), bases, mixed), within=5e-4)


def with_statistics(strategy: AnyStrategy, **settings) -> AnyStrategy:
    return kind_statistics.with_class_statistics(strategy, ClassStatistics(**settings))


def assert_statistics_alike(updates: list[Result], expected: list[Result]) -> None:
    """Of the same samples: equal counts; numbers are a step of rounding apart at most."""
    for actual, other in zip(updates, expected, strict=True):
        ours, theirs = (class_statistics.split_statistics(result.tensors)[1] for result in (actual, other))
        assert ours.keys() == theirs.keys() != set()
        rows = theirs[class_statistics.ROWS]
        width = 20 if rows.shape[1] == 10 + 2 * 20 else 64
        own, reference = (class_statistics.decode(sent, (10, width)) for sent in (ours, theirs))
        np.testing.assert_array_equal(own.sums.counts, reference.sums.counts)
        means, expected_means = (statistics.sums.means() for statistics in (own, reference))
        largest = np.abs(expected_means).max(axis=1, keepdims=True)
        step = 1.01 / 127 if rows.shape[1] == 10 + 64 else 2e-3
        assert (np.abs(means - expected_means) <= step * largest + 1e-3).all()
        np.testing.assert_allclose(
            own.moments, reference.moments, atol=2e-3 * np.abs(reference.moments).max()
        )


def without_statistics(results: list[Result]) -> list[Result]:
    return [
        replace(result, tensors=class_statistics.split_statistics(result.tensors)[0]) for result in results
    ]


@pytest.mark.parametrize(
    "strategy",
    [
        with_statistics(FewShot(epochs=2)),
        with_statistics(FewShot(epochs=2), most_classes=3),
        with_statistics(Peft(tunable="head", epochs=1, batch=8), numbers="int8", samples=10),
        with_statistics(Peft(tunable="head", epochs=1, batch=8), samples=0),
    ],
)
def test_statistics_beside_heads_are_of_the_features_that_heads_learn_from(
    inputs, bundle, strategy, monkeypatch
):
    bases, watched, devices = {"0": bundle.weights()}, Watched(inputs), [2, 0, 1, 3, 4, 6]
    batched, sizes = Batched(inputs, watched), []
    features = batched._features
    compute = features._model.features
    monkeypatch.setattr(features._model, "features", lambda x: sizes.append(len(x)) or compute(x))
    expected = results(PlainExecutor(inputs), bases, jobs(strategy, devices))
    for _ in range(2):
        updates = results(batched, bases, jobs(strategy, devices))
        assert_statistics_alike(updates, expected)
        assert_alike(without_statistics(updates), without_statistics(expected))
    assert sizes == [SIZES[device] for device in devices]
    assert watched.calls == []


@pytest.mark.parametrize(
    "strategy",
    [
        with_statistics(FedAvg(epochs=1, lr=0.05, batch=8)),
        with_statistics(FedAvg(epochs=1, lr=0.05, batch=8), features=20),
        with_statistics(EntropySubset(shares=(0.5,), epochs=1, lr=0.02, batch=8), numbers="int8"),
    ],
)
def test_statistics_beside_networks_are_of_the_same_samples(on_torch, bundle, strategy):
    """Of half of the samples, where half are trained on."""
    bases, watched, devices = {"0": bundle.weights()}, Watched(on_torch), [0, 1, 2, 3, 4, 6]
    updates = results(Batched(on_torch, watched), bases, jobs(strategy, devices))
    expected = results(PlainExecutor(on_torch), bases, jobs(strategy, devices))
    assert_statistics_alike(updates, expected)
    assert_alike(without_statistics(updates), without_statistics(expected), within=5e-4)
    assert watched.calls == []


def test_statistics_of_two_kinds_on_one_base_share_features_and_scalars_go_to_the_fallback(
    on_torch, bundle, monkeypatch
):
    full, few = with_statistics(FedAvg(epochs=1, batch=8)), with_statistics(FewShot(epochs=1))
    scalars = with_statistics(registry.make("zeroth-order"))
    bases, watched, sizes = {"0": bundle.weights()}, Watched(on_torch), []
    batched = Batched(on_torch, watched)
    compute = batched._features._model.features
    monkeypatch.setattr(batched._features._model, "features", lambda x: sizes.append(len(x)) or compute(x))
    some_jobs = [*jobs(full, [0, 2]), *jobs(few, [2, 0]), *jobs(scalars, [2])]
    updates = results(batched, bases, some_jobs)
    assert_statistics_alike(updates, results(PlainExecutor(on_torch), bases, some_jobs))
    assert (sizes, watched.calls) == ([23, 40], [[2]])


def test_features_of_a_base_that_has_diverged_are_told(on_torch, bundle):
    weights = bundle.weights()
    spoilt = {name: np.full_like(value, 3e38) for name, value in weights.items()}
    for strategy in (FedAvg(epochs=1, batch=8), FewShot(epochs=1)):
        some_jobs = jobs(with_statistics(strategy), [2])
        [updates] = results(Batched(on_torch, PlainExecutor(on_torch)), {"0": spoilt}, some_jobs)
        assert isinstance(updates, FailedJob)
        assert "non-finite" in updates.why


def test_jobs_that_hold_samples_out_are_done_as_a_device_does_them(inputs, bundle):
    strategy = with_statistics(FewShot(epochs=1), hold_out=0.25)
    head = {held_out.CLOSED_FORM + n: bundle.weights()[n] for n in ("head.weight", "head.bias")}
    bases, watched, devices = {"0": bundle.weights(), "0//aside": head}, Watched(inputs), [0, 1, 2]
    some_jobs = [replace(job, aside="0//aside") for job in jobs(strategy, devices)]
    updates = results(Batched(inputs, watched), bases, some_jobs)
    assert watched.calls == [devices]
    counts = [int(held_out.mask(SIZES[device], 0.25, f"pi-{device}").sum()) for device in devices]
    assert [update.num_examples for update in updates] == [
        SIZES[device] - n for device, n in zip(devices, counts, strict=True)
    ]
    assert counts[1] == 0
    rights = [update.tensors[class_statistics.RIGHT][:, 0].tolist() for update in updates]
    assert rights == [[counts[0]], [], [counts[2]]]


@pytest.mark.parametrize(("loss", "compared"), [("mse", ""), ("bce", ""), ("mse", "input")])
def test_statistics_by_stratum_are_those_of_the_plain_executor(loss, compared, exported):
    """Those of class means, of features and targets; three devices of which one has more than 40 samples."""
    bundle, rng = Bundle.open(exported.of_loss(loss, compared)), np.random.default_rng(0)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    y = {"bce": (x[:, :3] > 0.5).astype(np.float32), "mse": x[:, :2]}[loss]
    y = np.zeros(90, np.int64) if compared else y
    inputs = ExecutorInputs(
        bundle, Clients.of(x, y, np.split(np.arange(90), [20, 30])), EngineSettings("onnxruntime")
    )
    bases, watched = {"0": bundle.weights()}, Watched(inputs)
    tasks = jobs(with_statistics(ClassMeans()), range(3))
    updates, expected = results(Batched(inputs, watched), bases, tasks), results(watched.plain, bases, tasks)
    assert watched.calls == []
    for result, reference in zip(updates, expected, strict=True):
        assert result.tensors.keys() == reference.tensors.keys() > {class_statistics.ROWS}
        for name, value in reference.tensors.items():
            np.testing.assert_allclose(result.tensors[name].astype(float), value.astype(float), atol=1e-3)
