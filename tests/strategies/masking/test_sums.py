import tracemalloc
from dataclasses import replace
from itertools import pairwise
from math import isnan, nan

import numpy as np
import pytest
from msgspec import structs

from device_runtime.broker.wire.messages import HelperKey, Masks
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.errors import MaskError, SpoiltSum
from device_runtime.strategies.interface.device_half import LocalData, Update
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.evaluation import FederatedEvaluation, figures
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import CHECKS, SumLayout, TensorPart, layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.noise import add_noise
from device_runtime.strategies.masking.sums import SummedGroup, Weighed
from device_runtime.strategies.statistics import class_statistics, kind_statistics

MASKS = Masks(helpers=(HelperKey("a", b"\x01" * 32),), min_group=2, capacity=64, most_weight=100)


def summed(strategy, updates, layout, masks=MASKS):
    total = MaskedVector.zeros(layout.values, layout.numbers)
    for at, update in enumerate(updates):
        vector, _ = sums.write(Weighed(update, strategy, masks.most_weight), layout)
        vector.add_masks([bytes([at]) * 32])
        total.add(vector)
    for at in range(len(updates)):
        mask = MaskedVector.zeros(layout.values, layout.numbers)
        mask.add_masks([bytes([at]) * 32])
        total.subtract(mask)
    return total


def group_of(updates, masks=MASKS):
    share = sum(update.num_examples for update in updates) / masks.most_weight
    return SummedGroup(len(updates), share, sum(update.num_examples for update in updates), masks.most_weight)


def full_updates(round_model, sizes=(10, 30, 60)):
    rng = np.random.default_rng(1)
    return [
        Update(
            "full",
            {
                name: (w + rng.normal(0, 0.1, w.shape)).astype(np.float32)
                for name, w in round_model.weights.items()
            },
            size,
            float(size) / 10,
        )
        for size in sizes
    ]


def test_the_sum_of_masked_updates_is_their_weighted_mean(round_model):
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    opened = sums.read(summed(strategy, updates, layout), layout, group_of(updates), strategy)
    state = strategy.start(round_model)
    for update in updates:
        state = strategy.fold(state, update, update.num_examples)
    clear = strategy.finish(state, round_model).mean.mean()
    off = np.sqrt(sum(np.square(opened.update.tensors[name] - clear[name]).sum() for name in clear))
    size = np.sqrt(sum(np.square(clear[name]).sum() for name in clear))
    assert off / size < 1e-6
    assert opened.update.num_examples == 100
    assert opened.update.train_loss == pytest.approx((10 * 1 + 30 * 3 + 60 * 6) / 100)
    assert opened.statistics is None


def test_a_loss_that_no_device_knows_stays_unknown(round_model):
    strategy = FedAvg()
    updates = [replace(update, train_loss=nan) for update in full_updates(round_model)]
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    opened = sums.read(summed(strategy, updates, layout), layout, group_of(updates), strategy)
    assert isnan(opened.update.train_loss)


def test_zeroth_order_scalars_are_averaged(round_model):
    strategy = ZerothOrder(num_z=2)
    updates = [
        Update(strategy.name, {"g": np.array(g, np.float32)}, n, 0.5)
        for g, n in (((1.0, -2.0), 10), ((3.0, 2.0), 30))
    ]
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    opened = sums.read(summed(strategy, updates, layout), layout, group_of(updates), strategy)
    np.testing.assert_allclose(opened.update.tensors["g"], [2.5, 1.0], atol=1e-3)


def test_class_sums_and_counts_add_up(round_model):
    strategy, labels = ClassMeans(), len(round_model.manifest.labels)
    width = round_model.manifest.head.features
    updates = []
    for seed, n in ((1, 3), (2, 5)):
        counts = np.zeros(labels, np.int32)
        counts[seed] = n
        features = np.zeros((labels, width), np.float32)
        features[seed] = n * seed * 1.25
        updates.append(Update(strategy.name, {"sums": features, "counts": counts}, n, nan))
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    tensors = sums.read(summed(strategy, updates, layout), layout, group_of(updates), strategy).update.tensors
    assert tensors["counts"][:4].tolist() == pytest.approx([0, 3, 5, 0])
    np.testing.assert_allclose(tensors["sums"][2], 12.5, rtol=1e-9)


def test_sums_of_a_federated_evaluation_add_up_to_figures_of_all_samples(model, digits, run, round_model):
    strategy = FederatedEvaluation(hold_out=1.0)
    parts = (slice(0, 30), slice(30, 100))
    updates = [strategy.train(model, LocalData(digits.x[part], digits.y[part]), run()) for part in parts]
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    opened = sums.read(summed(strategy, updates, layout), layout, group_of(updates), strategy)
    state = strategy.fold(strategy.start(round_model), opened.update, 1.0)
    memory = strategy.finish(state, round_model).memory
    together = figures(model.manifest.target, memory, round_model.round)
    assert together.num_examples == 100
    right = model.logits(digits.x[:100]).argmax(axis=1) == digits.y[:100]
    assert together.eval_acc == pytest.approx(right.mean())


def test_a_device_of_more_samples_than_the_most_counts_as_so_many(model, digits, run):
    """It may join after the round was opened. Its counts, sums and moments shrink alike."""
    strategy = kind_statistics.with_class_statistics(FedAvg(epochs=1), ClassStatistics())
    update = kind_statistics.train(strategy, model, LocalData(digits.x[:200], digits.y[:200]), run("pi"))
    results = []
    for most in (400, 20):
        masks = structs.replace(MASKS, most_weight=most)
        layout = layout_of(strategy, model.manifest, model.weights, masks)
        updates = [update, update]
        opened = sums.read(
            summed(strategy, updates, layout, masks), layout, group_of(updates, masks), strategy
        )
        results.append(opened.statistics)
    assert results[0].sums.counts.sum() == pytest.approx(400)
    assert results[1].sums.counts.sum() == pytest.approx(40, rel=1e-6)
    for statistics in results:
        assert np.allclose(class_means_of(statistics), class_means_of(results[0]), atol=1e-5)
    np.testing.assert_allclose(results[1].moments / 40, results[0].moments / 400, atol=1e-4)


def test_held_out_counts_do_not_shrink_the_statistics_of_a_usual_device(model, digits, run):
    strategy = kind_statistics.with_class_statistics(FedAvg(epochs=1), ClassStatistics(hold_out=0.5))
    update = kind_statistics.train(strategy, model, LocalData(digits.x[:200], digits.y[:200]), run("pi"))
    right = np.array([[100, 80, 90]], np.int32)  # held out, and of these right by each head
    update = replace(update, tensors={**update.tensors, class_statistics.RIGHT: right})
    masks = structs.replace(MASKS, most_weight=120)
    layout = layout_of(strategy, model.manifest, model.weights, masks)
    total, group = summed(strategy, [update, update], layout, masks), group_of([update, update], masks)
    statistics = sums.read(total, layout, group, strategy).statistics
    clear = class_statistics.decode(
        class_statistics.split_statistics(update.tensors)[1],
        class_statistics.shape_of(ClassStatistics(hold_out=0.5), model.manifest),
    )
    assert statistics.right.tolist() == [200, 160, 180]
    assert statistics.sums.counts.tolist() == (2 * clear.sums.counts).tolist()


def class_means_of(statistics):
    return statistics.sums.sums / np.maximum(statistics.sums.counts, 1e-9)[:, None]


def test_class_statistics_add_up_as_in_the_clear(model, digits, run):
    _add_up(model, digits, run)


def test_statistics_of_features_and_targets_add_up_as_in_the_clear(exported, run):
    bundle, rng = Bundle.open(exported.of_loss("mse")), np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    _add_up(OnnxModel(bundle), LocalData(x, x[:, :2] - x[:, 2:]), run)


def _add_up(model, data, run):
    settings = ClassStatistics()
    strategy = kind_statistics.with_class_statistics(FedAvg(epochs=1), settings)
    updates = [
        kind_statistics.train(strategy, model, LocalData(data.x[part], data.y[part]), run(f"pi-{at}"))
        for at, part in enumerate((slice(0, 80), slice(80, 240)))
    ]
    masks = Masks(helpers=MASKS.helpers, min_group=2, capacity=2, most_weight=200)
    layout = layout_of(strategy, model.manifest, model.weights, masks)
    opened = sums.read(summed(strategy, updates, layout, masks), layout, group_of(updates, masks), strategy)
    shape = class_statistics.shape_of(settings, model.manifest)
    clear = class_statistics.Statistics.none(*shape)
    for update in updates:
        clear = clear.add(
            class_statistics.decode(class_statistics.split_statistics(update.tensors)[1], shape)
        )
    assert opened.statistics.sums.counts.tolist() == clear.sums.counts.tolist()
    np.testing.assert_allclose(opened.statistics.sums.sums, clear.sums.sums, atol=1e-6)
    np.testing.assert_allclose(opened.statistics.moments, clear.moments, atol=1e-5)


def test_a_change_beyond_its_bound_shortens_the_whole_update(round_model):
    strategy = FedAvg()
    [update] = full_updates(round_model, sizes=(100,))
    name = next(iter(update.tensors))
    update = replace(update, tensors={**update.tensors, name: update.tensors[name] + np.float32(1000)})
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    _, note = sums.write(Weighed(update, strategy, 100), layout)
    assert note.startswith("its changes were shortened to 0.0")


def test_a_norm_bound_holds_for_all_changes_together(round_model):
    strategy = FedAvg()
    [update] = full_updates(round_model, sizes=(100,))
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    vector, _ = sums.write(Weighed(update, strategy, 100), layout, most_norm=0.25)
    opened = sums.read(vector, layout, SummedGroup(1, 1.0, 100, 100), strategy)
    change = sum(
        float(np.square(opened.update.tensors[name] - base, dtype=np.float64).sum())
        for name, base in round_model.weights.items()
    )
    assert change**0.5 == pytest.approx(0.25, rel=1e-3)


NOISY = structs.replace(MASKS, noise_milli=2000, clip_milli=500)


def test_central_noise_is_that_of_the_mean_by_the_formula(round_model):
    """Its deviation in a sum over the devices' share; the whole fixed point is read back."""
    strategy, updates = FedAvg(), full_updates(round_model, sizes=(50, 100, 100))
    layout = layout_of(strategy, round_model.manifest, round_model.weights, NOISY)
    total, deviation = MaskedVector.zeros(layout.values, layout.numbers), 2.0 * 0.5
    for update in updates:
        total.add(sums.write(Weighed(update, strategy, 100), layout, most_norm=0.5)[0])
    plain = MaskedVector(total.values.copy(), total.sums)
    add_noise(total, layout.exponents, deviation, np.random.default_rng(5).bytes)
    group = replace(group_of(updates), deviation=deviation)
    noisy, clear = (sums.read(vector, layout, group, strategy).update for vector in (total, plain))
    noise = np.concatenate([(noisy.tensors[name] - clear.tensors[name]).ravel() for name in clear.tensors])
    assert noise.std() == pytest.approx(deviation / 2.5, rel=5 / (2 * noise.size) ** 0.5)
    assert isnan(noisy.train_loss)
    with pytest.raises(MaskError, match="devices make"):
        sums.read(total, layout, group_of(updates), strategy)


def test_with_central_noise_nothing_is_sent_that_would_have_none(round_model):
    assert layout_of(FedAvg(), round_model.manifest, round_model.weights, NOISY).sums == ()
    with pytest.raises(MaskError, match="class-means sends sums, counts, to which central noise"):
        layout_of(ClassMeans(), round_model.manifest, round_model.weights, NOISY)
    strategy = kind_statistics.with_class_statistics(FedAvg(), ClassStatistics())
    with pytest.raises(MaskError, match="full sends class statistics, to which central noise"):
        layout_of(strategy, round_model.manifest, round_model.weights, NOISY)


def test_exponents_name_the_values_in_order(round_model):
    layout = layout_of(FedAvg(), round_model.manifest, round_model.weights, NOISY)
    each = [part.exponent for part in layout.tensors for _ in range(part.size)]
    assert [exponent for count, exponent in layout.exponents for _ in range(count)] == each
    assert len(each) == layout.values - CHECKS
    exponents = [exponent for _, exponent in layout.exponents]
    assert all(exponent != other for exponent, other in pairwise(exponents))


def test_a_sum_with_a_wrong_mask_is_refused(round_model):
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    total = summed(strategy, updates, layout)
    total.add_masks([b"\x77" * 32])
    with pytest.raises(MaskError, match="devices, expected 3 four times"):
        sums.read(total, layout, group_of(updates), strategy)


def test_a_sum_that_is_wrong_in_some_values_is_refused(round_model):
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    total = summed(strategy, updates, layout)
    wrong = MaskedVector.zeros(layout.values, layout.numbers)
    wrong.add_masks([b"\x77" * 32])
    total.values[:-CHECKS] += wrong.values[:-CHECKS]
    with pytest.raises(MaskError, match=r"holds .*, 3 devices make"):
        sums.read(total, layout, group_of(updates), strategy)


def test_a_liar_moves_a_sum_by_no_more_than_the_weights_of_all_its_devices_together(round_model):
    """Three devices weigh as one of the largest weight together: no value can exceed its bound."""
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    total, part = summed(strategy, updates, layout), layout.tensors[0]
    total.values.view(np.int32)[0] = int(0.99 * part.bound * 2.0**part.exponent)
    sums.read(total, layout, group_of(updates), strategy)
    total.values.view(np.int32)[0] = int(1.01 * part.bound * 2.0**part.exponent)
    with pytest.raises(SpoiltSum, match=f"the sum of {part.name} holds .*, 3 devices make"):
        sums.read(total, layout, group_of(updates), strategy)


def test_a_sum_that_is_longer_than_clipped_changes_can_be_is_refused(round_model):
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, NOISY)
    total = MaskedVector.zeros(layout.values, layout.numbers)
    for update in updates:
        total.add(sums.write(Weighed(update, strategy, 100), layout, most_norm=0.5)[0])
    clipped = replace(group_of(updates), most_norm=0.5)
    sums.read(total, layout, clipped, strategy)
    total.values.view(np.int32)[0] += int(0.6 * 2.0 ** layout.tensors[0].exponent)
    with pytest.raises(SpoiltSum, match=r"the sum has norm 0\.\d+, 3 devices make 0\.500\d at most"):
        sums.read(total, layout, clipped, strategy)
    noise = replace(clipped, deviation=0.01)
    sums.read(total, layout, noise, strategy)


def test_a_sum_with_negative_numbers_of_samples_is_refused(round_model):
    strategy, updates = FedAvg(), full_updates(round_model)
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    total = summed(strategy, updates, layout)
    total.sums.view(np.int64)[1] -= 2 * total.sums.view(np.int64)[1]
    with pytest.raises(SpoiltSum, match="the sum of loss-known holds -1, expected 0 or more"):
        sums.read(total, layout, group_of(updates), strategy)


def test_an_update_that_is_not_finite_is_refused(round_model):
    strategy = FedAvg()
    [update] = full_updates(round_model, sizes=(100,))
    name = next(iter(update.tensors))
    update.tensors[name].ravel()[0] = np.inf
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    with pytest.raises(MaskError, match=f"{name} has non-finite values"):
        sums.write(Weighed(update, strategy, 100), layout)


def test_a_large_tensor_is_written_in_parts_without_a_second_copy():
    base = np.linspace(-1, 1, 10**6 + 1, dtype=np.float32)
    new = (base + 0.9 * np.sin(np.arange(len(base)))).astype(np.float32)
    layout = SumLayout((TensorPart("w", base.shape, 1.0, 20, base),), (), None)
    weighed = Weighed(Update("full", {"w": new}, 50, 0.5), FedAvg(), 100)
    tracemalloc.start()
    try:
        vector, _ = sums.write(weighed, layout)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < layout.content_bytes + 500_000
    expected = np.rint((new.astype(np.float64) - base) * 0.5 * 2**20).astype(np.int32)
    np.testing.assert_array_equal(vector.values.view(np.int32)[:-CHECKS], expected)
    assert vector.to_bytes() == vector.values.tobytes()


def test_a_shortened_update_is_what_its_integers_say(round_model):
    strategy = FedAvg()
    [update] = full_updates(round_model, sizes=(100,))
    layout = layout_of(strategy, round_model.manifest, round_model.weights, MASKS)
    short, factor = sums.shortened(update, layout, most_norm=0.25)
    assert 0 < factor < 1
    vector, _ = sums.write(Weighed(update, strategy, 100), layout, most_norm=0.25)
    opened = sums.read(vector, layout, SummedGroup(1, 1.0, 100, 100), strategy)
    for name, value in short.tensors.items():
        np.testing.assert_allclose(value, opened.update.tensors[name], atol=1e-6)
    assert sums.shortened(update, layout) == (update, 1.0)
