"""Class statistics under a rule: what of those of liars counts in the head in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.strategies.interface.device_half import Late, Update
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import RULES, Robust, Screen
from device_runtime.strategies.robust.statistics import StatisticsOfDevices
from device_runtime.strategies.statistics import class_statistics, closed_form, kind_statistics
from device_runtime.strategies.statistics.class_statistics import Statistics

HOLDING = [rule for rule in RULES if rule != "none"]
CLASSES, WIDTH = 4, 6
MIDDLES = 3 * np.random.default_rng(1).normal(size=(CLASSES, WIDTH))


def samples(seed, count=40, classes=CLASSES):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    return MIDDLES[y] + rng.normal(size=(count, WIDTH)), y


def sums_of(x, y, moments=True):
    statistics = class_statistics.measure_statistics(x.astype(np.float32), y, CLASSES, 1)
    return class_statistics.decode(
        class_statistics.encode(statistics, ClassStatistics(moments=moments)), (CLASSES, WIDTH)
    )


def screened(tmp_path, sent, most=40.0):
    """`sent`: (device, statistics)s; what counts of each, and the notes."""
    notes: list[str] = []
    screen = StatisticsOfDevices(tmp_path, notes.append)
    for device, statistics in sent:
        screen.add(statistics, Update("full", {}, 40, 0.5, device=device))
    counted = [entry for entry, _ in screen.held(most)]
    screen.close()
    assert not list(tmp_path.iterdir())
    return counted, notes


def honest(count=7):
    return [(f"pi-{i}", sums_of(*samples(i))) for i in range(count)]


def pooled(counted):
    total = Statistics.none(CLASSES, WIDTH)
    for statistics in counted:
        total = total.add(statistics)
    return total


def accuracy(counted):
    weights, bias = closed_form.solve_head(pooled(counted))
    x, y = samples(99, 2000)
    return float(((x @ weights.T + bias).argmax(axis=1) == y).mean())


def longer(x, y):
    return 1000 * x, y


def flipped(x, y):
    return x, (y + 1) % CLASSES


def turned(x, y):
    return -10 * x, y


def test_honest_statistics_count_as_they_came(tmp_path):
    sent = honest()
    counted, notes = screened(tmp_path, sent)
    assert notes == []
    for entry, (_, other) in zip(counted, sent, strict=True):
        np.testing.assert_allclose(entry.sums.sums, other.sums.sums, rtol=1e-5)
        np.testing.assert_array_equal(entry.sums.counts, other.sums.counts)
        np.testing.assert_allclose(entry.moments, other.moments, rtol=1e-3, atol=1e-3 * other.moments.max())


@pytest.mark.parametrize("lie", [longer, flipped, turned])
def test_means_of_liars_are_left_out_and_the_note_says_whose(tmp_path, lie):
    liars = [(f"z-{i}", sums_of(*lie(*samples(20 + i)))) for i in range(2)]
    sent = honest() + liars
    counted, notes = screened(tmp_path, sent)
    assert "means of z-0, z-1 (class statistics) rejected, far from the others'" in notes[0]
    assert not any(statistics.sums.counts.any() for statistics in counted[-2:])
    best = accuracy([statistics for _, statistics in honest()])
    assert accuracy([statistics for _, statistics in sent]) < best - 0.01
    assert accuracy(counted) > best - 0.01


def test_a_class_mean_of_one_class_alone_is_left_out_alone(tmp_path):
    x, y = samples(20)
    x = np.where((y == 2)[:, None], x + 50, x)
    counted, notes = screened(tmp_path, [*honest(), ("z", sums_of(x, y))])
    assert [note.split(" (")[0] for note in notes] == ["means of z"]
    np.testing.assert_array_equal(counted[-1].sums.counts, [10, 10, 0, 10])


def test_a_class_that_few_devices_have_is_held_by_the_means_of_all(tmp_path):
    """Class 3 is with one device alone: as far out as other classes are it counts, further it does not."""
    others = [(f"pi-{i}", sums_of(*samples(i, classes=3))) for i in range(7)]
    x, y = samples(20)
    for times, counts in ((1, [10, 10, 10, 10]), (100, [10, 10, 10, 0])):
        shifted = np.where((y == 3)[:, None], times * x, x)
        counted, _ = screened(tmp_path, [*others, ("a", sums_of(shifted, y, moments=False))])
        np.testing.assert_array_equal(counted[-1].sums.counts, counts)


def test_a_device_counts_as_no_more_samples_than_the_median_device(tmp_path):
    counted, notes = screened(tmp_path, [*honest(), ("z", sums_of(*samples(20, 4000)))])
    assert notes == []
    assert counted[-1].sums.counts.sum() == pytest.approx(40)
    assert counted[-1].moment_sums.counts.sum() == pytest.approx(40)
    x, _ = samples(20, 4000)
    np.testing.assert_allclose(counted[-1].moments, x.T @ x / 100, rtol=0.01, atol=1)


def test_a_scatter_that_is_far_larger_than_others_is_left_out_of_the_covariance(tmp_path):
    x, y = samples(20, 400)
    wide = sums_of(MIDDLES[y] + 4 * (x - MIDDLES[y]), y)
    counted, notes = screened(tmp_path, [*honest(), ("z", wide)])
    assert notes == ["second moments of z (class statistics) rejected"]
    assert counted[-1].sums.counts.all()
    assert not counted[-1].moments.any()
    assert not counted[-1].moment_sums.counts.any()


def test_second_moments_that_no_samples_have_give_a_covariance_all_the_same(tmp_path):
    """Products of features at their bounds, with signs that contradict each other."""
    statistics = sums_of(*samples(20))
    signs = np.sign(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))
    signs = np.triu(signs, 1) + np.triu(signs, 1).T + np.eye(WIDTH)
    size = np.sqrt(np.outer(statistics.moments.diagonal(), statistics.moments.diagonal()))
    lie = Statistics(statistics.sums, statistics.moment_sums, signs * size)
    counted, _ = screened(tmp_path, [*honest(3), ("z", lie)])
    total = pooled(counted)
    within = total.moments - (total.moment_sums.sums.T / total.moment_sums.counts) @ total.moment_sums.sums
    assert np.linalg.eigvalsh(within).min() > 0


def test_of_a_device_the_latest_counts_and_of_two_devices_nothing_does(tmp_path):
    notes: list[str] = []
    screen = StatisticsOfDevices(tmp_path, notes.append)
    first, other = sums_of(*samples(0)), sums_of(*samples(1, 20))
    for i in range(3):
        screen.add(first, Update("full", {}, 40, 0.5, device=f"pi-{i}"))
    screen.add(other, Update("few-shot", {}, 40, 0.5, device="pi-0", late=Late(1, 7, 0.5)))
    assert [(statistics.sums.counts.sum(), late) for statistics, late in screen.held(40)] == [(40, None)] * 3
    counted, notes = screened(tmp_path, honest(2))
    assert counted == []
    assert notes == ["pi-0, pi-1 (class statistics) too few to detect false ones, rejected"]


def test_second_moments_of_two_devices_do_not_count(tmp_path):
    without = [(f"b-{i}", sums_of(*samples(i, 20), moments=False)) for i in range(5)]
    counted, notes = screened(tmp_path, [*honest(2), *without])
    assert notes == ["second moments of 2 devices too few to detect false ones, rejected"]
    assert not any(statistics.moments.any() for statistics in counted)
    assert all(statistics.sums.counts.all() for statistics in counted)


@pytest.mark.parametrize("rule", HOLDING)
def test_the_served_head_withstands_liars_under_every_rule_and_without_one(
    model, digits, run, round_model, tmp_path, rule
):
    """Three of nine: one sends statistics a thousand times as long, two have other labels."""
    settings = ClassStatistics()
    kind = kind_statistics.with_class_statistics(
        registry.make("full", {"epochs": 1, "lr": 0.01, "batch": 16}), settings
    )
    means = registry.make("class-means", {"head": "trained"})
    kinds = {"full": kind, "class-means": kind_statistics.with_class_statistics(means, settings)}
    features, order = model.features(digits.x), np.random.default_rng(0).permutation(len(digits))

    def served(name):
        with Screen(Folding(kinds, round_model), Robust(name), tmp_path) as screen:
            for i, part in enumerate(np.array_split(order, 9)):
                f, y = features[part], digits.y[part]
                if i > 5:
                    f, y = (1000 * f, y) if i == 6 else (f, 9 - y)
                sent = class_statistics.encode(
                    class_statistics.measure_statistics(f, y, 10, 1), ClassStatistics()
                )
                base = {spec.name: round_model.weights[spec.name] for spec in kind.expected(model.manifest)}
                update = Update("full", {**base, **sent}, len(part), 0.5)
                screen.add(update, float(len(part)), f"pi-{i}")
            return screen.merged()

    accuracies = {}
    for name in ("none", rule):
        merged, note = served(name)
        model.load(merged.served)
        accuracies[name] = (model.logits(digits.x).argmax(axis=1) == digits.y).mean()
    assert "means of pi-6, pi-7, pi-8 (class statistics) rejected" in note
    assert min(accuracies.values()) > 0.8


def test_held_out_samples_weigh_as_those_of_the_median_device_and_not_of_liars(tmp_path):
    """Devices have 40 samples; one says that it has 400 and held out 100, and one sends false means."""
    screen = StatisticsOfDevices(tmp_path, lambda _: None)
    sent = [(device, statistics, 40, [10, 6, 5]) for device, statistics in honest()]
    sent += [("large", sums_of(*samples(20, 400)), 400, [100, 0, 100])]
    sent += [("liar", sums_of(*longer(*samples(21))), 40, [10, 0, 10])]
    for device, statistics, count, right in sent:
        measured = replace(statistics, right=np.array(right, np.float64))
        screen.add(measured, Update("full", {}, count, 0.5, device=device))
    counted = [entry.right.tolist() for entry, _ in screen.held(40.0)]
    screen.close()
    assert counted == [[10, 6, 5]] * 7 + [[10, 0, 10], [0, 0, 0]]
