"""The covariance within classes, from second moments or from the class means of devices alone."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import class_statistics, closed_form
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.statistics.covariance import (
    MeanScatter,
    RoundMeans,
    identity_weight,
    pooled_scatter,
    within_classes,
)

LABELS, WIDTH = 3, 4
RNG = np.random.default_rng(5)
MEANS, ROOT = 3 * RNG.normal(size=(LABELS, WIDTH)), RNG.normal(size=(WIDTH, WIDTH))


def device(rng, count=30):
    y = rng.integers(0, LABELS, count)
    x = (MEANS[y] + rng.normal(size=(count, WIDTH)) @ ROOT).astype(np.float32)
    return class_statistics.measure_statistics(x, y, LABELS, 1)


def scatter_of(devices):
    means = RoundMeans(LABELS, WIDTH)
    for each in devices:
        means.add(each.sums)
    return means.scatter()


def test_the_scatter_is_that_of_means_times_their_samples_by_hand():
    """Class 0: means 1 and 4 of 2 and 1 samples, about 2; class 1 of one device adds nothing."""
    means = RoundMeans(2, 1)
    means.add(ClassSums(np.array([[2.0], [7.0]]), np.array([2, 1])))
    means.add(ClassSums(np.array([[4.0], [0.0]]), np.array([1, 0])))
    scatter = means.scatter()
    assert scatter.squares[0, 0] == pytest.approx(2 * 1 + 1 * 4)
    assert scatter.free == 1


def test_the_scatter_of_many_means_estimates_the_covariance_of_samples():
    rng = np.random.default_rng(0)
    scatter = scatter_of([device(rng) for _ in range(2000)])
    truth = ROOT.T @ ROOT
    assert np.abs(scatter.squares / scatter.free - truth).max() < 0.1 * np.abs(truth).max()


def test_shrinking_falls_with_the_degrees_of_freedom():
    assert identity_weight(512, 0) == 1
    assert identity_weight(512, 256) == 0.5
    assert identity_weight(512, 1e6) == 0.1


def test_enough_second_moments_alone_give_the_covariance_bit_for_bit():
    rng = np.random.default_rng(1)
    devices = [device(rng) for _ in range(20)]
    total = devices[0]
    for each in devices[1:]:
        total = total.add(each)
    alone, both = within_classes(total), within_classes(total, scatter_of(devices))
    assert all(np.array_equal(a, b) for a, b in zip(alone, both, strict=True))


def test_few_second_moments_are_pooled_with_the_scatter_of_means():
    rng = np.random.default_rng(2)
    devices = [device(rng) for _ in range(4)]
    few = devices[0].decayed(0.2)  # 6 samples of 3 classes
    of_means = scatter_of(devices)
    scatter, free = pooled_scatter(few, of_means, WIDTH)
    assert free == pytest.approx(6 - 3 + of_means.free)
    np.testing.assert_allclose(scatter - of_means.squares, pooled_scatter(few, None, WIDTH)[0])


def test_a_sum_over_devices_is_one_mean():
    """As behind masks, and of a site."""
    rng = np.random.default_rng(3)
    devices = [device(rng) for _ in range(6)]
    groups = [devices[0].add(devices[1]).add(devices[2]), devices[3].add(devices[4]).add(devices[5])]
    assert scatter_of(groups).free == LABELS
    assert scatter_of(devices).free == 5 * LABELS


def test_the_head_of_many_means_is_better_than_the_nearest_mean_and_of_few_no_worse():
    rng = np.random.default_rng(4)
    y = rng.integers(0, LABELS, 4000)
    stretched = ROOT + np.outer(np.ones(WIDTH), [4, 0, 0, 0])
    centres = MEANS * [0.3, 1, 1, 1] * 0.5
    draw = lambda y: (centres[y] + rng.normal(size=(len(y), WIDTH)) @ stretched).astype(np.float32)  # noqa: E731
    x = draw(y)
    right = {}
    for count in (2, 100):
        sent = []
        for _ in range(count):
            own = rng.integers(0, LABELS, 40)
            sent.append(class_statistics.measure_statistics(draw(own), own, LABELS, 1))
        sums = sent[0].sums
        for each in sent[1:]:
            sums = sums + each.sums
        pool = replace(Statistics.none(LABELS, WIDTH), sums=sums)
        for name, of_means in (("nearest", MeanScatter.none(WIDTH)), ("scatter", scatter_of(sent))):
            weights, bias = closed_form.solve_head(pool, of_means)
            right[count, name] = ((x @ weights.T + bias).argmax(axis=1) == y).mean()
    assert right[100, "scatter"] > right[100, "nearest"] + 0.05
    assert right[2, "scatter"] > right[2, "nearest"] - 0.02


@pytest.mark.parametrize("seed", range(3))
def test_rounded_means_of_one_device_leave_no_direction_without_variance(seed):
    """Features after a ReLU have means far larger than their spread, of which int8 leaves a part."""
    rng, labels, width = np.random.default_rng(seed), 10, 48
    common, centres = rng.uniform(5, 60, width), rng.normal(size=(labels, width))
    mixing = rng.normal(size=(width, width)) * np.logspace(0, -1.5, width)

    def draw(y):
        return (common + centres[y] + rng.normal(size=(len(y), width)) @ mixing).astype(np.float32)

    total = Statistics.none(labels, width)
    for number in range(10):
        y = np.repeat([number, (number + 1) % labels, (number + 2) % labels], [250, 80, 20])
        measured = class_statistics.measure_statistics(draw(y), y, labels, 1)
        settings = ClassStatistics(numbers="int8", moments=number == 0)
        sent = class_statistics.encode(measured, settings)
        total = total.add(class_statistics.decode(sent, (labels, width)))
    covariance, _ = within_classes(total)
    assert np.linalg.eigvalsh(pooled_scatter(total, None, width)[0])[0] < 0
    assert np.linalg.eigvalsh(covariance)[0] > 0
    y = rng.integers(0, labels, 2000)
    weights, bias = closed_form.solve_head(total)
    right = ((draw(y) @ weights.T + bias).argmax(axis=1) == y).mean()
    means = total.sums.means()
    nearest = ((draw(y) @ means.T - np.square(means).sum(axis=1) / 2).argmax(axis=1) == y).mean()
    assert right > nearest
