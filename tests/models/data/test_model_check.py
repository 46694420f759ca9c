"""What a model says of samples with a common mistake, and that it says nothing of samples without one.

The models here know the means of their classes: the nearer a sample is to one, the surer they are of it.
"""

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.data.local_data import LocalData
from device_runtime.models.data.model_check import (
    ClassCheck,
    ModelCheck,
    check_model,
    check_unlabelled,
    evenly_spaced,
)

DIGITS = load_digits()
RAW, Y = DIGITS.images[:, None].astype(np.float32), DIGITS.target.astype(np.int64)


def knows(x, y, sharpness=1.0):
    """The outputs of a model that was trained on these prepared samples."""
    classes = int(y.max()) + 1
    flat = x.reshape(len(x), -1)
    means = np.stack([flat[y == number].mean(axis=0) for number in range(classes)])

    def outputs(of):
        away = ((of.reshape(len(of), 1, -1) - means) ** 2).sum(axis=2)
        return (-sharpness * away).astype(np.float32)

    return outputs


def dull(outputs):
    """The same model, which is the less sure the farther a sample is from all that it knows."""

    def duller(x):
        logits = outputs(x)
        nearest = logits.max(axis=1, keepdims=True)
        return np.where(nearest < -60, (logits - nearest) * 0.02, logits)

    return duller


@pytest.fixture
def digits(bundle):
    """The manifest, and a model that was trained on the first 1,000 digits."""
    manifest = bundle.manifest
    return manifest, knows(manifest.input.prepare(RAW[:1000]), Y[:1000])


def check_of(manifest, outputs, raw, y):
    return check_model(LocalData(manifest.input.prepare(raw), y), manifest, outputs)


OTHER, MINE = RAW[1000:], Y[1000:]


def test_samples_like_those_that_it_knows_are_said_to_be_right_and_nothing_else(digits):
    check = check_of(*digits, OTHER, MINE)
    assert check.right > 0.8
    assert (check.hint, check.guessing, check.trained) == ("", False, True)
    assert check.description == f"the model is right in {check.right:.0%} of 300"


@pytest.mark.parametrize(
    "change, hint",
    [
        (lambda raw: 16 - raw, "with dark and light exchanged it would be right in"),
        (lambda raw: raw.swapaxes(2, 3), "with rows and columns exchanged"),
        (lambda raw: raw[:, :, ::-1, ::-1], "turned upside down"),
        (lambda raw: raw[:, :, :, ::-1], "mirrored it would be"),
        (lambda raw: raw / 16, "scaled to 0 to 16 .* are they scaled\\? they are 0 to 1$"),
        (lambda raw: raw / 8 - 1, "scaled to 0 to 16 .* they are -1 to 1$"),
    ],
)
def test_a_mistake_that_would_explain_wrong_answers_is_named(digits, change, hint):
    check = check_of(*digits, change(OTHER), MINE)
    assert re.search(hint, check.hint), check
    assert check.trained


@pytest.mark.parametrize(
    "labels, hint",
    [
        (np.minimum(MINE + 1, 9), "with labels one lower .*: are they one too high"),
        (np.maximum(MINE - 1, 0), "with labels one higher .*: are they one too low"),
        ((3 * MINE + 1) % 10, "samples labelled '0' look like '3', .* are labels exchanged"),
        (np.where(MINE == 4, 9, np.where(MINE == 9, 4, MINE)), None),  # too few to be sure of
    ],
)
def test_labels_that_are_shifted_or_exchanged_are_named(digits, labels, hint):
    check = check_of(*digits, OTHER, labels)
    assert re.search(hint, check.hint) if hint else not check.hint, check


def test_colours_in_another_order_are_named(bundle):
    spec = InputSpec((3, 4, 4), 1 / 255)
    manifest = msgspec.structs.replace(bundle.manifest, input=spec, labels=("red", "green", "blue"))
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    raw = rng.integers(0, 60, (90, 3, 4, 4)).astype(np.float32)
    raw[np.arange(90), y] += 150
    outputs = knows(spec.prepare(raw), y)
    check = check_model(LocalData(spec.prepare(raw[:, ::-1].copy()), y), manifest, outputs)
    assert (
        check.hint
        == "with red and blue exchanged it would be right in 100%: are the channels in the order BGR?"
    )


def test_an_untrained_model_names_no_mistake_whatever_the_samples(bundle):
    """Networks of random weights, some of which tell classes apart in their own way."""
    manifest = bundle.manifest
    for seed in range(40):
        rng = np.random.default_rng(seed)
        weights = rng.normal(size=(64, 10)).astype(np.float32) * 0.1

        def outputs(x, weights=weights):
            return np.maximum(x.reshape(len(x), -1), 0) @ weights

        classes = np.isin(MINE, range(2 if seed % 2 else 10))
        for raw in (OTHER[classes], 16 - OTHER[classes], OTHER[classes] * 16):
            check = check_of(manifest, outputs, raw, MINE[classes])
            assert not check.hint, (seed, check)
            assert not check_unlabelled(manifest.input.prepare(raw / 16), manifest, outputs).hint


def test_a_model_that_always_says_the_same_is_said_to_guess(bundle):
    check = check_of(bundle.manifest, lambda x: np.eye(10, dtype=np.float32)[[3] * len(x)] * 99, OTHER, MINE)
    assert check.guessing
    assert not check.hint
    assert check.description.endswith("of 300, no better than guessing")


def test_of_few_samples_and_of_one_class_only_the_share_is_said(digits):
    check = check_of(*digits, 16 - OTHER[:10], MINE[:10])
    assert not check.hint
    of_one = MINE == 3
    assert not check_of(*digits, 16 - OTHER[of_one], MINE[of_one]).hint


def test_without_labels_it_says_what_it_sees_and_how_sure_it_is(digits):
    manifest, outputs = digits
    check = check_unlabelled(manifest.input.prepare(OTHER), manifest, outputs)
    assert check.right is None
    assert check.description.startswith("of 300 without labels, the model says ")
    assert not check.hint
    inverted = check_unlabelled(manifest.input.prepare(16 - OTHER), manifest, dull(outputs))
    assert "with dark and light exchanged it would be" in inverted.hint
    alike = check_unlabelled(manifest.input.prepare(OTHER[MINE == 0]), manifest, outputs)
    assert "0 100%" in alike.answers or "0 9" in alike.answers


def test_numbers_in_another_scale_are_named(bundle):
    spec = InputSpec((2,), 1.0, (50.0, 0.5), (20.0, 0.2))
    target = targets_of("mse", ("price",), columns=("price",), mean=(0.0,), std=(1.0,))
    manifest = msgspec.structs.replace(bundle.manifest, input=spec, labels=("price",), loss=target)
    raw = np.random.default_rng(0).normal((50, 0.5), (20, 0.2), (100, 2))
    y = spec.prepare(raw).sum(axis=1, keepdims=True).astype(np.float32)

    def outputs(x):
        return x.sum(axis=1, keepdims=True) * 0.9

    check = check_model(LocalData(spec.prepare(raw), y), manifest, outputs)
    assert check.error < 0.2
    assert not check.hint
    assert check.description.startswith("of 100, the model is 0.1")


def test_nothing_is_said_without_samples_and_of_losses_that_it_cannot_judge(bundle, digits):
    manifest, outputs = digits
    assert check_model(LocalData(manifest.input.prepare(RAW[:0]), Y[:0]), manifest, outputs) is None
    assert check_unlabelled(manifest.input.prepare(RAW[:0]), manifest, outputs) is None


def test_a_large_network_is_asked_about_few_samples(bundle, digits):
    def of(flops):
        forward = msgspec.structs.replace(bundle.manifest.graphs["forward"], flops=flops)
        return msgspec.structs.replace(bundle.manifest, graphs={**bundle.manifest.graphs, "forward": forward})

    assert [len(evenly_spaced(10_000, of(flops))) for flops in (1_000, 200_000_000, 10**12)] == [300, 150, 40]
    assert evenly_spaced(3, of(10**12)).tolist() == [0, 1, 2]
    manifest, outputs = digits
    asked_about: list[int] = []

    def counted(x):
        asked_about.append(len(x))
        return outputs(x)

    check_of(manifest, counted, 16 - OTHER, MINE)
    assert 2 <= asked_about.count(300) <= 3  # as they are, inverted, and at most one more
    assert sum(asked_about) <= 300 * 3 + 40 * 6
    asked_about.clear()
    check_of(manifest, counted, OTHER[MINE < 2], MINE[MINE < 2])
    assert len(asked_about) == 1  # nothing would be better


def test_a_class_that_is_mostly_taken_for_another_is_named_with_its_share():
    by_class = (
        ClassCheck("cat", 20, 0.95, "dog"),
        ClassCheck("dog", 20, 0.1, "cat"),
        ClassCheck("ant", 2, 0.0),
    )
    check = ModelCheck(42, right=0.5, by_class=by_class)
    assert check.doubtful == (by_class[1],)  # of two ants nothing can be said
    assert replace(check, hint="with labels one lower ..").doubtful == ()
    assert replace(check, guessing=True).doubtful == ()
