"""Centres of class means: the noise of their distances, the spread beyond it, and who may choose them."""

import numpy as np
import pytest

from device_runtime.strategies.statistics.centres import (
    Metric,
    centres_of,
    distances_to,
    upper_quartile,
    weighted_median,
)
from device_runtime.strategies.statistics.class_statistics import (
    Statistics,
    StatisticsFile,
    StatisticsSource,
    measure_statistics,
)

LABELS, WIDTH = 4, 16
NONE = Statistics.none(LABELS, WIDTH)
METRIC = Metric(np.eye(WIDTH), float(WIDTH))
"""Of features whose variance is 1 in every direction."""


def device(seed, counts=(30, 30, 30, 30), spread=0.0):
    """Statistics of a device whose class means are this far from those of all, in the mean."""
    rng = np.random.default_rng([2, seed])
    y = np.repeat(np.arange(LABELS), counts)
    shift = spread / np.sqrt(WIDTH) * rng.normal(size=(LABELS, WIDTH))
    means = 5 * np.eye(LABELS, WIDTH) + shift
    features = means[y] + rng.normal(size=(len(y), WIDTH))
    return measure_statistics(features.astype(np.float32), y, LABELS, 1)


def filed(devices):
    file = StatisticsFile(LABELS, WIDTH)
    for statistics in devices:
        file.add(statistics, StatisticsSource(float(statistics.sums.counts.sum())))
    return file


def distances_of(devices):
    file = filed(devices)
    return distances_to(centres_of(file, NONE), file, NONE, iter([METRIC] * len(devices)))


def test_an_upper_quartile_is_numpys_to_the_bit():
    values = np.random.default_rng(3).lognormal(size=60)
    for n in range(1, 61):
        assert upper_quartile(values[:n]) == np.quantile(values[:n], 0.75)
        assert upper_quartile(values[:n], lower=True) == np.quantile(values[:n], 0.75, method="lower")


def test_the_median_of_equal_weights_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=(6, 5))
    for n in range(1, 7):
        np.testing.assert_allclose(weighted_median(values[:n], np.ones(n)), np.median(values[:n], axis=0))


def test_a_weight_counts_as_so_many_values():
    values = np.array([[1.0], [2.0], [7.0]])
    assert weighted_median(values, np.array([1.0, 1, 3])) == 7
    assert weighted_median(values, np.array([1.0, 1, 2])) == 4.5
    assert weighted_median(values, np.array([3.0, 1, 1])) == 1


@pytest.mark.parametrize("count", [2, 10, 40])
def test_distances_of_devices_that_are_alike_are_what_samples_alone_make(count):
    distances = distances_of([device(i, (count, count, 3, 3 * count)) for i in range(20)])
    ratios = np.stack([distance.squares / (distance.sample * distance.noise) for distance in distances])
    assert 0.75 < ratios.mean() < 1.1
    assert ratios.max() < 2.5


def test_the_spread_is_that_of_the_devices_without_the_noise_of_their_samples():
    alike = [distance.spread for distance in distances_of([device(i, (5, 10, 20, 90)) for i in range(20)])]
    apart = [
        distance.spread for distance in distances_of([device(i, (5, 10, 20, 90), 3.0) for i in range(20)])
    ]
    assert np.median(alike) < 0.3
    assert np.median(apart) == pytest.approx(3, rel=0.15)


def test_no_device_outweighs_two_others_however_many_samples_it_claims():
    others = [device(i, (20 + i, 30, 30, 30)) for i in range(2)]
    liar = device(9).standing_for(1e6)
    far = Statistics(liar.sums.times(np.full(WIDTH, -50.0)), NONE.moment_sums, NONE.moments)
    centre = centres_of(filed([*others, far]), NONE).means[0]
    lowest, highest = (
        pick([device_.sums.sums[0] / device_.sums.counts[0] for device_ in others]) for pick in PICKS
    )
    assert ((lowest - 1e-6 <= centre) & (centre <= highest + 1e-6)).all()


PICKS = (lambda rows: np.min(rows, axis=0), lambda rows: np.max(rows, axis=0))


@pytest.mark.parametrize("first", [True, False])
def test_of_two_devices_that_hold_a_class_the_one_which_shares_more_classes_is_the_centre(first):
    """A device that says that all of its samples are of one class, at their middle, shares no other class."""
    rest = [device(i, (0, 30, 30, 30)) for i in range(3)]
    true = device(8)
    middle = true.sums.sums.sum(axis=0) / true.sums.counts.sum()
    y = np.zeros(120, np.int64)
    lie = measure_statistics(np.tile(middle, (120, 1)).astype(np.float32), y, LABELS, 1)
    pair = [true, lie] if first else [lie, true]
    centre = centres_of(filed([*rest, *pair]), NONE).means[0]
    np.testing.assert_allclose(centre, true.sums.sums[0] / true.sums.counts[0], rtol=1e-5)
