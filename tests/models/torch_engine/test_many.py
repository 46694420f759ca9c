"""Copies that are trained together are each what one alone becomes."""

from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.bundles.tensors import all_finite
from device_runtime.models.errors import EngineError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine import many, recording
from device_runtime.models.torch_engine.engine import TorchModel
from device_runtime.models.torch_engine.many import (
    CopySamples,
    train_many,
)
from device_runtime.models.training.optimizer import Adam, Sgd, clip

LABELS = tuple("abcd")
NETWORKS = {
    "mlp": ("mlp", {"inputs": 64, "hidden": 8}, (1, 8, 8), "frozen"),
    "cnn": ("cnn", {"in_channels": 1, "size": 8}, (1, 8, 8), "frozen"),
    "group norm": ("wrn", {"in_channels": 1}, (1, 8, 8), "frozen"),
    "batch norm": ("cnn1d", {"in_channels": 1, "width": 0.25, "norm": "batch"}, (1, 64), "training"),
}


class Smooth(torch.nn.Module):
    """Batch norms of one value a sample, which has no variance alone; no ReLU, whose side is chance then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Flatten(), torch.nn.Linear(64, 8, bias=False), torch.nn.BatchNorm1d(8)),
            *(torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8, affine=False)),
        )
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layers(x)))


class TwoBiases(torch.nn.Module):
    """Two biases that are added up, which have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 8)
        self.second = torch.nn.Parameter(torch.ones(8))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.first.bias + self.second
        return self.head(torch.tanh(x.flatten(1) @ self.first.weight.t() + bias))


OWN = {"one value": Smooth, "two biases": TwoBiases}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    @cache
    def exported(name: str) -> tuple[Bundle, torch.nn.Module | None]:
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("it") / "it"
        if name in OWN:
            spec = ExportSpec("it", InputSpec((1, 8, 8)), LABELS, batchnorm="training")
            return export(OWN[name](), spec, folder), OWN[name]()
        network, settings, shape, batchnorm = NETWORKS[name]
        source = Source(network, {**settings, "classes": 4})
        spec = ExportSpec("it", InputSpec(shape), LABELS, source=source, batchnorm=batchnorm)
        return export(build(network, source.settings), spec, folder), None

    def make(name: str, batch: int = 32, precision: str = "float32") -> TorchModel:
        bundle, module = exported(name)
        return TorchModel(bundle, module=module, batch=batch, precision=precision)

    return make


def lessons(counted: int = 0, shape: tuple[int, ...] = (1, 8, 8)) -> list[CopySamples]:
    """Of 10, 1, 4 and 17 samples in batches of 4, two epochs; the third of one class."""
    rng, lesson_list = np.random.default_rng(0), []
    for k, n in enumerate((10, 1, 4, 17)):
        orders = [rng.permutation(n) for _ in range(2)]
        batches = [order[i : i + 4] for order in orders for i in range(0, n, 4)]
        y = rng.integers(4, size=n) if k != 2 else np.full(n, 2)
        lesson_list.append(
            CopySamples(
                rng.standard_normal((n, *shape), np.float32),
                y,
                batches,
                min(counted, len(batches)),
                4 if n >= 4 else 0,
            )
        )
    return lesson_list


def alone(
    model: TorchModel, tunable: str, lesson: CopySamples, sgd: Sgd, clip_norm: float
) -> tuple[dict[str, np.ndarray], float]:
    trainer = model.trainer(tunable, batch=lesson.batch)
    steps, total, count = sgd.start(trainer.params.vector), 0.0, 0
    for i, batch in enumerate(lesson.batches):
        loss = trainer.loss_and_grads(lesson.x[batch], lesson.y[batch])
        if i >= lesson.counted:
            total, count = total + loss * len(batch), count + len(batch)
        if clip_norm:
            clip(trainer.grads.vector, clip_norm)
        steps.step(trainer.params.vector, trainer.grads.vector)
    return {**trainer.params.views, **trainer.statistics.views}, total / max(count, 1)


SGD = [(Sgd(0.05), 0.0), (Sgd(0.05, 0.9, 0.01), 0.5)]


def assert_as_if_alone(
    model: TorchModel, tunable: str, sgd: Sgd, clip_norm: float, within: float = 1e-5
) -> None:
    lesson_list = lessons(1, model.manifest.input.shape)
    learnt = train_many(model, tunable, lesson_list, sgd, clip_norm)
    assert all(tensors.finite for tensors in learnt.tensors)
    for k, lesson in enumerate(lesson_list):
        expected, loss = alone(model, tunable, lesson, sgd, clip_norm)
        assert list(learnt.tensors[k]) == list(expected)
        assert learnt.losses[k] == pytest.approx(loss, abs=1e-4)
        for name, value in expected.items():
            np.testing.assert_allclose(learnt.tensors[k][name], value, atol=within, err_msg=f"{k} {name}")


@pytest.mark.slow
@pytest.mark.parametrize(("sgd", "clip_norm"), SGD)
@pytest.mark.parametrize("tunable", ["all", "mid"])
@pytest.mark.parametrize("network", ["mlp", "cnn", "group norm"])
def test_each_copy_is_trained_as_if_alone(opened, network, tunable, sgd, clip_norm):
    # group norm of WRN: a ReLU whose input is 0 to rounding falls on either side, as in test_engines
    within = 5e-4 if network == "group norm" else 1e-5
    assert_as_if_alone(opened(network), tunable, sgd, clip_norm, within)


@pytest.mark.parametrize(("sgd", "clip_norm"), SGD)
@pytest.mark.parametrize(
    ("network", "tunable"), [("batch norm", "all"), ("batch norm", "mid"), ("one value", "all")]
)
@pytest.mark.parametrize("batch", [32, 3])
def test_batch_statistics_are_of_a_copys_own_micro_batches(opened, network, batch, tunable, sgd, clip_norm):
    """With 3 samples a micro-batch, batches of 4 are two and two, of one lesson three and one."""
    model = opened(network, batch)
    assert model.manifest.statistics(tunable)
    assert_as_if_alone(model, tunable, sgd, clip_norm)


def test_copies_of_full_batches_are_trained_as_if_alone(opened):
    """No row is padded then, and torch's own batch norm runs."""
    model, rng = opened("batch norm"), np.random.default_rng(0)
    samples = [(rng.standard_normal((8, 1, 64), np.float32), rng.integers(4, size=8)) for _ in range(3)]
    batches = [np.arange(4), np.arange(4, 8)]
    lesson_list = [CopySamples(x, y, batches, batch=4) for x, y in samples]
    learnt = train_many(model, "all", lesson_list, Sgd(0.05))
    for tensors, lesson in zip(learnt.tensors, lesson_list, strict=True):
        expected, _ = alone(model, "all", lesson, Sgd(0.05), 0.0)
        for name, value in expected.items():
            np.testing.assert_allclose(tensors[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("batch", [32, 3])
def test_tensors_of_one_gradient_are_clipped_once(opened, batch):
    assert_as_if_alone(opened("two biases", batch), "all", Sgd(0.05, 0.9), 0.2)


def test_a_copy_that_diverges_is_told_from_the_others(opened):
    model, lesson_list = opened("mlp"), lessons()
    lesson_list[1].x[:] = 1e30
    learnt = train_many(model, "all", lesson_list, Sgd(0.05))
    finite = [tensors.finite for tensors in learnt.tensors]
    assert finite == [True, False, True, True]
    assert [all_finite(tensors) for tensors in learnt.tensors] == finite


def test_the_model_is_left_as_it_is_and_results_are_the_callers_own(opened):
    model = opened("mlp")
    before = {name: value.copy() for name, value in model.weights.items()}
    first = train_many(model, "all", lessons(), Sgd(0.1))
    again = train_many(model, "all", lessons(), Sgd(0.1))
    assert all(np.array_equal(model.weights[name], value) for name, value in before.items())
    for tensors, others in zip(first.tensors, again.tensors, strict=True):
        for name, value in tensors.items():
            assert value.tobytes() == others[name].tobytes()
            assert not np.shares_memory(value, others[name])
            assert not np.shares_memory(value, model.weights[name])


@pytest.mark.parametrize("network", ["cnn", "batch norm"])
def test_bf16_rounds_products_of_training_alike_for_one_copy_and_for_many(opened, network):
    exact, model = opened(network), opened(network, precision="bf16")
    shape = model.manifest.input.shape
    x = lessons(shape=shape)[3].x
    np.testing.assert_array_equal(model.logits(x), exact.logits(x))
    lesson_list = lessons(1, shape)
    learnt = train_many(model, "all", lesson_list, Sgd(0.05))
    in_float32 = train_many(exact, "all", lesson_list, Sgd(0.05))
    for k, lesson in enumerate(lesson_list):
        expected, loss = alone(model, "all", lesson, Sgd(0.05), 0.0)
        assert learnt.losses[k] == pytest.approx(loss, abs=0.03)
        assert learnt.losses[k] != in_float32.losses[k]
        for name, value in expected.items():
            assert learnt.tensors[k][name].dtype == np.float32
            np.testing.assert_allclose(learnt.tensors[k][name], value, atol=0.02, err_msg=name)


def test_tf32_is_refused_on_the_cpu(opened):
    with pytest.raises(EngineError, match="precision is tf32, which only GPUs have, and the device is cpu"):
        opened("mlp", precision="tf32")


class Repeating:
    """A recorder on the CPU, where work is repeated as it is; it counts what is recorded and played."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal, self.recordings, self.played = refusal, 0, 0

    def aside(self):
        return nullcontext()

    def record(self, work):
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.recordings += 1

        def play():
            self.played += 1
            work()

        return play


@pytest.fixture
def recorded(monkeypatch):
    """Lets steps of shapes that come twice be recorded by this."""

    def by(recorder: Repeating) -> Repeating:
        monkeypatch.setattr(many, "recorder_of", lambda place: recorder)
        for module in (many, recording):
            monkeypatch.setattr(module, "RECORDED_FROM", 2)
        monkeypatch.setattr(recording, "PLAIN_FIRST", 1)
        return recorder

    return by


@pytest.mark.parametrize(("sgd", "clip_norm"), SGD)
def test_steps_of_a_shape_that_comes_often_are_recorded_once_and_played_again(
    opened, recorded, sgd, clip_norm
):
    """Four copies take steps 1 and 2, two steps 3 to 6, one steps 7 to 10; the first of each is plain."""
    recorder, model = recorded(Repeating()), opened("mlp")
    assert_as_if_alone(model, "all", sgd, clip_norm)
    assert (recorder.recordings, recorder.played) == (3, 1 + 3 + 3)
    first, again = (train_many(model, "all", lessons(), sgd, clip_norm) for _ in range(2))
    for tensors, others in zip(first.tensors, again.tensors, strict=True):
        assert all(value.tobytes() == others[name].tobytes() for name, value in tensors.items())


@pytest.mark.parametrize("batch", [32, 3])
def test_recorded_steps_move_batch_statistics_as_plain_ones(opened, recorded, batch):
    recorder, model = recorded(Repeating()), opened("batch norm", batch)
    assert_as_if_alone(model, "all", Sgd(0.05, 0.9), 0.0)
    assert recorder.played > 0


def test_steps_that_cannot_be_recorded_run_plainly_and_the_log_says_so(opened, recorded, caplog):
    recorded(Repeating("operation not permitted when stream is capturing"))
    assert_as_if_alone(opened("mlp"), "all", Sgd(0.05, 0.9), 0.0)
    message = "steps are not recorded, but run one by one: operation not permitted when stream is capturing"
    assert [record.getMessage() for record in caplog.records] == [message]


def test_steps_that_count_themselves_are_not_recorded(opened, recorded):
    recorder = recorded(Repeating())
    train_many(opened("mlp"), "all", lessons(), Adam(0.01))
    assert recorder.recordings == 0
