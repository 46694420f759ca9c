"""What a device sends of its classes beside an update, and what of that is believed."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import class_statistics, kind_statistics
from device_runtime.strategies.statistics.class_statistics import (
    MOMENT_ROWS,
    MOMENTS,
    ROWS,
    SPREAD,
    Statistics,
)
from device_runtime.strategies.statistics.class_sums import ROW
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.training.workload import workload

PROFILE = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
SHORT = {
    "full": {"epochs": 1},
    "entropy-subset": {"epochs": 1, "shares": [0.5]},
    "peft": {"epochs": 1, "tunable": "head"},
    "few-shot": {"epochs": 1},
    "zeroth-order": {},
}


def kind(name, **statistics):
    return kind_statistics.with_class_statistics(
        registry.make(name, SHORT.get(name)), ClassStatistics(**statistics)
    )


@pytest.fixture
def sent(model, digits, run):
    """The class statistics of a full update of all digits."""
    update = kind_statistics.train(kind("full"), model, digits, run())
    return dict(class_statistics.split_statistics(update.tensors)[1])


SHAPE = (10, 64)
"""Of the sums: digits, and features of the shipped bundle."""


def begin(rows):
    """Labels, counts and scales, to read and to change."""
    assert rows.flags.c_contiguous
    return np.ndarray(len(rows), ROW, rows, strides=rows.strides[:1])


def counted(update):
    return class_statistics.decode(update.tensors, SHAPE).sums.counts


def exact(features, y, smallest=1):
    return class_statistics.measure_statistics(features.astype(np.float32), y, 10, smallest)


@pytest.mark.parametrize("partition", ["one device", "unequal", "by class", "single sample"])
def test_statistics_add_up_to_those_of_all_samples_for_any_partition(model, digits, partitions, partition):
    features = model.features(digits.x)
    total = Statistics.none(10, features.shape[1])
    for data in partitions[partition]:
        total = total.add(exact(model.features(data.x), data.y))
    np.testing.assert_array_equal(total.sums.counts, np.bincount(digits.y))
    np.testing.assert_allclose(total.sums.sums[4], features[digits.y == 4].sum(axis=0), rtol=1e-4)
    f = features.astype(np.float64)
    np.testing.assert_allclose(total.moments, f.T @ f, rtol=1e-3, atol=1e-3 * np.abs(f.T @ f).max())


@pytest.mark.parametrize(("numbers", "step"), [("float16", 2.0**-11), ("int8", 1 / 254)])
def test_what_is_read_is_what_was_written_to_rounding(model, digits, numbers, step):
    statistics = exact(model.features(digits.x), digits.y, smallest=20)
    read = class_statistics.decode(
        class_statistics.encode(statistics, ClassStatistics(numbers=numbers)), SHAPE
    )
    np.testing.assert_array_equal(read.sums.counts, statistics.sums.counts)
    assert 0 < np.count_nonzero(statistics.sums.counts) <= 10
    for label in statistics.sums.present:
        row = statistics.sums.sums[label]
        assert np.abs(read.sums.sums[label] - row).max() <= 1.01 * step * np.abs(row).max()
    np.testing.assert_allclose(
        read.moments, statistics.moments, rtol=0, atol=2.0**-11 * 1.01 * np.abs(statistics.moments).max()
    )
    np.testing.assert_array_equal(read.moments, read.moments.T)


def test_large_features_do_not_overflow(model, digits):
    """A sum of squares of features of 3,000 is far above float16's 65,504."""
    statistics = exact(1e3 * model.features(digits.x), digits.y)
    sent = class_statistics.encode(statistics, ClassStatistics())
    assert all(np.isfinite(value).all() for value in sent.values())
    assert class_statistics.rejection_reason(sent, 240, 1, SHAPE) == ""


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("numbers", ["float16", "int8"])
def test_an_update_and_its_statistics_are_as_expected_believed_and_as_large_as_predicted(
    model, digits, run, name, numbers
):
    strategy = kind(name, numbers=numbers)
    full_update = kind_statistics.train(strategy, model, digits, run())
    tensors.check(full_update.tensors, kind_statistics.expected(strategy, model.manifest))
    update, statistics_ = class_statistics.split_statistics(full_update.tensors)
    assert update.keys() == strategy.train(model, digits, run()).tensors.keys()
    assert (
        kind_statistics.rejection_reason(
            strategy.variants()[0], statistics_, full_update.num_examples, model.manifest
        )
        == ""
    )
    assert MOMENTS in statistics_
    cost = kind_statistics.cost(strategy, workload(model.manifest, digits.class_counts(10)), PROFILE)
    assert cost.bytes_up == pytest.approx(len(tensors.encode(full_update.tensors)) + 120, rel=0.1)


def test_beside_scalars_the_mean_of_a_class_is_one_byte_a_feature_and_ten_more(model, digits, run):
    """Label 2, count 4, scale 4; before, three tensors with means in 16 bits took 460 bytes for one class."""
    strategy = kind("zeroth-order", moments=False)
    sevens = LocalData(digits.x[digits.y == 7], digits.y[digits.y == 7])
    update = kind_statistics.train(strategy, model, sevens, run())
    rows = update.tensors[ROWS]
    assert (rows.dtype, rows.shape) == (np.uint8, (1, 10 + 64))
    assert rows[0, :6].tolist() == [7, 0, len(sevens), 0, 0, 0]
    cost = kind_statistics.cost(strategy, workload(model.manifest, sevens.class_counts(10)), PROFILE)
    assert cost.bytes_up == 190 + 72 + 74


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[::-1], "it has rows of classes [9, 8"),
        (lambda rows: rows[[0, 0]], "it has rows of classes [0, 0], expected ascending, below 10"),
        (lambda rows: np.where(np.arange(74) == 1, np.uint8(1), rows), "expected ascending, below 10"),
        (lambda rows: np.where(np.arange(74) == 5, np.uint8(9), rows), "class counts sum to"),
    ],
)
def test_rows_that_no_device_writes_are_refused(model, digits, run, change, why):
    strategy = kind("zeroth-order", samples=0)
    rows = kind_statistics.train(strategy, model, digits, run()).tensors[ROWS]
    assert why in class_statistics.rejection_reason({ROWS: np.ascontiguousarray(change(rows))}, 240, 2, SHAPE)


@pytest.mark.parametrize("numbers", ["int8", "float16"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_mean_that_is_no_number_is_refused(model, digits, run, numbers, scale):
    rows = kind_statistics.train(kind("few-shot", numbers=numbers), model, digits, run()).tensors[ROWS]
    assert class_statistics.rejection_reason({ROWS: rows}, 240, 2, SHAPE) == ""
    begin(rows)["scale"][3] = scale
    assert "the mean of class 3 is" in class_statistics.rejection_reason({ROWS: rows}, 240, 2, SHAPE)
    begin(rows)["scale"][3] = 1
    rows[3, 10:] = 0xFF if numbers == "float16" else 1  # 0xFFFF is no number
    assert bool(class_statistics.rejection_reason({ROWS: rows}, 240, 2, SHAPE)) == (numbers == "float16")


def test_the_forward_pass_for_statistics_is_part_of_the_prediction(model, digits):
    load = workload(model.manifest, digits.class_counts(10))
    strategy = kind("full")
    own, with_them = strategy.cost(load, PROFILE), kind_statistics.cost(strategy, load, PROFILE)
    forward = model.manifest.graphs["forward"].flops
    moments = 2 * model.manifest.head.features**2
    assert with_them.flops - own.flops == pytest.approx(len(digits) * (forward + moments))
    assert with_them.energy_j > own.energy_j
    assert with_them.peak_memory_bytes > own.peak_memory_bytes
    assert with_them.bytes_down == own.bytes_down


def test_classes_of_few_samples_are_in_no_part_of_it(model, digits):
    features = model.features(digits.x)
    least = int(np.bincount(digits.y).max())
    statistics = exact(features, digits.y, smallest=least)
    present = np.flatnonzero(np.bincount(digits.y) >= least)
    np.testing.assert_array_equal(statistics.sums.present, present)
    f = features[np.isin(digits.y, present)].astype(np.float64)
    np.testing.assert_allclose(statistics.moments, f.T @ f)
    nothing = class_statistics.encode(exact(features, digits.y, 241), ClassStatistics(numbers="int8"))
    assert [len(nothing[name]) for name in (ROWS, MOMENTS, SPREAD)] == [0, 0, 0]
    assert class_statistics.rejection_reason(nothing, 240, 2, SHAPE) == ""


def test_a_device_that_trains_no_extractor_measures_no_more_samples_than_asked(model, digits, run):
    update = kind_statistics.train(kind("zeroth-order", samples=30), model, digits, run())
    assert 20 < counted(update).sum() <= 30
    every = kind_statistics.train(kind("zeroth-order", samples=0), model, digits, run())
    np.testing.assert_array_equal(counted(every), np.bincount(digits.y))


def test_few_shot_training_has_all_features_and_needs_no_pass_of_its_own_for_them(model, digits, run):
    passes, features = [], model.features
    model.features = lambda x: passes.append(len(x)) or features(x)
    update = kind_statistics.train(kind("few-shot", samples=30), model, digits, run())
    assert passes == [240]
    np.testing.assert_array_equal(counted(update), np.bincount(digits.y))
    load = workload(model.manifest, digits.class_counts(10))
    costs = kind_statistics.cost(kind("few-shot"), load, PROFILE), kind("few-shot").cost(load, PROFILE)
    assert costs[0].flops - costs[1].flops == pytest.approx(240 * 2 * 64**2)  # of the second moments alone
    assert costs[0].bytes_up > costs[1].bytes_up


def test_statistics_beside_an_entropy_subset_are_of_all_samples(model, digits, run):
    strategy = kind("entropy-subset")
    update = kind_statistics.train(strategy, model, digits, run())
    assert update.num_examples == 120
    np.testing.assert_array_equal(counted(update), np.bincount(digits.y))
    statistics_ = class_statistics.split_statistics(update.tensors)[1]
    why = kind_statistics.rejection_reason(strategy.variants()[0], statistics_, 118, model.manifest)
    assert why == "class counts sum to 240, the device has at most 236 samples"


def test_private_updates_and_smaller_models_come_without(model, digits, run):
    private = replace(kind("full"), terms=(DpSgd(),))
    smaller = kind_statistics.with_class_statistics(
        registry.make("width-slice", {"members": ["half"]}).variants()[0], ClassStatistics()
    )
    for strategy in (private, smaller):
        assert kind_statistics.statistics_of(strategy) is None


def test_class_means_are_the_statistics_alone_in_a_round_that_asks_for_them(model, digits, run):
    strategy = kind("class-means", samples=30)
    update = kind_statistics.train(strategy, model, digits, run())
    tensors.check(update.tensors, kind_statistics.expected(strategy, model.manifest))
    assert update.tensors.keys() == {ROWS, MOMENTS, SPREAD}
    assert update.num_examples == 240 and 20 < counted(update).sum() <= 30
    load = workload(model.manifest, digits.class_counts(10))
    cost = kind_statistics.cost(strategy, load, PROFILE)
    assert cost.bytes_up == pytest.approx(len(tensors.encode(update.tensors)) + 120, rel=0.1)
    whole = registry.make("class-means").cost(load, PROFILE)
    moments = 30 * 2 * 64**2
    assert cost.flops - moments == pytest.approx(whole.flops * 30 / 240)
    few = kind_statistics.cost(kind_statistics.without_moments(strategy), load, PROFILE)
    assert few.bytes_up == 120 + 72 + 10 * (10 + 64)
    assert kind_statistics.without_moments(kind_statistics.without_moments(strategy)) is None
    assert kind_statistics.without_class_statistics(strategy) is strategy
    assert kind_statistics.without_class_statistics(kind("full")).statistics is None


def test_second_moments_of_few_samples_are_not_sent(model, digits, run):
    """Of two samples of one class they and the mean would give both samples' features."""
    for samples, rows in ((3, 1), (2, 0)):
        some = np.flatnonzero(digits.y == 3)[:samples]
        update = kind_statistics.train(
            kind("class-means"), model, LocalData(digits.x[some], digits.y[some]), run()
        )
        assert [len(update.tensors[name]) for name in (ROWS, MOMENTS, SPREAD)] == [1, rows, rows]
        tensors.check(update.tensors, kind_statistics.expected(kind("class-means"), model.manifest))
        assert (
            kind_statistics.rejection_reason(kind("class-means"), update.tensors, samples, model.manifest)
            == ""
        )
        assert class_statistics.decode(update.tensors, SHAPE).moment_sums.counts.sum() == samples * rows


@pytest.mark.parametrize(
    ("number", "sent"),
    [(1, [7, 2, 1]), (2, [7, 2, 5]), (3, [7, 2, 8]), (4, [7, 2, 0]), (5, [7, 2, 1])],
)
def test_the_rarest_class_is_sent_first_and_those_that_are_not_rare_take_turns(number, sent, run):
    """Of the offer's rare classes the device has 7 and 2; 0, 1, 5 and 8 are left for one place."""
    here = replace(run(), round=number, rare=(7, 3, 2, 9))
    assert kind_statistics.chosen_classes([0, 1, 2, 5, 7, 8], 3, here) == sent


def test_where_all_places_are_taken_by_rare_classes_the_others_have_every_fourth_round(run):
    sent = [
        kind_statistics.chosen_classes([0, 3, 6, 7], 1, replace(run(), round=number, rare=(6, 7)))
        for number in range(1, 13)
    ]
    assert sent == [[6], [6], [6], [3], [6], [6], [6], [7], [6], [6], [6], [0]]


@pytest.mark.parametrize("rare", [(), (3,), (8, 0), tuple(range(10))])
@pytest.mark.parametrize("most", range(1, 10))
def test_over_some_rounds_statistics_of_every_class_are_sent(most, rare, run):
    present = [0, 1, 3, 4, 5, 7, 8]
    classes = set()
    for number in range(5, 5 + 4 * len(present)):
        sent = kind_statistics.chosen_classes(present, most, replace(run(), round=number, rare=rare))
        assert len(set(sent)) == len(sent) == min(most, len(present))
        classes.update(sent)
    assert classes == set(present)
    assert kind_statistics.chosen_classes(present, 0, run()) == present


@pytest.mark.parametrize("moments", [True, False])
def test_statistics_of_some_classes_are_those_of_their_samples(moments, model, digits, run):
    """Classes of fewer samples than asked for are not chosen, however rare they are."""
    few = np.concatenate([np.flatnonzero(digits.y == 1)[:2], np.flatnonzero(digits.y != 1)])
    data = LocalData(digits.x[few], digits.y[few])
    here = replace(run(), round=1, rare=(1, 9, 4))
    settings = {"smallest_count": 3, "moments": moments}
    update = kind_statistics.train(kind("few-shot", most_classes=3, **settings), model, data, here)
    of = np.isin(data.y, (9, 4, 2))
    alone = kind_statistics.add_statistics(
        kind("few-shot", **settings),
        replace(update, tensors={}),
        kind_statistics.Measured.of(
            model.manifest, model.features(data.x)[of], LocalData(data.x[of], data.y[of])
        ),
        here,
    )
    sent = class_statistics.split_statistics(update.tensors)[1]
    assert sent.keys() == alone.tensors.keys()
    np.testing.assert_array_equal(sent[class_statistics.ROWS], alone.tensors[class_statistics.ROWS])
    if moments:
        assert len(alone.tensors[class_statistics.MOMENTS]) == 1
        assert len(sent[class_statistics.MOMENTS]) == 0, "those of another round's classes may be subtracted"
    assert np.flatnonzero(counted(update)).tolist() == [2, 4, 9]
    assert kind_statistics.rejection_reason(kind("few-shot"), sent, len(data), model.manifest) == ""


def test_the_prediction_counts_the_classes_that_are_sent(model):
    load = workload(model.manifest, (9, 1, 30, 4, 0, 0, 0, 0, 0, 5))
    of = [kind_statistics.cost(kind("class-means", most_classes=n), load, PROFILE) for n in range(6)]
    assert [of[0].bytes_up - cost.bytes_up for cost in of] == [0, 222, 148, 74, 0, 0]
    assert len({cost.flops for cost in of}) == 1
    assert kind_statistics.class_coverage(kind("class-means", most_classes=3), load) == (3, 4)
    assert kind_statistics.class_coverage(kind("full"), load) == (4, 4)
    assert kind_statistics.class_coverage(registry.make("full"), load) == (0, 0)


def test_the_smallest_count_of_class_means_holds_for_their_statistics():
    strategy = kind_statistics.with_class_statistics(
        registry.make("class-means", {"smallest_count": 5}), ClassStatistics()
    )
    assert kind_statistics.statistics_of(strategy).smallest_count == 5


def test_an_update_of_class_means_without_any_is_refused(model):
    why = kind_statistics.rejection_reason(kind("class-means"), {}, 240, model.manifest)
    assert why == "class means came without class statistics"
    assert kind_statistics.rejection_reason(kind("few-shot"), {}, 240, model.manifest) == ""


def test_a_class_of_too_few_samples_for_the_statistics_makes_class_means_unfit(model):
    load = workload(model.manifest, (4, 3, *(0,) * 8))
    assert kind("class-means", smallest_count=4).infeasible_reason(load) == ""
    why = kind("class-means", smallest_count=5).infeasible_reason(load)
    assert why == "needs 5 samples of a class, the largest here has 4"


def test_an_offer_without_statistics_says_nothing_of_them():
    for name in registry.KINDS:
        update = registry.make(name)
        assert b"statistics" not in bytes(registry.write(update).settings)
        assert registry.read(registry.write(update)) == update
    strategy = kind("few-shot", numbers="int8")
    assert registry.read(registry.write(strategy)) == strategy


def single(sent):
    begin(sent[ROWS])["count"][3] = 1


def too_many(sent):
    begin(sent[ROWS])["count"][3] += 1


def far(sent):
    begin(sent[ROWS])["scale"][2] = 1e6


def squares_too_small(sent):
    sent[SPREAD] *= np.float32(0.5)


def impossible_product(sent):
    places = {place: i for i, place in enumerate(zip(*np.triu_indices(SHAPE[1]), strict=True))}
    sent[MOMENTS][0, places[0, 1]] = -1.0
    sent[MOMENTS][0, places[0, 0]] = sent[MOMENTS][0, places[1, 1]] = 0.5


def no_spread(sent):
    sent[SPREAD] = sent[SPREAD][:0]


def huge(sent):
    sent[SPREAD][:] = 1e9


def above_the_largest(sent):
    sent[MOMENTS][0, 5] = 3


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (single, "class 3 is counted 1 times, expected 2 or more"),
        (too_many, "class counts sum to 241, the device has at most 240 samples"),
        (far, "the mean of class 2 is"),
        (squares_too_small, "the mean square of feature"),
        (impossible_product, "the moment of features 0 and 1 is"),
        (no_spread, "second moments in 1 rows, of 10 classes"),
        (huge, "the largest second moment is 1e+09, at most 1e+08 is accepted"),
        (above_the_largest, "the largest second moment is"),
    ],
)
def test_statistics_that_no_samples_can_have_are_refused_with_the_reason(sent, lie, why):
    assert class_statistics.rejection_reason(sent, 240, 2, SHAPE) == ""
    lie(sent)
    assert class_statistics.rejection_reason(sent, 240, 2, SHAPE).startswith(why)


@pytest.fixture
def of_a_site(model, digits):
    """Sums over two devices, of which one sends second moments: what was known of them, and the tensors."""
    features = model.features(digits.x)
    first, other = (exact(features[part], digits.y[part], 2) for part in (slice(150), slice(150, 240)))
    statistics = Statistics(first.add(other).sums, first.sums, first.moments)
    return statistics, class_statistics.encode(statistics, ClassStatistics())


def test_of_a_site_it_is_said_whose_second_moments_are_sent(of_a_site, bundle):
    statistics, sent = of_a_site
    strategy = kind("full")
    specs = kind_statistics.accepted(strategy, bundle.manifest)
    parts = [spec for spec in class_statistics.expected_of(sent, specs) if spec.name.startswith("class-stat")]
    tensors.check(sent, parts)
    assert class_statistics.rejection_reason(sent, 240, 2, SHAPE) == ""
    read = class_statistics.decode(sent, SHAPE)
    np.testing.assert_array_equal(read.moment_sums.counts, statistics.moment_sums.counts)
    np.testing.assert_array_equal(read.sums.counts, statistics.sums.counts)
    assert (
        np.abs(read.moments - statistics.moments).max() <= 1.01 * 2.0**-11 * np.abs(statistics.moments).max()
    )
    assert MOMENT_ROWS not in {
        spec.name for spec in kind_statistics.accepted(kind("few-shot", moments=False), bundle.manifest)
    }
    alone = {name: value for name, value in sent.items() if name != MOMENT_ROWS}
    assert MOMENT_ROWS not in {spec.name for spec in class_statistics.expected_of(alone, specs)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"count": 10}, "class 0 has second moments of more samples than are counted"),
        ({"scale": 1e6}, "the mean of class 0 is"),
        ({"scale": 3.0}, "the mean square of feature"),
    ],
)
def test_of_whose_second_moments_they_are_no_more_is_believed(of_a_site, changes, why):
    _, sent = of_a_site
    for part, times in changes.items():
        begin(sent[MOMENT_ROWS])[part] *= np.array(times, ROW[part])
    assert class_statistics.rejection_reason(sent, 240, 2, SHAPE).startswith(why)


@pytest.mark.parametrize(
    ("name", "samples", "expected"),
    [("full", 500, 1), ("few-shot", 500, 1), ("zeroth-order", 20, 1), ("class-means", 100, 4)],
)
def test_measured_samples_stand_for_all_of_the_device(name, samples, expected):
    strategy = kind(name, samples=25)
    assert kind_statistics.samples_per_measured(strategy, samples, 20) == expected
    assert (
        kind_statistics.samples_per_measured(
            kind_statistics.with_class_statistics(strategy, None), samples, 20
        )
        == 1
    )
