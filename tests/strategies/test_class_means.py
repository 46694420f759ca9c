from dataclasses import replace

import msgspec
import numpy as np
import pytest

from models.softmax import accuracy_and_loss
from models.tensors import check, decode, encode
from profiles import shipped as board
from strategies.class_means import MASKED, ClassMeans, summed
from strategies.device_half import Contribution, LocalData
from strategies.folding import Folding
from strategies.merge import merge
from strategies.server_optimizer import ServerOptimizer
from strategies.workload import workload


def fold_all(strategy, model, devices, round_model, run):
    state = strategy.start(round_model)
    for number, data in enumerate(devices):
        state = strategy.fold(state, strategy.train(model, data, run(str(number))), len(data))
    return state


@pytest.mark.parametrize("partition", ["one device", "unequal", "by class", "single sample"])
def test_class_means_equal_the_pooled_means_for_any_partition(
    model, digits, round_model, run, partition, partitions
):
    features = model.features(digits.x).astype(np.float64)
    pooled = np.stack([features[digits.y == label].mean(0) for label in range(10)])
    strategy = ClassMeans(smallest_count=1)  # as published
    state = fold_all(strategy, model, partitions[partition], round_model, run)
    np.testing.assert_allclose(state.means(), pooled, rtol=1e-6, atol=1e-6)


def test_the_served_head_has_normalised_means_as_rows_and_bias_zero(model, digits, round_model, run):
    strategy = ClassMeans()
    effect = strategy.finish(fold_all(strategy, model, [digits], round_model, run), round_model)
    head = model.manifest.head
    rows = effect.served[head.weight]
    features = model.features(digits.x)
    zero = features[digits.y == 0].mean(0)
    np.testing.assert_allclose(rows[0], zero / np.linalg.norm(zero), atol=1e-6)
    assert not effect.served[head.bias].any()


def test_the_normalised_means_become_the_base_s_classifier_whatever_the_server_optimiser(
    model, digits, round_model, run
):
    """FedNCM+FT with FedAdam starts from the means themselves; nothing of them is in its moments."""
    strategy, head = ClassMeans(), model.manifest.head
    effect = strategy.finish(fold_all(strategy, model, [digits], round_model, run), round_model)
    merged = merge(round_model, {"class-means": effect}, ServerOptimizer("fedadam"))
    np.testing.assert_array_equal(merged.base[head.weight], effect.served[head.weight])
    np.testing.assert_allclose(np.linalg.norm(merged.base[head.weight], axis=1), 1, rtol=1e-6)
    assert not merged.base[head.bias].any()
    assert merged.carried.memory == {}
    assert not merged.replayable
    others = round_model.weights.keys() - {head.weight, head.bias}
    assert all(np.array_equal(merged.base[name], round_model.weights[name]) for name in others)


def test_the_class_whose_mean_is_nearest_is_served_on_demand(model, digits, round_model, run):
    """The served head says what comparing distances says; the base begins from normalised rows as ever."""
    strategy, head = ClassMeans(head="nearest-mean"), model.manifest.head
    without = LocalData(digits.x[digits.y != 4], digits.y[digits.y != 4])
    state = fold_all(strategy, model, [without], round_model, run)
    merged = merge(round_model, {"class-means": strategy.finish(state, round_model)})
    features = model.features(digits.x)
    distances = np.linalg.norm(features[:, None] - state.means()[None], axis=2)
    model.load(merged.served)
    np.testing.assert_array_equal(model.logits(digits.x).argmax(1), state.present[distances.argmin(1)])
    np.testing.assert_allclose(np.linalg.norm(merged.base[head.weight][state.present], axis=1), 1, rtol=1e-6)


def test_a_head_without_a_bias_gets_the_rows_alone(model, digits, round_model, run):
    manifest = round_model.manifest
    bare = msgspec.structs.replace(manifest, head=msgspec.structs.replace(manifest.head, bias=None))
    strategy, weight = ClassMeans(head="nearest-mean"), manifest.head.weight
    state = fold_all(strategy, model, [digits], round_model, run)
    effect = strategy.finish(state, replace(round_model, manifest=bare))
    assert effect.served.keys() == effect.assigned.keys() == {weight}
    np.testing.assert_allclose(np.linalg.norm(effect.served[weight], axis=1), 1, rtol=1e-6)


def test_a_class_that_nobody_has_is_masked_and_keeps_its_row_in_the_base(model, digits, round_model, run):
    strategy, head = ClassMeans(), model.manifest.head
    without = LocalData(digits.x[digits.y != 4], digits.y[digits.y != 4])
    state = fold_all(strategy, model, [without], round_model, run)
    merged = merge(round_model, {"class-means": strategy.finish(state, round_model)})
    assert merged.served[head.bias][4] == np.float32(MASKED)
    np.testing.assert_array_equal(merged.base[head.weight][4], round_model.weights[head.weight][4])
    assert merged.base[head.bias][4] == round_model.weights[head.bias][4]
    model.load(merged.served)
    logits = model.logits(digits.x)
    assert np.isfinite(logits).all()
    assert not (logits.argmax(1) == 4).any()


def test_one_round_of_class_means_classifies_far_above_chance(model, digits, round_model, run, partitions):
    """Even on a random extractor: 240 digits, ten classes, chance is 0.1."""
    strategy = ClassMeans()
    state = fold_all(strategy, model, partitions["unequal"], round_model, run)
    model.load(merge(round_model, {"class-means": strategy.finish(state, round_model)}).served)
    assert accuracy_and_loss(model.logits(digits.x), digits.y).eval_acc > 0.5


def test_trained_on_the_means_the_head_joins_the_average_by_samples(model, digits, round_model, run):
    strategy = ClassMeans(head="trained")
    effect = strategy.finish(fold_all(strategy, model, [digits], round_model, run), round_model)
    assert effect.served is None
    assert effect.mean.weights == {model.manifest.head.weight: 240.0, model.manifest.head.bias: 240.0}


def test_no_contribution_has_no_effect(round_model):
    effect = ClassMeans().finish(ClassMeans().start(round_model), round_model)
    merged = merge(round_model, {"class-means": effect})
    assert all(np.array_equal(merged.base[name], value) for name, value in round_model.weights.items())


def test_sums_that_are_gathered_over_rounds_give_the_means_of_all_who_took_part(
    model, digits, round_model, run, partitions
):
    strategy, memory = ClassMeans(gathered=True), {}
    for data in partitions["by class"]:
        now = replace(round_model, memory=memory)
        effect = strategy.finish(fold_all(strategy, model, [data], now, run), now)
        memory = decode(encode(effect.memory))
    pooled = ClassMeans()
    alone = pooled.finish(fold_all(pooled, model, [digits], round_model, run), round_model)
    weight = model.manifest.head.weight
    np.testing.assert_allclose(effect.assigned[weight], alone.assigned[weight], atol=1e-6)
    assert alone.memory is None


def test_a_round_to_which_nobody_came_leaves_the_classifier_to_those_who_train_it(round_model):
    kept = {"sums": np.ones((10, 3)), "counts": np.ones(10, np.int64)}
    strategy, now = ClassMeans(gathered=True), replace(round_model, memory=kept)
    effect = strategy.finish(strategy.start(now), now)
    assert effect.assigned is None and effect.served is None and effect.memory is None


def test_a_class_with_fewer_samples_than_the_smallest_count_is_not_sent(model, digits, run):
    """One sample of class 3, two of class 5, three of class 7: the first is nobody's features to have."""
    rows = np.concatenate([np.flatnonzero(digits.y == label)[:n] for label, n in ((3, 1), (5, 2), (7, 3))])
    data = LocalData(digits.x[rows], digits.y[rows])
    for strategy, classes in ((ClassMeans(), [5, 7]), (ClassMeans(smallest_count=3), [7])):
        sent = strategy.train(model, data, run())
        assert np.flatnonzero(sent.tensors["counts"]).tolist() == classes
        assert np.flatnonzero(sent.tensors["sums"].any(axis=1)).tolist() == classes
        assert sent.num_examples == sent.tensors["counts"].sum()
        assert strategy.doubt(sent.tensors, sent.num_examples, None) == ""
    everything = ClassMeans(smallest_count=1).train(model, data, run())
    np.testing.assert_allclose(everything.tensors["sums"][3], model.features(data.x[:1])[0], rtol=1e-6)


def test_a_device_whose_classes_are_all_too_small_does_not_offer_class_means(model):
    load = workload(model.manifest, (1, 4, 0, 0, 0, 0, 0, 0, 0, 0))
    assert ClassMeans(smallest_count=4).unfit(load) == ""
    why = ClassMeans(smallest_count=5).unfit(load)
    assert why == "a class needs 5 samples to be sent, the largest here has 4"


def test_a_device_with_more_samples_than_are_asked_for_measures_as_many_and_stands_for_all(
    model, digits, run
):
    """Of 240 samples 40 are drawn by the run; each class that is left out leaves out its share."""
    rows = run().rng().permutation(240)[:40]
    drawn = LocalData(digits.x[rows], digits.y[rows])
    sent = ClassMeans(samples=40).train(model, digits, run())
    alone = ClassMeans().train(model, drawn, run())
    for name in ("sums", "counts"):
        np.testing.assert_array_equal(sent.tensors[name], alone.tensors[name])
    counted = int(np.sum([n for n in np.bincount(drawn.y) if n >= 2]))
    assert (alone.num_examples, sent.num_examples) == (counted, 6 * counted)
    assert ClassMeans(samples=40).doubt(sent.tensors, sent.num_examples, None) == ""


def test_a_device_with_no_more_samples_than_are_asked_for_measures_all_exactly(model, digits, run):
    some, every = (ClassMeans(samples=n).train(model, digits, run()) for n in (240, 0))
    assert some.num_examples == every.num_examples == 240
    np.testing.assert_array_equal(some.tensors["sums"], every.tensors["sums"])


def test_from_all_features_come_the_same_sums_as_from_the_samples_that_are_drawn(model, digits, run):
    strategy = ClassMeans(samples=25)
    one = strategy.train(model, digits, run())
    two = strategy.from_features(model.features(digits.x), digits.y, model.manifest, run())
    assert one.num_examples == two.num_examples
    np.testing.assert_array_equal(one.tensors["counts"], two.tensors["counts"])
    np.testing.assert_allclose(one.tensors["sums"], two.tensors["sums"], rtol=1e-5)


def test_what_is_measured_alone_costs_a_pass(model):
    """40 of 200 samples: a fifth of the passes, and of the features that are held; all samples are held."""
    load, profile = workload(model.manifest, (20,) * 10), board("pi-4")
    some, every = (ClassMeans(samples=n).cost(load, profile) for n in (40, 0))
    assert some.flops == pytest.approx(every.flops / 5)
    assert every.peak_memory_bytes - some.peak_memory_bytes == 160 * 4 * load.feature_width
    assert some.bytes_up == every.bytes_up
    assert some.compute_s < every.compute_s and some.energy_j < every.energy_j


def test_means_of_a_part_are_counted_as_the_samples_that_they_stand_for():
    """Of 16 samples 4 were measured, 3 of class 0 and 1 of class 2: they stand for 12 and 4."""
    sums = np.array([[6, 3], [0, 0], [2, 5]], np.float32)
    sent = Contribution("class-means", {"sums": sums, "counts": np.array([3, 0, 1], np.int32)}, 16, 0.0)
    whole = summed(sent, None)
    assert whole.tensors["counts"].tolist() == [12, 0, 4]
    assert whole.tensors["sums"].tolist() == [[24, 12], [0, 0], [8, 20]]
    assert summed(whole, None) is whole
    assert summed(replace(sent, num_examples=4), None).tensors is sent.tensors


@pytest.mark.parametrize(
    ("numbers", "row", "step"), [("int8", 10 + 64, 1 / 254), ("float16", 10 + 128, 2**-11)]
)
def test_short_means_are_a_row_for_each_class_that_the_device_has(model, digits, run, numbers, row, step):
    """Label, count and largest number take 10 bytes."""
    some = LocalData(digits.x[digits.y < 3], digits.y[digits.y < 3])
    strategy = ClassMeans(head="trained", numbers=numbers)
    sent, exact = (kind.train(model, some, run()) for kind in (strategy, ClassMeans()))
    check(sent.tensors, strategy.expected(model.manifest))
    assert sent.tensors["rows"].shape == (3, row)
    assert strategy.doubt(sent.tensors, sent.num_examples, model.manifest) == ""
    read = summed(sent, model.manifest).tensors
    np.testing.assert_array_equal(read["counts"], exact.tensors["counts"])
    counts = exact.tensors["counts"][:, None]
    wanted = exact.tensors["sums"] / np.maximum(1, counts)
    found = read["sums"] / np.maximum(1, counts)
    assert (np.abs(found - wanted) <= 1.01 * step * np.abs(wanted).max(axis=1, keepdims=True)).all()
    load = workload(model.manifest, some.class_counts(10))
    assert strategy.cost(load, board("pi-4")).bytes_up == pytest.approx(
        len(encode(sent.tensors)) + 120, abs=40
    )


def test_short_means_of_a_class_that_there_is_not_are_refused(model, digits, run):
    strategy = ClassMeans(numbers="int8")
    sent = strategy.train(model, digits, run())
    rows = sent.tensors["rows"].copy()
    rows[-1, 0] = 10
    why = strategy.doubt({"rows": rows}, sent.num_examples, model.manifest)
    assert why.endswith("7, 8, 10], expected ascending, below 10")
    rows = sent.tensors["rows"][:, ::-1].copy()
    assert strategy.doubt({"rows": rows}, sent.num_examples, model.manifest) != ""
    assert strategy.doubt(sent.tensors, 239, model.manifest) == "counts sum to 240, num_examples is 239"


@pytest.mark.parametrize(
    ("samples", "num_examples", "why"),
    [
        (0, 4, ""),
        (0, 16, "counts sum to 4, num_examples is 16"),
        (40, 16, ""),
        (40, 3, "counts sum to 4, num_examples is 3"),
    ],
)
def test_only_a_device_that_measures_a_part_may_stand_for_more_samples(samples, num_examples, why):
    update = {"sums": np.ones((2, 3), np.float32), "counts": np.array([3, 1], np.int32)}
    assert ClassMeans(samples=samples).doubt(update, num_examples, None) == why


def test_sums_of_no_sample_stand_for_none():
    update = {"sums": np.zeros((2, 3), np.float32), "counts": np.zeros(2, np.int32)}
    assert ClassMeans(samples=40).doubt(update, 16, None) == "counts sum to 0, num_examples is 16"


def test_a_trained_head_counts_as_the_samples_that_its_means_stand_for(model, digits, run, round_model):
    folding = Folding({"class-means": ClassMeans(head="trained", samples=40)}, round_model)
    sent = ClassMeans(samples=40).train(model, digits, run())
    update, _ = folding.parted(sent)
    strategy = ClassMeans(head="trained")
    effect = strategy.finish(strategy.fold(strategy.start(round_model), update, 1.0), round_model)
    assert effect.num_examples == sent.num_examples
