from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.tensors import decode, encode
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.kinds.class_means import MASKED_BIAS, ClassMeans
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.training.workload import workload


def summed(state):
    """The sums of all devices."""
    return sum((statistics.sums for statistics in state), Statistics.none(state.labels, state.width).sums)


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
    np.testing.assert_allclose(summed(state).means(), pooled, rtol=1e-6, atol=1e-6)


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
    state = summed(state)
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
    assert merged.served[head.bias][4] == np.float32(MASKED_BIAS)
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
    memory = {"sums": np.ones((10, 3)), "counts": np.ones(10, np.int64)}
    strategy, now = ClassMeans(gathered=True), replace(round_model, memory=memory)
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
        assert strategy.rejection_reason(sent.tensors, sent.num_examples) == ""
    everything = ClassMeans(smallest_count=1).train(model, data, run())
    np.testing.assert_allclose(everything.tensors["sums"][3], model.features(data.x[:1])[0], rtol=1e-6)


def test_a_device_whose_classes_are_all_too_small_does_not_offer_class_means(model):
    load = workload(model.manifest, (1, 4, 0, 0, 0, 0, 0, 0, 0, 0))
    assert ClassMeans(smallest_count=4).infeasible_reason(load) == ""
    why = ClassMeans(smallest_count=5).infeasible_reason(load)
    assert why == "needs 5 samples of a class, the largest here has 4"
