"""Bounds on what one device can do to the pool: lies are bounded, honest statistics stay bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.poisoned_statistics import LIES, with_means
from device_runtime.models.bundles.targets import targets_of
from device_runtime.strategies.statistics import bounds, class_statistics
from device_runtime.strategies.statistics.bounds import StatisticsBounds, no_rounds
from device_runtime.strategies.statistics.class_statistics import (
    Statistics,
    StatisticsFile,
    StatisticsSource,
    measure_statistics,
)
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.statistics.closed_form import solve_head
from device_runtime.strategies.statistics.columns import JointMoments, ridge

LABELS, WIDTH = 5, 12
CENTRES = 2.5 * np.random.default_rng(0).normal(size=(LABELS, WIDTH))
NONE = Statistics.none(LABELS, WIDTH)


def drawn(seed, labels=range(LABELS), count=60):
    """Features of so many samples, and their labels."""
    rng = np.random.default_rng([1, seed])
    y = rng.choice(list(labels), count)
    return (CENTRES[y] + rng.normal(size=(count, WIDTH))).astype(np.float32), y


def honest(seed, labels=range(LABELS), count=60):
    return measure_statistics(*drawn(seed, labels, count), LABELS, 1)


def round_of(devices, pool=NONE, rounds=None, late=0):
    """The statistics of a round within the bounds, and the bounds."""
    file = StatisticsFile(LABELS, WIDTH)
    for device in devices:
        size = float(device.sums.counts.sum()) / device.stands_for
        file.add(device, StatisticsSource(size, late, device.stands_for))
    limits = StatisticsBounds(file, pool, no_rounds() if rounds is None else rounds)
    return list(limits.bounded()), limits


def pooled(devices):
    total = NONE
    for device in devices:
        total = total.add(device)
    return total


def accuracy(pool):
    weights, bias = solve_head(pool)
    x, y = drawn(1000, count=1000)
    return float(((x @ weights.T + bias).argmax(axis=1) == y).mean())


def same(left, other):
    pairs = [(left.sums, other.sums), (left.moment_sums, other.moment_sums)]
    return np.array_equal(left.moments, other.moments) and all(
        np.array_equal(a.sums, b.sums)
        and np.array_equal(a.counts, b.counts)
        and a.counts.dtype == b.counts.dtype
        for a, b in pairs
    )


@pytest.mark.parametrize("labels", [[range(LABELS)], [[0, 1], [1, 2], [2, 3], [3, 0]], [[0], [1], [2], [3]]])
def test_honest_statistics_stay_bit_for_bit_also_of_a_class_that_one_device_alone_holds(labels):
    sent = [honest(i, labels[i % len(labels)]) for i in range(8)] + [honest(9, [0, 4], 20)]
    within, limits = round_of(sent)
    assert all(same(left, other) for left, other in zip(sent, within, strict=True))
    assert limits.note == ""


@pytest.mark.parametrize("size", [1, 10, 10_000])
@pytest.mark.parametrize("name", LIES)
def test_one_liar_of_ten_moves_the_head_by_less_than_two_points(name, size):
    sent = [honest(i) for i in range(10)]
    lie = LIES[name](sent[0], np.random.default_rng(0))
    times = size * sent[0].sums.counts.sum() / lie.sums.counts.sum()
    lie = lie.decayed(times)
    before = accuracy(pooled(round_of(sent)[0]))
    within, limits = round_of([lie, *sent[1:]])
    assert before - accuracy(pooled(within)) < 0.02
    assert all(same(left, other) for left, other in zip(sent[1:], within[1:], strict=True))
    if size > 10 or name == "huge means":
        assert limits.note.startswith("statistics far from the others' are bounded: ")


@pytest.mark.parametrize("name", LIES)
def test_a_liar_in_the_first_round_of_uneven_devices_moves_the_head_by_less_than_two_points(
    name, monkeypatch
):
    """There is no pool, and a device may have most samples of a class."""
    monkeypatch.setitem(globals(), "CENTRES", 0.4 * CENTRES)
    rng = np.random.default_rng(2)
    sent = [honest(i, rng.choice(LABELS, 140, p=rng.dirichlet([0.3] * LABELS)), 140) for i in range(10)]
    within, _ = round_of(sent)
    assert all(same(left, other) for left, other in zip(sent, within, strict=True))
    before = accuracy(pooled(within))
    for size in (10, 7000):
        for liar in range(0, 10, 2):
            lie = LIES[name](sent[liar], rng)
            lie = lie.decayed(size * 140 / lie.sums.counts.sum())
            within, _ = round_of([*sent[:liar], lie, *sent[liar + 1 :]])
            assert before - accuracy(pooled(within)) < 0.02, (size, liar)


def test_nothing_of_a_device_counts_whose_means_are_mostly_too_far():
    sent = [honest(i) for i in range(9)]
    within, limits = round_of([LIES["huge means"](sent[0], np.random.default_rng(0)), *sent[1:]])
    assert same(within[0], NONE)
    assert limits.note.endswith("all (they do not count) of 1 device")


def test_the_largest_size_is_three_times_the_upper_quartile():
    """Of 10, 20, 30, 40 and a million the upper quartile is 40."""
    assert bounds.largest_size([10, 20, 1_000_000, 30, 40], no_rounds()) == 3 * 40
    assert bounds.largest_size([10, 1_000_000], no_rounds()) == np.inf
    assert bounds.largest_size([0] * 50, no_rounds()) == 3
    assert bounds.largest_size([1_000_000], np.array([[40.0, -1, -1, -1]] * 3)) == 3 * 40
    sent = [honest(i) for i in range(5)]
    within, _ = round_of([*sent, replace(sent[0], sums=sent[0].sums.weighted(1e4))])
    assert within[-1].sums.counts.sum() == pytest.approx(180)


def test_a_class_that_others_hold_little_of_counts_for_as_much_as_a_usual_device_has():
    """Class 0 of two devices is 5 samples together: a third may have 60, as many as in all, not 180."""
    rest = [honest(i, [1, 2, 3, 4]) for i in range(6)]
    few = [
        pooled([honest(10, [0], 2), honest(11, [1], 58)]),
        pooled([honest(12, [0], 3), honest(13, [2], 57)]),
    ]
    of_one_class = honest(14, [0])
    within, limits = round_of([*rest, *few, of_one_class])
    assert same(within[-1], of_one_class)
    assert limits.note == ""
    within, limits = round_of([*rest, *few, honest(14, [0], 180)])
    assert [device.sums.counts[0] for device in within[6:]] == [2, 3, pytest.approx(60)]
    assert all(same(device, other) for device, other in zip(rest + few, within, strict=False))
    assert limits.note.endswith("sizes of 1 device")


def test_a_device_that_measured_few_of_its_samples_is_as_noisy_as_these_are():
    """One sample or two of each class stand for 600: the same bits, and a mean of 600 that far is moved."""
    few = honest(9, count=8).standing_for(75)
    sent = [honest(i) for i in range(8)]
    within, limits = round_of([*sent, few])
    assert same(within[-1], few)
    assert limits.note == ""
    assert not same(round_of([*sent, replace(few, stands_for=1.0)])[0][-1], few)


def test_a_far_mean_is_moved_to_the_bound_and_its_scatter_stays():
    sent = [honest(i) for i in range(9)]
    means = bounds.class_means(sent[0].sums)
    means[2] += 1000
    counts = sent[0].sums.counts
    sums = ClassSums(means * counts[:, None], counts)
    scatter = bounds._scatter(sent[0])
    lie = Statistics(sums, sums, scatter + (means * counts[:, None]).T @ means)
    within, limits = round_of([lie, *sent[1:]])
    moved = bounds.class_means(within[0].sums)
    np.testing.assert_allclose(np.delete(moved, 2, axis=0), np.delete(means, 2, axis=0), rtol=1e-9)
    assert np.linalg.norm(moved[2] - CENTRES[2]) < 9
    np.testing.assert_allclose(bounds._scatter(within[0]), scatter, atol=1e-2)
    assert limits.note.endswith("class means of 1 device")


def test_scatter_in_one_direction_is_bounded_there_alone():
    sent = [honest(i) for i in range(9)]
    axis = np.eye(WIDTH)[3]
    count = sent[0].sums.counts.sum()
    lie = replace(sent[0], moments=sent[0].moments + WIDTH * count * np.outer(axis, axis))
    within, _ = round_of([lie, *sent[1:]])
    got, true = (bounds._scatter(device) / count for device in (within[0], sent[0]))
    most = bounds.SCATTER * (1 + np.sqrt(WIDTH / count)) ** 2
    assert 1 < got[3, 3] < 1.5 * most
    np.testing.assert_allclose(np.delete(np.diag(got), 3), np.delete(np.diag(true), 3), rtol=0.5)


@pytest.mark.parametrize("factor", [0, 1e-3, 10, 1e6])
def test_scatter_of_an_unlikely_size_does_not_count_and_its_means_do(factor):
    sent = [honest(i) for i in range(9)]
    scatter = bounds._scatter(sent[0])
    lie = replace(sent[0], moments=sent[0].moments + (factor - 1) * scatter)
    within, limits = round_of([lie, *sent[1:]])
    assert same(within[0], replace(sent[0], moment_sums=NONE.moment_sums, moments=NONE.moments))
    assert limits.note.endswith("second moments of 1 device")
    before, after = (accuracy(pooled(devices)) for devices in (sent, within))
    assert before - after < 0.01


def test_a_direction_that_varies_a_little_too_much_is_bounded_without_a_note():
    sent = [honest(i) for i in range(9)]
    count, axis = sent[0].sums.counts.sum(), np.eye(WIDTH)[3]
    most = bounds.SCATTER * (1 + np.sqrt(WIDTH / count)) ** 2
    wide = replace(sent[0], moments=sent[0].moments + 1.2 * most * count * np.outer(axis, axis))
    within, limits = round_of([wide, *sent[1:]])
    assert within[0] is not wide
    assert limits.note == ""


def test_a_class_of_one_device_does_not_count_if_its_other_means_are_mostly_far():
    sent = [honest(i, [0, 1, 2, 3]) for i in range(9)]
    odd = honest(9)
    shifted = LIES["labels swapped"](odd, np.random.default_rng(0))
    assert round_of([*sent, odd])[0][-1].sums.counts[4] > 0
    assert round_of([*sent, shifted])[0][-1].sums.counts[4] == 0


def test_a_device_alone_in_a_round_is_compared_with_the_pool():
    within, limits = round_of([honest(i) for i in range(9)])
    pool, rounds = pooled(within), limits.rounds
    within, limits = round_of([honest(i) for i in range(9, 18)], pool, rounds)
    pool, rounds = pool.decayed(0.8).add(pooled(within)), limits.rounds
    assert same(round_of([honest(20)], pool, rounds)[0][0], honest(20))
    before = accuracy(pool.decayed(0.8).add(honest(20)))
    for name, lie in LIES.items():
        false = lie(honest(20), np.random.default_rng(0))
        false = Statistics(
            *(sums.weighted(1e4) for sums in (false.sums, false.moment_sums)), 1e4 * false.moments
        )
        [bounded], _ = round_of([false], pool, rounds)
        assert before - accuracy(pool.decayed(0.8).add(bounded)) < 0.02, name


def test_what_is_remembered_of_rounds_is_finite_and_short():
    rounds = no_rounds()
    for number in range(12):
        _, limits = round_of([honest(number)] if number % 2 else [honest(i) for i in range(4)], rounds=rounds)
        rounds = limits.rounds
    assert rounds.shape == (bounds.ROUNDS, bounds.FIGURES)
    assert np.isfinite(rounds).all()


def test_statistics_are_read_back_bit_for_bit_from_a_file_too(monkeypatch, tmp_path):
    monkeypatch.setattr(class_statistics, "IN_MEMORY", 1)
    sent = [honest(0), honest(1, [2]), replace(honest(2), moment_sums=NONE.moment_sums, moments=NONE.moments)]
    sent.append(replace(honest(3), sums=honest(3).sums.weighted(0.3), right=np.array([3.0, 2.0, 1.0])))
    file = StatisticsFile(LABELS, WIDTH)
    file.keep_in(tmp_path)
    for device in sent:
        file.add(device, StatisticsSource(1.0))
    for _ in range(2):
        assert all(same(left, other) for left, other in zip(sent, file, strict=True))
    np.testing.assert_array_equal(file.read(3).right, [3, 2, 1])


def test_one_device_does_not_choose_the_head_by_its_held_out_samples():
    """Of 10 samples each, the trained head leads by -1, 0, 1 and 2; a liar says 10 of 10."""
    leads = [-1, 0, 1, 2]
    sent = [replace(honest(i), right=np.array([10.0, 5, 5 + lead])) for i, lead in enumerate(leads)]
    liar = replace(honest(9), right=np.array([10.0, 0, 10]))
    within, _ = round_of([*sent, liar])
    assert [device.right[2] - device.right[1] for device in within] == [0, 0, 1, 2, 2]
    assert [device.right[0] for device in within] == [10] * 5


def regression_round():
    """Statistics of features and two targets by stratum of thirty devices; eight hold the highest tenth."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 12))
    y = np.tanh(x @ rng.normal(size=(12, 16)) / 2) @ rng.normal(size=(16, 2))
    y = ((y - y.mean(axis=0)) / y.std(axis=0)).astype(np.float32)
    f = y @ rng.normal(size=(2, 6)) + 0.1 * np.tanh(x @ rng.normal(size=(12, 6)))
    z, tenths = np.hstack([f, y]).astype(np.float32), np.argsort(np.argsort(y[:, 0])) // 400
    sent = []
    for device in range(30):
        shares = rng.dirichlet([0.3] * 10) if device < 22 else np.eye(10)[9]
        rows = rng.choice(4000, 100, p=shares[tenths] / shares[tenths].sum())
        strata = targets_of("mse", ["a", "b"]).strata(y[rows], y[rows])
        sent.append(measure_statistics(z[rows], strata, 10, 2))
    return sent, z


def bounded_round(sent, strata=True):
    file = StatisticsFile(10, 8)
    for device in sent:
        file.add(device, StatisticsSource(float(device.sums.counts.sum())))
    limits = StatisticsBounds(file, Statistics.none(10, 8), no_rounds(), strata)
    return list(limits.bounded()), limits.note


def r2(devices, z):
    total = Statistics.none(10, 8)
    for device in devices:
        total = total.add(device)
    weights, bias = ridge(JointMoments.of(total, None, 2), 2)
    return 1 - float(np.square(z[:, 6:] - z[:, :6] @ weights.T - bias).mean() / z[:, 6:].var())


def test_devices_that_hold_a_region_of_the_targets_count_bit_for_bit():
    sent, _ = regression_round()
    within, note = bounded_round(sent)
    assert all(same(left, other) for left, other in zip(sent, within, strict=True))
    assert note == ""
    assert "all (they do not count)" in bounded_round(sent, strata=False)[1]


def test_one_device_of_three_and_two_of_eight_do_not_choose_the_spread_of_strata():
    assert bounds._quartile([1, 1e6, 2], "lower") == 2
    assert bounds._quartile([1, 2, 3, 4, 5, 6, 1e6, 1e6], "lower") == 6
    assert bounds._quartile([1, 2], "lower") == np.inf


def reversed_strata(means, present):
    means[present] = means[present[::-1]]
    return means


@pytest.mark.parametrize("liar", [0, 4, 25])
@pytest.mark.parametrize(
    "lie",
    [lambda means, _: 10 * means, lambda means, _: means * np.repeat([1, 10], [6, 2]), reversed_strata],
    ids=["ten times", "targets ten times", "means of another stratum"],
)
def test_means_of_strata_ten_times_as_large_or_of_another_stratum_are_bounded(lie, liar):
    sent, z = regression_round()
    before = r2(sent, z)
    means = lie(bounds.class_means(sent[liar].sums), sent[liar].sums.present)
    sent[liar] = with_means(sent[liar], means)
    within, note = bounded_round(sent)
    assert not same(within[liar], sent[liar])
    assert note
    assert before - r2(within, z) < 0.02
