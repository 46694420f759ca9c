"""Copies that are trained together are each what one alone becomes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine.engine import TorchModel
from device_runtime.models.torch_engine.many import (
    CopySamples,
    can_train_many,
    is_faster_together,
    train_many,
)
from device_runtime.models.training.optimizer import Sgd, clip

LABELS = tuple("abcd")
NETWORKS = {
    "mlp": ("mlp", {"inputs": 64, "hidden": 8, "classes": 4}, "frozen"),
    "cnn": ("cnn", {"in_channels": 1, "size": 8, "classes": 4}, "frozen"),
    "group norm": ("wrn", {"in_channels": 1, "classes": 4}, "frozen"),
    "batch norm": ("wrn", {"in_channels": 1, "classes": 4, "norm": "batch"}, "training"),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    def make(name: str) -> TorchModel:
        network, settings, batchnorm = NETWORKS[name]
        torch.manual_seed(0)
        spec = ExportSpec(
            "it", InputSpec((1, 8, 8)), LABELS, source=Source(network, settings), batchnorm=batchnorm
        )
        return TorchModel(export(build(network, settings), spec, tmp_path_factory.mktemp("it") / "it"))

    return make


def lessons(counted: int = 0) -> list[CopySamples]:
    """Of 10, 1, 4 and 17 samples in batches of 4, two epochs; the third of one class."""
    rng, lesson_list = np.random.default_rng(0), []
    for k, n in enumerate((10, 1, 4, 17)):
        orders = [rng.permutation(n) for _ in range(2)]
        batches = [order[i : i + 4] for order in orders for i in range(0, n, 4)]
        y = rng.integers(4, size=n) if k != 2 else np.full(n, 2)
        lesson_list.append(
            CopySamples(rng.standard_normal((n, 1, 8, 8), np.float32), y, batches, min(counted, len(batches)))
        )
    return lesson_list


def alone(
    model: TorchModel, tunable: str, lesson: CopySamples, sgd: Sgd, clip_norm: float
) -> tuple[dict[str, np.ndarray], float]:
    trainer = model.trainer(tunable)
    steps, total, count = sgd.start(trainer.params.vector), 0.0, 0
    for i, batch in enumerate(lesson.batches):
        loss = trainer.loss_and_grads(lesson.x[batch], lesson.y[batch])
        if i >= lesson.counted:
            total, count = total + loss * len(batch), count + len(batch)
        if clip_norm:
            clip(trainer.grads.vector, clip_norm)
        steps.step(trainer.params.vector, trainer.grads.vector)
    return trainer.params.views, total / max(count, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("sgd", "clip_norm"), [(Sgd(0.05), 0.0), (Sgd(0.05, 0.9, 0.01), 0.5)])
@pytest.mark.parametrize("tunable", ["all", "mid"])
@pytest.mark.parametrize("network", ["mlp", "cnn", "group norm"])
def test_each_copy_is_trained_as_if_alone(opened, network, tunable, sgd, clip_norm):
    model, lesson_list = opened(network), lessons(counted=1)
    learnt = train_many(model, tunable, lesson_list, sgd, clip_norm)
    for k, lesson in enumerate(lesson_list):
        params, loss = alone(model, tunable, lesson, sgd, clip_norm)
        assert list(learnt.params[k].views) == list(params)
        assert learnt.losses[k] == pytest.approx(loss, abs=1e-4)
        for name, value in params.items():
            # group norm of WRN: a ReLU whose input is 0 to rounding falls on either side, as in test_engines
            np.testing.assert_allclose(
                learnt.params[k].views[name], value, atol=5e-4 if network == "group norm" else 1e-5
            )


def test_the_model_is_left_as_it_is_and_results_are_the_callers_own(opened):
    model = opened("mlp")
    before = {name: value.copy() for name, value in model.weights.items()}
    first = train_many(model, "all", lessons(), Sgd(0.1))
    again = train_many(model, "all", lessons(), Sgd(0.1))
    assert all(np.array_equal(model.weights[name], value) for name, value in before.items())
    for flat, other in zip(first.params, again.params, strict=True):
        assert flat.vector.tobytes() == other.vector.tobytes()
        assert not np.shares_memory(flat.vector, other.vector)


@pytest.mark.slow
def test_networks_with_batch_statistics_are_not_trained_together(opened):
    manifest = opened("batch norm").manifest
    assert not can_train_many(manifest, "all")
    assert can_train_many(manifest, "head")
    assert not can_train_many(manifest, "lora")


@pytest.mark.slow
def test_it_pays_for_small_networks_and_on_a_gpu_for_all(opened, digits):
    assert is_faster_together(opened("mlp").manifest, "all", on_cpu=True)
    assert is_faster_together(digits.manifest, "all", on_cpu=True)
    manifest = opened("cnn").manifest
    assert manifest.graphs["train.all"].flops > 2_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("device_runtime.models.torch_engine.many.PAYS_BELOW_FLOPS", 2_000_000)
        assert not is_faster_together(manifest, "all", on_cpu=True)
        assert is_faster_together(manifest, "mid", on_cpu=False)
