"""Heads in closed form of values, flags and reconstruction."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.aggregator.hierarchy import forwarding
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.training.evaluation import evaluate
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.interface.device_half import Late, LocalData
from device_runtime.strategies.interface.kind import ClassStatistics, inapplicable_reason
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.statistics import (
    class_statistics,
    closed_form,
    columns,
    kind_statistics,
    shortages,
)
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.columns import JointMoments, discriminants, ridge
from device_runtime.strategies.statistics.covariance import RoundMeans

WIDTH, COLUMNS = 8, 2
VALUES, FLAGS = targets_of("mse", ["a", "b"]), targets_of("bce", ["a", "b", "c"])
LOSSES = [("mse", ""), ("mae", ""), ("huber", ""), ("bce", ""), ("mse", "input")]


def regression(count=600):
    rng = np.random.default_rng(0)
    f = rng.normal(size=(count, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH)) + 1
    y = 0.2 * f @ rng.normal(size=(WIDTH, COLUMNS)) + 0.4 * rng.normal(size=(count, COLUMNS)) - 0.5
    return f, y.astype(np.float32)


def pooled(z, strata, parts, labels=10, smallest=1):
    total = Statistics.none(labels, z.shape[1])
    for part in parts:
        total = total.add(class_statistics.measure_statistics(z[part], strata[part], labels, smallest))
    return total


PARTITIONS = {
    "one device": lambda y: [np.arange(len(y))],
    "by the target": lambda y: np.array_split(np.argsort(y[:, 0]), 7),
    "at random, of uneven sizes": lambda y: np.split(
        np.random.default_rng(1).permutation(len(y)), [3, 50, 90]
    ),
}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_pooled_sums_of_any_partition_give_the_ridge_regression_of_all_samples(partition):
    f, y = regression()
    z = np.hstack([f, y]).astype(np.float32)
    strata = VALUES.strata(y, y)
    total = pooled(z, strata, PARTITIONS[partition](y))
    weights, bias = ridge(JointMoments.of(total, None, COLUMNS), COLUMNS)
    f, y = z[:, :WIDTH].astype(np.float64), z[:, WIDTH:].astype(np.float64)
    x, t, n = f - f.mean(axis=0), y - y.mean(axis=0), len(f)
    s = np.linalg.eigvalsh(x.T @ x / n)
    scores, heads = [], []
    least = columns.ROUNDING * np.sqrt(WIDTH) * np.square(f).mean()
    for k in np.maximum(least, columns.RIDGES * s.mean()):
        head = np.linalg.solve(x.T @ x / n + k * np.eye(WIDTH), x.T @ t / n)
        hat = 1 + np.trace(np.linalg.solve(x.T @ x / n + k * np.eye(WIDTH), x.T @ x / n))
        scores.append(np.square(t - x @ head).sum() / n / (1 - hat / n) ** 2)
        heads.append(head)
    best = heads[int(np.argmin(scores))]
    np.testing.assert_allclose(weights, best.T, atol=1e-6)
    np.testing.assert_allclose(bias, y.mean(axis=0) - f.mean(axis=0) @ best, atol=1e-6)


def test_a_ridge_is_chosen_where_samples_are_few_and_noisy():
    rng = np.random.default_rng(0)
    f, new = rng.normal(size=(40, 30)), rng.normal(size=(500, 30))
    slope = rng.normal(size=(30, 1)) / 6
    z = np.hstack([f, f @ slope + rng.normal(size=(40, 1))]).astype(np.float32)
    strata = targets_of("mse", ["a"]).strata(z[:, 30:], z)
    weights, bias = ridge(JointMoments.of(pooled(z, strata, [np.arange(40)]), None, 1), 1)
    plain = np.linalg.lstsq(np.hstack([f, np.ones((40, 1))]), z[:, 30:], rcond=None)[0]
    off = np.square(new @ weights.T + bias - new @ slope).mean()
    assert off < 0.5 * np.square(new @ plain[:30] + plain[30] - new @ slope).mean()


def test_a_region_of_which_only_means_are_known_bends_the_regression_to_it():
    """The upper half sends means alone; the slope there is that of the means."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(2000, 1))
    y = np.where(f > 0, 3 * f, 0.2 * f) + 0.05 * rng.normal(size=f.shape)
    z = np.hstack([f, y]).astype(np.float32)
    strata = targets_of("mse", ["a"]).strata(z[:, 1:], z)
    low, high = pooled(z, strata, [np.flatnonzero(f < 0)]), pooled(z, strata, [np.flatnonzero(f >= 0)])
    partial = low.add(replace(Statistics.none(10, 2), sums=high.sums))
    with_means, of_low, of_all = (
        ridge(JointMoments.of(total, None, 1), 1)[0][0, 0] for total in (partial, low, low.add(high))
    )
    assert abs(with_means - of_all) < 0.3 * abs(of_low - of_all)


def test_class_means_alone_of_many_devices_give_a_regression():
    f, y = regression(4000)
    z = np.hstack([f, y]).astype(np.float32)
    strata = VALUES.strata(y, y)
    means = RoundMeans(10, WIDTH + COLUMNS)
    parts = np.array_split(np.arange(4000), 100)
    total = Statistics.none(10, WIDTH + COLUMNS)
    for part in parts:
        sent = class_statistics.measure_statistics(z[part], strata[part], 10, 2)
        means.add(sent.sums)
        total = total.add(replace(Statistics.none(10, WIDTH + COLUMNS), sums=sent.sums))
    weights, bias = ridge(JointMoments.of(total, means.scatter(), COLUMNS), COLUMNS)
    best_weights, best_bias = ridge(JointMoments.of(pooled(z, strata, parts), None, COLUMNS), COLUMNS)

    def left(w, b):
        return np.square(f @ w.T + b - y).sum() / np.square(y - y.mean(axis=0)).sum()

    assert left(weights, bias) < 1.1 * left(best_weights, best_bias)
    with pytest.raises(ValueError, match="how features vary"):
        JointMoments.of(total, None, COLUMNS)


def test_flags_have_the_logits_of_their_discriminant_analysis():
    """Two normal clouds at -1 and 1 for each flag: the logit is 2 x + log odds; nobody has the third flag."""
    rng = np.random.default_rng(0)
    y = (rng.random((20_000, 3)) < [0.5, 0.2, 0]).astype(np.float32)
    f = 2 * y - 1 + rng.normal(size=y.shape)
    strata = FLAGS.strata(y, y)
    assert set(strata[~y.any(axis=1)]) == {3}
    z = np.hstack([f, y]).astype(np.float32)
    moments = JointMoments.of(pooled(z, strata, np.array_split(np.arange(20_000), 9), 4), None, 3)
    weights, bias = discriminants(moments, 3)
    np.testing.assert_allclose(weights[0], [2, 0, 0], atol=0.1)
    assert bias[1] == pytest.approx(np.log(0.2 / 0.8), abs=0.1)
    assert bias[2] < -8
    assert not weights[2].any()


def test_strata_are_tenths_of_the_normal_distribution_first_flags_or_classes():
    values = np.array([[-3, -3], [-0.1, 0.0], [0.2, 0.0], [9, 9]], np.float32)
    assert VALUES.strata(values, values).tolist() == [0, 4, 5, 9]
    flags = np.array([[0, 0, 1], [1, 0, 1], [0, 0, 0]], np.float32)
    assert FLAGS.strata(flags, flags).tolist() == [2, 0, 3]
    x = np.ones((2, 1, 2), np.float32)
    spec = targets_of("mse", ["normal"], "input")
    assert spec.compared_values(x, np.zeros(2, np.int64)).tolist() == [[1, 1], [1, 1]]


def data_of(manifest, count=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    slopes = np.random.default_rng(9).normal(size=(4, 3))
    if manifest.target.compared == "input":
        along = rng.normal(size=(count, 1))
        return LocalData((along * [1, 1, -1, 1] + 0.1 * x).astype(np.float32), np.zeros(count, np.int32))
    if manifest.target.compared == "flags":
        return LocalData(x, (x @ slopes > 0.3).astype(np.float32))
    return LocalData(x, (x @ slopes[:, :2] / 2).astype(np.float32))


@pytest.fixture(params=LOSSES, ids=lambda each: "-".join(each).strip("-"))
def trained(request, exported):
    """A bundle's model, and the round that it opens."""
    bundle = Bundle.open(exported.of_loss(*request.param))
    return OnnxModel(bundle), RoundModel(bundle.manifest, bundle.weights(), round=1, seed=5)


def round_of(trained, parts, run, settings=None, carried=None, kind="class-means", rests=False):
    """One round of devices that send this kind, merged."""
    model, base = trained
    wish = {"statistics": settings or {"samples": 0}}
    kinds = {name: registry.make(name, wish) for name in ("full", "class-means")}
    folding = Folding(kinds, base, carried or CarriedState(), rests=rests)
    for number, part in enumerate(parts):
        update = kind_statistics.train(kinds[kind], model, part, run(f"pi-{number}"))
        assert set(update.tensors) >= {class_statistics.ROWS}
        rest, sent = folding.parted(update)
        folding.pool(sent, None)
        folding.add(rest, update.num_examples)
    return folding.merged()


def cut(data, count):
    return [LocalData(data.x[i::count], data.y[i::count]) for i in range(count)]


@pytest.mark.parametrize(
    "settings", [{"samples": 0}, {"samples": 0, "moments": False}], ids=["moments", "means"]
)
def test_the_served_head_of_every_loss_is_better_than_the_untrained_one(trained, run, settings):
    model, base = trained
    data, test = data_of(base.manifest), data_of(base.manifest, seed=1)
    before = evaluate(model, test.x, test.y)
    merged, note = round_of(trained, cut(data, 10), run, settings)
    assert not note or note.startswith("statistics far from the others' are bounded: ")
    model.load(merged.served)
    after = evaluate(model, test.x, test.y)
    assert after.eval_acc > before.eval_acc
    if base.manifest.target.loss != "mae":  # ridge regression minimises squares
        assert after.eval_loss < before.eval_loss


def test_updates_that_train_are_counted_by_stratum(trained, run):
    _, base = trained
    parts = cut(data_of(base.manifest, 120), 3)
    merged, _ = round_of(trained, parts, run, kind="full", rests=True)
    memory = merged.carried.memory[shortages.MEMORY]
    assert memory["trained"].shape == (base.manifest.strata,)
    assert memory["trained"].sum() == pytest.approx(3)
    assert memory["richest"] == 3
    assert shortages.MEMORY not in round_of(trained, parts, run, kind="full")[0].carried.memory


def test_the_temperature_is_that_of_the_mean_margin_and_at_least_1():
    """Margins of 6 and 10 on exp(4) samples: 8 / 4."""
    assert columns.temperature_of(np.array([6.0, 10.0]), np.exp(4)) == pytest.approx(2)
    assert [columns.temperature_of(np.array(flat), np.exp(4)) for flat in ([1.0, 3.0], [])] == [1, 1]


def test_a_resumed_pool_goes_on_to_the_bit_and_late_statistics_count(trained, run):
    model, base = trained
    parts = cut(data_of(base.manifest), 4)
    first, _ = round_of(trained, parts[:2], run)
    again = [round_of(trained, parts[2:], run, carried=first.carried)[0] for _ in range(2)]
    for name, value in again[0].served.items():
        np.testing.assert_array_equal(value, again[1].served[name])
    settings = ClassStatistics(samples=0)
    kind = registry.make("class-means", {"statistics": {"samples": 0}})
    pooling = closed_form.RoundStatistics(base.manifest, base.weights, settings, 5)
    for part, late in zip(parts, (None, None, None, Late(3, 7, 1.0, base=lambda: base.weights)), strict=True):
        _, sent = pooling.parted(kind_statistics.train(kind, model, part, run()))
        pooling.add(sent, late)
    pool, served, note = pooling.closed({})
    assert (pool.statistics.sums.counts.sum() > 350, bool(served)) == (True, True)
    assert not note or note.startswith("statistics far from the others' are bounded: ")


def test_a_lie_about_the_target_moves_the_head_little(trained, run):
    model, base = trained
    parts, test = cut(data_of(base.manifest), 10), data_of(base.manifest, seed=1)
    honest, _ = round_of(trained, parts, run)
    if base.manifest.target.compared == "flags":
        lie = LocalData(parts[0].x, 1 - parts[0].y)
    elif base.manifest.target.compared == "input":
        lie = LocalData(30 * parts[0].x, parts[0].y)
    else:
        lie = LocalData(parts[0].x, 30 - 60 * parts[0].y)
    with_lie, _ = round_of(trained, [lie, *parts[1:]], run)
    figures = []
    for merged in (honest, with_lie):
        model.load(merged.served)
        figures.append(evaluate(model, test.x, test.y).eval_acc)
    assert figures[1] > figures[0] - 0.15


def test_a_site_sends_the_sums_of_its_devices(trained, run):
    _, base = trained
    settings = ClassStatistics(samples=0, numbers="float16")
    merged, _ = round_of(trained, cut(data_of(base.manifest), 4), run)
    memory = merged.carried.memory[closed_form.MEMORY]
    total = forwarding.round_statistics(memory, base.weights, base.manifest, settings)
    full = registry.make("full", {"statistics": {"samples": 0}})
    sent = forwarding.encoded_statistics(total, full, 400)
    shape = class_statistics.shape_of(settings, base.manifest)
    above = class_statistics.decode(sent, shape)
    np.testing.assert_allclose(above.sums.counts, total.sums.counts, atol=1)
    largest = np.abs(total.moments).max()
    np.testing.assert_allclose(above.moments, total.moments, atol=0.02 * largest)


def test_a_narrow_link_sends_some_strata(trained, run):
    _, base = trained
    kind = registry.make("class-means", {"statistics": {"moments": False, "most_classes": 2, "samples": 0}})
    update = kind_statistics.train(kind, trained[0], data_of(base.manifest), run())
    shape = class_statistics.shape_of(kind.statistics, base.manifest)
    sent = class_statistics.decode(update.tensors, shape)
    assert len(sent.sums.present) == min(2, shape[0])
    assert kind_statistics.rejection_reason(kind, update.tensors, update.num_examples, base.manifest) == ""


def test_held_out_samples_are_counted_for_the_head_with_the_smaller_loss(trained, run):
    _, base = trained
    parts = cut(data_of(base.manifest), 4)
    settings = {"samples": 0, "hold_out": 0.25}
    first, _ = round_of(trained, parts, run, settings)
    trained[0].load(base.weights)
    kind = registry.make("class-means", {"statistics": settings})
    again = replace(run(), aside=first.carried.aside)
    update = kind_statistics.train(kind, trained[0], parts[0], again)
    count, closed, trained_head = update.tensors[class_statistics.RIGHT][0]
    assert (count, closed + trained_head <= count) == (25, True)
    assert closed > trained_head


def test_statistics_apply_to_every_loss_but_ones_own_and_class_means_without_them_to_classes(exported):
    manifest = Bundle.open(exported.of_loss("mse")).manifest
    settings = ClassStatistics()
    assert class_statistics.infeasible_reason(manifest, settings) == ""
    few = replace(settings, features=3)
    assert "2 columns, at most half of 3" in class_statistics.infeasible_reason(manifest, few)
    import msgspec

    pinball = msgspec.structs.replace(manifest.target, loss="pinball", own=True)
    other = msgspec.structs.replace(manifest, loss=pinball)
    assert "which only its graphs know" in class_statistics.infeasible_reason(other, settings)
    assert "works by class" in inapplicable_reason(registry.make("class-means"), manifest)
    assert inapplicable_reason(registry.make("class-means", {"statistics": {}}), manifest) == ""
    assert "works by class" in inapplicable_reason(registry.make("few-shot", {"statistics": {}}), manifest)
