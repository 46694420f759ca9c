import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.manifest import decode, encode
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec, metric_text, targets_of
from device_runtime.models.errors import BundleError, TensorError

HOUSES = targets_of("mse", ("price", "area"), mean=(100.0, 0.0), std=(20.0, 2.0))


def test_values_are_standardised_by_column_and_restored():
    raw = np.array([[120, 3], [60, -4]])
    y = HOUSES.prepare(raw)
    assert (y.dtype, y.tolist()) == (np.float32, [[1.0, 1.5], [-2.0, -2.0]])
    assert np.array_equal(HOUSES.restore(y), raw)
    assert np.array_equal(HOUSES.raw(y), raw)


def test_a_single_column_needs_no_axis():
    assert targets_of("mae", ("price",)).prepare(np.array([1.0, 2.0])).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("target", "raw", "message"),
    [
        (HOUSES, np.zeros((3, 1)), r"float64 \(3, 1\), expected numbers \(n, 2\): price, area"),
        (HOUSES, np.array([["a", "b"]]), "expected numbers"),
        (HOUSES, np.array([[1.0, np.nan]]), "1 targets are not finite"),
        (targets_of("bce", ("a",)), np.array([0.5]), "targets hold 0.5, expected 0 or 1"),
    ],
)
def test_targets_that_do_not_fit_are_refused_with_what_was_expected(target, raw, message):
    with pytest.raises(TensorError, match=message):
        target.prepare(raw)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "mean", "labels": ("a",)}, "no loss 'mean'; there are cross-entropy, mse,"),
        ({"loss": "bce", "labels": ("a",), "compared": "input"}, "loss 'bce' of input is none of"),
        ({"loss": "mse", "labels": ("a",), "compared": "words"}, "targets are 'words', expected one of"),
        ({"loss": "mse", "labels": ("a",), "mean": (1.0, 2.0)}, "2 values of mean, expected 1 or one per"),
        ({"loss": "mse", "labels": ("a",), "std": (0.0,)}, "std of the targets, or delta, is not above 0"),
        ({"loss": "bce", "labels": ("a",), "mean": (1.0,)}, "targets are flags: only values have a mean"),
        ({"loss": "huber", "labels": ("a",), "delta": -1.0}, "delta, is not above 0"),
    ],
)
def test_a_loss_that_does_not_fit_its_targets_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        targets_of(settings.pop("loss"), settings.pop("labels"), settings.pop("compared", ""), **settings)


def test_a_manifest_without_a_loss_has_cross_entropy_and_keeps_its_bytes(bundle):
    manifest = bundle.manifest
    assert manifest.target is CROSS_ENTROPY
    assert manifest.outputs == len(manifest.labels)
    assert b'"loss"' not in encode(manifest)
    assert encode(manifest) == (bundle.path / "manifest.json").read_bytes()


def test_a_loss_survives_the_manifest(bundle):
    changed = msgspec.structs.replace(bundle.manifest, loss=HOUSES)
    assert decode(encode(changed)).target == HOUSES
    other = encode(changed).replace(b'"compared": "values"', b'"compared": "tastes"')
    with pytest.raises(BundleError, match="manifest.json is not a manifest"):
        decode(other)


def test_only_cross_entropy_works_by_class():
    assert CROSS_ENTROPY.why_not_by_class == ""
    own = TargetSpec("focal", "classes", own=True)
    for target, text in ((HOUSES, "mse of price, area"), (own, "focal of classes")):
        expected = f"works by class, and the bundle's loss is {text}, not cross-entropy over classes"
        assert target.why_not_by_class == expected


def test_accuracies_are_shown_in_percent_and_other_metrics_as_numbers():
    assert metric_text("label accuracy", 0.875) == "87.5%"
    assert metric_text("R2", 0.875) == "0.875"
    assert metric_text("R2", float("nan")) == "-"
