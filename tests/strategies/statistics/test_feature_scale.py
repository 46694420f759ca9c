from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.manifest import Parameter
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.statistics.class_statistics import Statistics, StatisticsFile, StatisticsSource
from device_runtime.strategies.statistics.class_sums import ClassSums, scale_by, scale_in

SCALE = "head.scale"


@pytest.fixture
def scaled(round_model):
    """The digits network with a scale of 2 for each of its 64 features."""
    manifest = round_model.manifest
    more = Parameter(SCALE, (64,), "float32", "head", ())
    manifest = msgspec.structs.replace(manifest, parameters=(*manifest.parameters, more))
    weights = {**round_model.weights, SCALE: np.full(64, 2, np.float32)}
    return replace(round_model, manifest=manifest, weights=weights)


def sums(features: np.ndarray, counts: list[int]) -> StatisticsFile:
    """What one device sent, of classes whose means are these."""
    file, nothing = StatisticsFile(10, 64), Statistics.none(10, 64)
    own = ClassSums(features * np.array(counts)[:, None], np.array(counts))
    file.add(replace(nothing, sums=own), StatisticsSource(float(sum(counts))))
    return file


def means(classes: int = 10) -> np.ndarray:
    return np.abs(np.random.default_rng(1).standard_normal((classes, 64))) * np.geomspace(0.1, 10, 64)


def test_a_scale_is_by_the_mean_square_over_classes():
    """Mean squares 5, 20 and 0: their average is 25 / 3, a tenth of that is added to each."""
    class_means = np.array([[1.0, 2.0, 0.0], [3.0, 6.0, 0.0]])
    scale = scale_by(class_means)
    assert scale[0] / scale[1] == pytest.approx(((20 + 2.5 / 3) / (5 + 2.5 / 3)) ** 0.5)
    assert scale[2] / scale[1] == pytest.approx(((20 + 2.5 / 3) / (2.5 / 3)) ** 0.5)
    assert np.square(class_means * scale).sum() == pytest.approx(np.square(class_means).sum())


def test_features_that_are_0_everywhere_stay_as_they_are():
    assert scale_by(np.zeros((3, 4))).tolist() == [1.0] * 4


def test_a_bundle_without_a_scale_has_1(round_model):
    assert scale_in(round_model.manifest, round_model.weights).tolist() == [1.0] * 64


def test_class_means_set_the_scale_and_their_rows_are_of_scaled_features(scaled):
    raw = means()
    effect = ClassMeans().finish(sums(2 * raw, [3] * 10), scaled)  # devices saw them times 2
    np.testing.assert_allclose(effect.assigned[SCALE], scale_by(raw), rtol=1e-6)
    expected = raw * scale_by(raw)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(effect.assigned["head.weight"], expected, rtol=1e-5)
    np.testing.assert_array_equal(effect.served[SCALE], effect.assigned[SCALE])


def test_means_of_a_later_round_are_gathered_whatever_the_scale_was(scaled):
    raw, kind = means(), ClassMeans(gathered=True)
    first = kind.finish(sums(2 * raw, [3] * 10), scaled)
    weights = {**scaled.weights, **first.assigned}
    later = replace(scaled, weights=weights, memory=first.memory)
    second = kind.finish(sums(first.assigned[SCALE] * raw, [5] * 10), later)
    np.testing.assert_allclose(second.assigned[SCALE], first.assigned[SCALE], rtol=1e-5)
    np.testing.assert_allclose(second.assigned["head.weight"], first.assigned["head.weight"], rtol=1e-4)


def test_a_class_that_nobody_has_is_told_as_it_was(scaled):
    raw = means()
    effect = ClassMeans().finish(sums(2 * raw, [3] * 9 + [0]), scaled)
    x = np.abs(np.random.default_rng(2).standard_normal(64))
    before = scaled.weights["head.weight"][9] @ (2 * x)
    after = effect.assigned["head.weight"][9] @ (effect.assigned[SCALE] * x)
    assert after == pytest.approx(before, rel=1e-4)


def test_a_head_trained_on_means_takes_them_in_the_scale_that_there_is(scaled, round_model):
    kind, raw = ClassMeans(head="trained"), means()
    here = kind.finish(sums(2 * raw, [3] * 10), scaled).mean.mean()
    plain = kind.finish(sums(2 * raw, [3] * 10), round_model).mean.mean()
    np.testing.assert_allclose(here["head.weight"], plain["head.weight"], rtol=1e-5, atol=1e-7)
    assert SCALE not in here
