"""Many heads at once are each what SoftmaxHead makes of it alone."""

from dataclasses import replace
from itertools import chain

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.heads import (
    HeadTrainingData,
    SoftmaxHead,
    head_matrix,
    inputs_of,
    split_heads,
    train_heads,
)
from device_runtime.models.training.optimizer import Sgd

SGDS = (Sgd(0.5), Sgd(0.2, momentum=0.9), Sgd(0.2, weight_decay=0.1), Sgd(0.1, 0.5, 0.01))
SIZES = (17, 1, 8, 30, 5, 0)  # batches of 8: one of them partial, one sample, whole ones, none at all


@pytest.fixture(params=["bias", "no bias"])
def manifest(digits, request) -> Manifest:
    if request.param == "bias":
        return digits.manifest
    head = msgspec.structs.replace(digits.manifest.head, bias=None)
    return msgspec.structs.replace(digits.manifest, head=head)


@pytest.fixture
def weights(digits) -> Tensors:
    rng = np.random.default_rng(7)
    return {n: rng.standard_normal(v.shape, np.float32) for n, v in digits.weights().items()}


def batches(samples: int, epochs: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(samples) for _ in range(epochs)]
    return list(chain(*([order[i : i + 8] for i in range(0, samples, 8)] for order in orders)))


def lessons(manifest: Manifest, epochs: int = 3) -> tuple[list[HeadTrainingData], list[np.ndarray]]:
    """The lessons, and the features that they are about. All samples of the third are of one class."""
    rng, lesson_data, features = np.random.default_rng(3), [], []
    for k, samples in enumerate(SIZES):
        x = rng.standard_normal((samples, manifest.head.features), np.float32)
        y = rng.integers(10, size=samples) if k != 2 else np.full(samples, 4)
        lesson_data.append(HeadTrainingData(inputs_of(x, manifest.head), y, batches(samples, epochs, k)))
        features.append(x)
    return lesson_data, features


@pytest.mark.parametrize("sgd", SGDS)
def test_each_head_is_trained_as_if_alone(manifest, weights, sgd):
    lesson_data, features = lessons(manifest)
    learnt = train_heads(head_matrix(weights, manifest.head), lesson_data, sgd)
    for k, tensors in enumerate(split_heads(learnt.heads, manifest.head)):
        alone = SoftmaxHead(manifest, weights)
        loss = alone.train(features[k], lesson_data[k].y, lesson_data[k].batches, sgd)
        assert tensors.keys() == alone.params.views.keys()
        for name, value in tensors.items():
            np.testing.assert_allclose(value, alone.params.views[name], atol=1e-5, err_msg=f"{k} {name}")
        assert learnt.losses[k] == pytest.approx(loss, abs=1e-5, nan_ok=True)


def test_a_head_does_not_depend_on_the_others_to_the_bit(manifest, weights):
    lesson_data, _ = lessons(manifest)
    start = head_matrix(weights, manifest.head)
    together = train_heads(start, lesson_data, SGDS[3], clip_norm=0.5)
    for k, lesson in enumerate(lesson_data):
        alone = train_heads(start, [lesson], SGDS[3], clip_norm=0.5)
        assert alone.heads[0].tobytes() == together.heads[k].tobytes()
        assert alone.losses.tobytes() == together.losses[k : k + 1].tobytes()


def test_windows_of_gathered_samples_change_nothing(manifest, weights, monkeypatch):
    lesson_data, _ = lessons(manifest)
    start = head_matrix(weights, manifest.head)
    whole = train_heads(start, lesson_data, SGDS[1])
    monkeypatch.setattr("device_runtime.models.training.heads.WINDOW_BYTES", 1)
    assert train_heads(start, lesson_data, SGDS[1]).heads.tobytes() == whole.heads.tobytes()


def test_the_loss_is_that_of_the_steps_that_count(manifest, weights):
    lesson_data, features = lessons(manifest, epochs=1)
    before = SoftmaxHead(manifest, weights)
    first, second = lesson_data[0].batches[:1], lesson_data[0].batches[1:]
    before.train(features[0], lesson_data[0].y, first, Sgd(0.5))
    expected = before.train(features[0], lesson_data[0].y, second, Sgd(0.5))
    learnt = train_heads(head_matrix(weights, manifest.head), [replace(lesson_data[0], counted=1)], Sgd(0.5))
    assert learnt.losses[0] == pytest.approx(expected, abs=1e-5)


def test_a_diverged_head_is_not_finite_and_spoils_no_other(manifest, weights):
    lesson_data, _ = lessons(manifest)
    bad = replace(lesson_data[0], inputs=np.full_like(lesson_data[0].inputs, 1e30))
    start = head_matrix(weights, manifest.head)
    learnt = train_heads(start, [bad, lesson_data[3]], Sgd(1e10))
    assert not np.isfinite(learnt.heads[0]).all()
    assert learnt.heads[1].tobytes() == train_heads(start, [lesson_data[3]], Sgd(1e10)).heads[0].tobytes()
