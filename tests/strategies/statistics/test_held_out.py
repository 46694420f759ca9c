"""Samples that devices hold out, and what the counts on them decide."""

from dataclasses import replace
from math import isnan
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.manifest import Parameter
from device_runtime.models.bundles.tensors import decode, encode
from device_runtime.models.errors import TensorError
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.codecs import chain
from device_runtime.strategies.directions.directions import Projection
from device_runtime.strategies.interface.device_half import Late, LocalData, Update
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.merge import NOTHING_CARRIED
from device_runtime.strategies.statistics import class_statistics, closed_form, held_out, kind_statistics
from device_runtime.strategies.statistics.class_statistics import RIGHT, ROWS, Statistics
from device_runtime.strategies.statistics.closed_form import HeldOutAccuracy, StatisticsPool
from device_runtime.strategies.training.workload import workload

PROFILE = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
SHORT = {
    "full": {"epochs": 1, "lr": 0.05, "batch": 16},
    "entropy-subset": {"epochs": 1, "shares": [0.5]},
    "few-shot": {"epochs": 1},
    "zeroth-order": {},
    "class-means": {"head": "trained"},
}


def kind(name, **statistics):
    return kind_statistics.with_class_statistics(
        registry.make(name, SHORT[name]), ClassStatistics(**statistics)
    )


def head_of(weights):
    """The network's own classifier, as if it were the one in closed form."""
    return {held_out.CLOSED_FORM + n: weights[n] for n in ("head.weight", "head.bias")}


@pytest.mark.parametrize("share", [0.1, 0.25, 1 / 3, 0.5])
@pytest.mark.parametrize("device", ["pi-1", "phone.Ä"])
def test_samples_are_held_out_evenly_and_always_the_same(share, device):
    mask = held_out.mask(1000, share, device)
    assert abs(mask.sum() - 1000 * share) <= 1
    gaps = np.diff(np.flatnonzero(mask))
    assert set(gaps) <= {int(1 / share), int(1 / share) + 1}
    np.testing.assert_array_equal(mask[:17], held_out.mask(17, share, device))


def test_a_device_is_always_left_with_samples_to_train_on():
    for n in range(1, 6):
        for device in range(20):
            assert 0 <= held_out.mask(n, 0.5, f"pi-{device}").sum() < n


def test_over_many_devices_each_place_is_held_out_about_as_often():
    """Of 26 samples each, in the order of their classes."""
    total = sum(held_out.mask(26, 0.1, f"pi-{device}") for device in range(200))
    assert total.min() > 10 and total.max() < 30


def test_the_rest_of_a_workload_is_what_a_device_trains_on_to_one_sample(model):
    load = workload(model.manifest, (7, 0, 3, *(5,) * 7))
    rest = held_out.rest(load, 0.2)
    assert rest.samples == 36
    assert all(rest <= all_ for rest, all_ in zip(rest.class_counts, load.class_counts, strict=True))
    assert held_out.rest(load, 0.0).class_counts == load.class_counts


class Named:
    """Two features are the input; the base tells class 1 by the first."""

    def __init__(self):
        head = SimpleNamespace(weight="w", bias="b", features=2)
        target = SimpleNamespace(class_weights=(), compared="classes")
        self.manifest = SimpleNamespace(labels=("a", "b"), outputs=2, head=head, target=target)
        self.weights = {"w": np.float32([[0, 0], [1, 0]]), "b": np.zeros(2, np.float32)}

    def features(self, x):
        return x


def test_each_head_is_counted_on_the_features_of_the_base():
    """By hand: the base is right of the first three, the other head of the second and the last."""
    holdout = LocalData(np.float32([[1, -1], [1, 1], [-1, 1], [-1, 1]]), np.array([1, 1, 0, 1]))
    other = {
        held_out.CLOSED_FORM + "w": np.float32([[0, 0], [0, 1]]),
        held_out.CLOSED_FORM + "b": np.zeros(2, np.float32),
    }
    assert held_out.count_right(Named(), holdout, other).tolist() == [4, 2, 3]
    assert held_out.count_right(Named(), holdout, {"few-shot/w": np.ones(2)}).tolist() == [0, 0, 0]
    nothing = LocalData(holdout.x[:0], holdout.y[:0])
    assert held_out.count_right(Named(), nothing, other).tolist() == [0, 0, 0]
    with pytest.raises(TensorError):
        held_out.count_right(Named(), holdout, {held_out.CLOSED_FORM + "w": np.ones((3, 2), np.float32)})


@pytest.mark.parametrize("name", SHORT)
def test_what_is_held_out_is_neither_trained_on_nor_in_the_statistics(name, model, digits, run):
    """The update is to the bit that of a device that has nothing but the rest."""
    strategy, plain = kind(name, hold_out=0.2), kind(name)
    _, rest = held_out.split_held_out(digits, 0.2, "pi-1")
    own = kind_statistics.train(plain, model, rest, run())
    here = replace(run(), aside=head_of(model.weights))
    update = kind_statistics.train(strategy, model, digits, here)
    right = update.tensors[RIGHT]
    assert encode({n: v for n, v in update.tensors.items() if n != RIGHT}) == encode(own.tensors)
    assert (update.num_examples, len(rest)) == (own.num_examples, 240 - 48)
    assert (right.dtype, right.shape, right[0, 0]) == (np.int32, (1, 3), 48)
    assert 0 < right[0, 1] == right[0, 2] <= 48
    accepted = kind_statistics.accepted(strategy.variants()[0], model.manifest)
    assert {spec.name for spec in class_statistics.expected_of(update.tensors, accepted)} == set(
        update.tensors
    )
    statistics = class_statistics.split_statistics(update.tensors)[1]
    form = strategy.variants()[0]
    assert kind_statistics.rejection_reason(form, statistics, update.num_examples, model.manifest) == ""
    np.testing.assert_array_equal(class_statistics.decode(statistics, (10, 64)).right, right[0])


def test_without_a_head_in_closed_form_nothing_is_counted_and_as_much_is_held_out(model, digits, run):
    strategy = kind("full", hold_out=0.2)
    update = kind_statistics.train(strategy, model, digits, run())
    assert update.tensors[RIGHT].shape == (0, 3)
    assert update.num_examples == 240 - 48
    statistics = class_statistics.split_statistics(update.tensors)[1]
    assert kind_statistics.rejection_reason(strategy, statistics, update.num_examples, model.manifest) == ""
    assert not class_statistics.decode(statistics, (10, 64)).right.any()
    older = {name: value for name, value in statistics.items() if name != RIGHT}
    assert not class_statistics.decode(older, (10, 64)).right.any()
    accepted = kind_statistics.accepted(strategy, model.manifest)
    assert RIGHT not in {spec.name for spec in class_statistics.expected_of(older, accepted)}


@pytest.mark.parametrize("word", ["", "delta+half", "delta+int8+deflate"])
def test_counts_come_exactly_by_every_codec(word, model, digits, run):
    strategy = kind("full", hold_out=0.2)
    update = kind_statistics.train(strategy, model, digits, replace(run(), aside=head_of(model.weights)))
    base, codec = dict(model.weights), chain.codec_named(word)
    body = codec.encode(update.tensors, base, {}).body
    expected = kind_statistics.accepted(strategy, model.manifest)
    assert len(body) <= codec.most_bytes(expected)
    np.testing.assert_array_equal(codec.decode(body, base, expected)[RIGHT], update.tensors[RIGHT])


def test_an_update_without_class_statistics_is_trained_on_all_samples(model, digits, run):
    update = kind_statistics.train(
        kind_statistics.without_class_statistics(kind("full", hold_out=0.2)), model, digits, run()
    )
    assert update.num_examples == 240
    assert ROWS not in update.tensors


@pytest.mark.parametrize("name", ["full", "few-shot", "class-means"])
def test_the_prediction_is_of_training_on_the_rest_and_a_pass_of_what_is_held_out(name, model, digits):
    load, share = workload(model.manifest, digits.class_counts(10)), 0.25
    cost = kind_statistics.cost(kind(name, hold_out=share), load, PROFILE)
    rest = kind_statistics.cost(kind(name), held_out.rest(load, share), PROFILE)
    assert cost.flops - rest.flops == pytest.approx(60 * model.manifest.graphs["forward"].flops)
    assert cost.bytes_up - rest.bytes_up == 12 + 72
    assert cost.peak_memory_bytes > rest.peak_memory_bytes


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([[21, 0, 0]], ""),
        ([], ""),
        ([[22, 0, 0]], "22 samples are held out, expected 1 to 21 with 80 training samples"),
        ([[0, 0, 0]], "0 samples are held out, expected 1 to 21 with 80 training samples"),
        ([[20, 21, 3]], "21 and 3 of 20 held-out samples are counted as correct"),
        ([[20, 3, 21]], "3 and 21 of 20 held-out samples are counted as correct"),
        ([[20, -1, 3]], "-1 and 3 of 20 held-out samples are counted as correct"),
    ],
)
def test_counts_that_no_device_has_are_doubted(counts, why, model):
    counts = np.array(counts, np.int32).reshape(-1, 3)
    assert held_out.rejection_reason(counts, 0.2, 80) == why
    statistics = Statistics.none(10, 64)
    sent = {**class_statistics.encode(statistics, ClassStatistics()), RIGHT: counts}
    assert kind_statistics.rejection_reason(kind("full", hold_out=0.2), sent, 80, model.manifest) == why


def test_the_trained_head_is_named_where_it_is_better_by_more_than_chance():
    assert held_out.trained_is_better(np.array([100.0, 50, 60])) == ""
    why = held_out.trained_is_better(np.array([811.7, 512.3, 544.8]))
    assert why.startswith("of 812 held-out samples 512 right with the closed-form head, 545 with the trained")


def test_the_pool_keeps_the_counts_and_they_decay_as_the_statistics_do():
    """By hand as the pool's own test: gamma of the second round is 0.75."""

    def sent(n, counts):
        statistics = class_statistics.measure_statistics(
            np.ones((n, 2), np.float32), np.zeros(n, np.int64), 2, 1
        )
        return replace(statistics, right=np.array(counts, np.float64))

    projection = Projection(2, 512, 0)
    pool = StatisticsPool.of({}, 2, projection).after(sent(2, [8, 4, 8]), {"low": np.ones(3)})
    pool = pool.after(sent(18, [10, 9, 1]), {"low": np.ones(3)})
    assert pool.statistics.right.tolist() == [16, 12, 7]
    memory = decode(encode(pool.kept()))
    assert StatisticsPool.of(memory, 2, projection).statistics.right.tolist() == [16, 12, 7]
    del memory["right"]
    older = StatisticsPool.of(memory, 2, projection)
    assert older.statistics.right.tolist() == [0, 0, 0]
    assert older.samples == pool.samples


def played(model, digits, run, round_model, counts, carried=NOTHING_CARRIED, hold_out=0.2):
    """A round of one device that says that so many held-out samples are right."""
    strategy = kind("full", hold_out=hold_out)
    folding = Folding({"full": strategy}, round_model, carried)
    here = replace(run(), aside=dict(carried.aside))
    update = kind_statistics.train(strategy, model, digits, here)
    if counts is not None:
        update = replace(update, tensors={**update.tensors, RIGHT: np.array([counts], np.int32)})
    rest, statistics = folding.parted(update)
    folding.pool(statistics, None)
    folding.add(rest, 1.0)
    return folding.merged()


def test_the_next_base_brings_the_head_in_closed_form_and_devices_say_which_is_served(
    model, digits, run, round_model
):
    first, odd = played(model, digits, run, round_model, None)
    assert odd == ""
    assert first.served is first.closed_form
    for name in ("head.weight", "head.bias"):
        np.testing.assert_array_equal(first.carried.aside[held_out.CLOSED_FORM + name], first.served[name])
    second, odd = played(model, digits, run, round_model, (48, 20, 30), first.carried)
    assert odd.startswith("of 48 held-out samples 20 right with the closed-form head, 30 with the trained")
    assert second.served is second.base
    assert second.closed_form["head.bias"].tolist() != second.base["head.bias"].tolist()
    third, odd = played(model, digits, run, round_model, (48, 40, 20), second.carried)
    assert (odd, third.served is third.closed_form) == ("", True)
    right = third.carried.memory[closed_form.MEMORY]["right"]
    assert 48 < right[0] < 96 and right[1] > right[2]


def held_out_figures(merged):
    """What a round shows: accuracies of the head that was served and of the other, samples, and the head."""
    figures = HeldOutAccuracy.of(merged.carried.memory[closed_form.MEMORY])
    return figures.served, figures.other, figures.samples, figures.head


def test_a_lasting_difference_of_one_sample_in_eight_changes_the_head_in_the_eleventh_round(
    model, digits, run, round_model
):
    """And until then both accuracies are shown.

    By hand: 72 samples that train give a gamma of 1 - 72 / (20 * 64) = 0.94375. The rounds' weights sum to
    s = (1 - 0.94375^k) / 0.05625, and s > sqrt(8 s) where s > 8: 7.81 in the tenth round, 8.37 in the next.
    """
    few = LocalData(digits.x[:80], digits.y[:80])
    merged, _ = played(model, few, run, round_model, None, hold_out=0.1)
    assert isnan(held_out_figures(merged)[0])
    for number in range(1, 14):
        merged, _ = played(model, few, run, round_model, (8, 7, 8), merged.carried, hold_out=0.1)
        before, after = (7 / 8, 1.0, 8, "closed-form"), (1.0, 7 / 8, 8, "trained")
        assert held_out_figures(merged) == (before if number < 12 else after)
        assert (merged.served is merged.base) is (number >= 11)


def test_a_round_without_a_result_shows_no_counts_of_the_round_before(model, digits, run, round_model):
    first, _ = played(model, digits, run, round_model, None)
    second, _ = played(model, digits, run, round_model, (48, 30, 20), first.carried)
    assert held_out_figures(second)[2] == 48
    folding = Folding({"full": kind("full", hold_out=0.2)}, round_model, second.carried)
    broken = {name: np.full_like(value, np.nan) for name, value in model.weights.items()}
    folding.add(Update("full", broken, 10, 0.5, ""), 1.0)
    third, odd = folding.merged()
    assert "the base stays as it was" in odd
    assert isnan(held_out_figures(third)[0]) and held_out_figures(third)[2] == 0
    assert third.carried.aside == {}  # the base is served: no head to compare it with
    right = [merged.carried.memory[closed_form.MEMORY]["right"].tolist() for merged in (second, third)]
    assert right[0] == right[1] != [0, 0, 0]


def test_a_head_that_cannot_be_computed_is_not_compared_in_the_next_round(
    model, digits, run, round_model, monkeypatch
):
    first, _ = played(model, digits, run, round_model, None)
    assert first.carried.aside

    def fails(*_):
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(StatisticsPool, "served", fails)
    second, odd = played(model, digits, run, round_model, (48, 30, 20), first.carried)
    assert odd == "the trained head is served: Singular matrix"
    assert (second.served is second.base, second.carried.aside) == (True, {})


def test_counts_of_an_older_run_have_no_other_head():
    older = HeldOutAccuracy.of({"held_out": np.array([8.0, 7, 1])})
    assert (older.served, older.samples, older.head, isnan(older.other)) == (7 / 8, 8, "closed-form", True)


def test_counts_that_come_late_are_added_as_they_are(round_model):
    pooling = closed_form.RoundStatistics(
        round_model.manifest, round_model.weights, ClassStatistics(hold_out=0.2)
    )
    statistics = class_statistics.measure_statistics(
        np.ones((4, 64), np.float32), np.zeros(4, np.int64), 10, 1
    )
    pooling.add(replace(statistics, right=np.array([5.0, 3, 2])), None)
    pooling.add(replace(statistics, right=np.array([4.0, 0, 4])), Late(2, 7, 0.5, times=3.0))
    assert pooling.closed({})[0].statistics.right.tolist() == [9, 3, 6]


def test_without_held_out_samples_nothing_is_sent_beside_the_base(model, digits, run, round_model):
    merged, _ = played(model, digits, run, round_model, None, hold_out=0.0)
    assert merged.carried.aside == {}
    assert merged.served is merged.closed_form


def test_beside_the_base_the_head_is_for_features_of_that_base_with_its_scale(round_model):
    """What is served has a scale of 4, the base one of 2: its features are half as large."""
    more = Parameter("head.scale", (64,), "float32", "head", ())
    manifest = round_model.manifest
    manifest = msgspec.structs.replace(manifest, parameters=(*manifest.parameters, more))
    served, base = ({**round_model.weights, "head.scale": np.full(64, v, np.float32)} for v in (4, 2))
    beside = held_out.head_tensors(served, base, manifest)
    np.testing.assert_array_equal(beside["closed-form/head.weight"], 2 * served["head.weight"])
    np.testing.assert_array_equal(beside["closed-form/head.bias"], served["head.bias"])
