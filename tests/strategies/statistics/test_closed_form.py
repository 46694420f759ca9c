"""The head that a round serves in closed form, and the pool of class statistics that it is made of."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.bundles.tensors import decode, encode
from device_runtime.strategies.directions.directions import Projection
from device_runtime.strategies.interface.device_half import Late, LocalData, Update
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.statistics import class_statistics, closed_form, kind_statistics
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.closed_form import StatisticsPool


def statistics(features, y, labels):
    return class_statistics.measure_statistics(features.astype(np.float32), y, labels, 1)


@pytest.fixture
def clouds():
    """Three normal clouds of one covariance in five dimensions, 40, 80 and 200 samples."""
    rng = np.random.default_rng(3)
    means, root = 2 * rng.normal(size=(3, 5)), rng.normal(size=(5, 5))
    y = np.repeat([0, 1, 2], [40, 80, 200])
    return (means[y] + rng.normal(size=(320, 5)) @ root).astype(np.float32), y


def test_the_head_is_that_of_a_plain_linear_discriminant_analysis(clouds):
    x, y = clouds
    weights, bias = closed_form.solve_head(statistics(x, y, 3))
    f = x.astype(np.float64)
    within = sum((y == c).sum() * np.cov(f[y == c].T, bias=True) for c in range(3)) / (320 - 3)
    shrunk = 0.9 * within + 0.1 * np.trace(within) / 5 * np.eye(5)
    inverse = np.linalg.inv(shrunk)
    means, counts = np.stack([f[y == c].mean(axis=0) for c in range(3)]), np.bincount(y)
    plain = means @ inverse
    few = np.trace(inverse @ within) / (2 * counts)
    plain_bias = -np.einsum("cd,cd->c", plain, means) / 2 + np.log(counts / 320) + few
    logits = means @ plain.T + plain_bias
    over = [logits[c, c] - max(logits[c, other] for other in range(3) if other != c) for c in range(3)]
    temperature = np.mean(over) / np.log(320)
    assert temperature > 1
    np.testing.assert_allclose(weights, plain / temperature, rtol=1e-8)
    np.testing.assert_allclose(bias, plain_bias / temperature, rtol=1e-8)


def test_the_odds_are_no_higher_than_the_samples_are_evidence_for():
    """Features of training samples are within 0.01 of their class mean, those of new samples within 1."""
    rng = np.random.default_rng(4)
    means, y = 1.5 * rng.normal(size=(4, 6)), np.repeat(np.arange(4), 100)
    x = (means[y] + 0.01 * rng.normal(size=(400, 6))).astype(np.float32)
    weights, bias = closed_form.solve_head(statistics(x, y, 4))
    logits = means @ weights.T + bias
    over = logits.diagonal() - np.where(np.eye(4, dtype=bool), -np.inf, logits).max(axis=1)
    assert over.mean() == pytest.approx(np.log(400), rel=0.01)
    new = (means[y] + rng.normal(size=(400, 6))) @ weights.T + bias
    right = new.argmax(axis=1) == y
    assert 0.9 < right.mean() < 1
    loss = np.mean(np.log(np.exp(new).sum(axis=1)) - new[np.arange(400), y])
    assert loss < 0.3


def test_a_class_that_nobody_sent_is_never_served(clouds):
    x, y = clouds
    weights, bias = closed_form.solve_head(statistics(x[y != 1], y[y != 1], 3))
    assert not weights[1].any()
    assert bias[1] == -30
    assert set((x @ weights.T + bias).argmax(axis=1)) == {0, 2}


def test_a_class_of_which_only_means_are_known_has_the_covariance_of_the_others(clouds):
    x, y = clouds
    others = statistics(x[y != 1], y[y != 1], 3)
    means = statistics(x[y == 1], y[y == 1], 3)
    only_means = Statistics(means.sums, *(Statistics.none(3, 5).moment_sums, np.zeros((5, 5))))
    weights, bias = closed_form.solve_head(others.add(only_means))
    guess = (x @ weights.T + bias).argmax(axis=1)
    assert (guess[y == 1] == 1).mean() > 0.8


def test_without_any_spread_the_head_is_that_of_the_nearest_class_mean(clouds):
    x, y = clouds
    own = statistics(x, y, 3)
    alone = replace(Statistics.none(3, 5), sums=own.sums)
    weights, bias = closed_form.solve_head(alone)
    means = own.sums.means()
    nearest = np.square(x[:, None] - means).sum(axis=2).argmin(axis=1)
    assert ((x @ weights.T + bias).argmax(axis=1) == nearest).mean() > 0.97  # priors move a few
    one_class = replace(Statistics.none(3, 5), sums=statistics(x[y == 1], y[y == 1], 3).sums)
    with pytest.raises(ValueError, match="means of 1 classes and no spread"):
        closed_form.solve_head(one_class)


def test_the_pool_decays_and_the_extractor_is_a_mean_with_its_weights():
    """By hand, for d = 2: round 1 has nbar = 2, gamma = 1 - 2/40 = 0.95; round 2 nbar = (2 + 18)/2 = 10,
    gamma = 1 - 10/40 = 0.75, so w = 0.75 * 2 + 18 and E = (1.5 * 1 + 18 * 3) / 19.5.
    """
    first = statistics(np.ones((2, 2)), np.zeros(2, np.int64), 2)
    second = statistics(np.full((18, 2), 2.0), np.ones(18, np.int64), 2)
    pool = StatisticsPool.of({}, 2, Projection(2, 512, 0)).after(first, {"low": np.full(3, 1.0)})
    assert (pool.weight, pool.samples, pool.rounds) == (2, 2, 1)
    pool = pool.after(second, {"low": np.full(3, 3.0)})
    assert (pool.weight, pool.samples, pool.rounds) == (19.5, 10, 2)
    np.testing.assert_array_equal(pool.statistics.sums.counts, [1.5, 18])
    np.testing.assert_array_equal(pool.statistics.sums.sums, [[1.5, 1.5], [36, 36]])
    np.testing.assert_array_equal(pool.statistics.moments, np.full((2, 2), 0.75 * 2 + 18 * 4))
    np.testing.assert_array_equal(pool.extractor["low"], np.full(3, 55.5 / 19.5))
    assert pool.after(Statistics.none(2, 2), {}) is pool


def test_late_statistics_weigh_the_extractor_of_their_own_round(manifest_of_two):
    """6 samples of this round's base, 2 of one that was 5.0: its extractor counts (6 * 1 + 2 * 5) / 8."""
    now, then = ({"low": np.full(3, v), "index": np.arange(2), "w": np.ones(1)} for v in (1.0, 5.0))
    pooling = closed_form.RoundStatistics(manifest_of_two, now, ClassStatistics())
    pooling.add(statistics(np.ones((6, 2)), np.zeros(6, np.int64), 2), None)
    pooling.add(statistics(np.ones((2, 2)), np.ones(2, np.int64), 2), Late(3, 7, 1.0, base=lambda: then))
    pool, served, why = pooling.closed({})
    np.testing.assert_array_equal(pool.extractor["low"], np.full(3, 2.0))
    assert pool.extractor.keys() == {"low"}
    assert (pool.weight, served, bool(why)) == (8, {}, True)  # all features of a class are the same


@pytest.fixture
def manifest_of_two():
    from types import SimpleNamespace

    return SimpleNamespace(
        labels=("a", "b"),
        strata=2,
        columns=0,
        scale=None,
        head=SimpleNamespace(weight="w", bias="b", features=2),
    )


def pooled(model, parts, names, run, round_model, memory=None, moments=True):
    """A round of these kinds, one device each, merged."""
    request = ClassStatistics(moments=moments)
    kinds = {n: kind_statistics.with_class_statistics(registry.make(n, QUICK.get(n)), request) for n in QUICK}
    carried = memory or closed_form_nothing()
    folding = Folding(kinds, round_model, carried)
    for i, (name, data) in enumerate(zip(names, parts, strict=True)):
        result = kind_statistics.train(kinds[name], model, data, run(f"pi-{i}"))
        update, sent = folding.parted(result)
        folding.pool(sent, None)
        folding.add(update, result.num_examples)
    return folding.merged()


QUICK = {
    "full": {"epochs": 1, "lr": 0.05, "batch": 16},
    "few-shot": {"epochs": 1, "join_base": True},
    "class-means": {"head": "trained"},
}


def closed_form_nothing():
    from device_runtime.strategies.interface.aggregator_half import CarriedState

    return CarriedState()


def halves(digits):
    """All digits but 8 and 9, those of 8, those of 9."""
    return [LocalData(digits.x[w], digits.y[w]) for w in (digits.y < 8, digits.y == 8, digits.y == 9)]


def test_a_class_that_only_sends_means_is_recognised_by_the_served_model(model, digits, run, round_model):
    rest, eights, nines = halves(digits)
    both = LocalData(np.concatenate([eights.x, rest.x[:20]]), np.concatenate([eights.y, rest.y[:20]]))
    merged, odd = pooled(model, [rest, both, nines], list(QUICK), run, round_model)
    assert odd == ""
    model.load(merged.served)
    guess = model.logits(digits.x).argmax(axis=1)
    for label in (8, 9):
        assert (guess[digits.y == label] == label).mean() > 0.7
    assert not np.array_equal(merged.base["head.weight"], merged.served["head.weight"])
    extractor = [name for name in merged.served if not name.startswith("head.")]
    assert all(np.array_equal(merged.served[name], round_model.weights[name]) for name in extractor)


@pytest.mark.parametrize("kind", ["zeroth-order", "class-means"])
def test_a_class_of_devices_that_measure_a_part_is_no_rarer(kind, model, digits, run, round_model):
    """Two devices with as many samples of as many classes: one trains all, the other measures some."""
    low, high = (LocalData(digits.x[w], digits.y[w]) for w in (digits.y < 5, digits.y >= 5))
    weak = registry.make(kind, {"statistics": {"samples": 30}})
    full = registry.make("full", {"epochs": 1, "statistics": {}})
    folding = Folding({"full": full, kind: weak}, replace(round_model, round=3))
    for strategy, part in ((full, low), (weak, high)):
        result = kind_statistics.train(strategy, model, part, run())
        rest, statistics_ = folding.parted(result)
        folding.pool(statistics_, None)
        folding.add(rest, 1.0)
    merged, _ = folding.merged()
    memory = merged.carried.memory[closed_form.MEMORY]
    sums = StatisticsPool.of(memory, 10, ClassStatistics().projection(64)).statistics.sums
    of_low, of_high = sums.counts[:5].sum(), sums.counts[5:].sum()
    assert of_low == len(low)
    assert of_high == pytest.approx(len(high), rel=0.2)


@pytest.mark.parametrize("name", ["few-shot", "class-means"])
def test_a_class_counts_as_many_samples_when_it_is_sent_alone(name, model, digits, run, round_model):
    """Of 24 samples for each class or so; class means are measured on 40 of 240."""
    counts = []
    for most in (0, 1):
        strategy = registry.make(
            name, {**QUICK[name], "statistics": {"most_classes": most, "moments": False}}
        )
        folding = Folding({name: strategy}, round_model)
        update = kind_statistics.train(strategy, model, digits, replace(run(), round=1, rare=(4,)))
        counts.append(folding.parted(update)[1].sums.counts)
    assert counts[0].sum() == pytest.approx(240, rel=0.05)
    assert counts[1][4] == counts[0][4] > 0
    assert counts[1].sum() == counts[1][4]


def test_the_rarest_classes_are_those_of_less_than_half_of_the_mean_fewest_first():
    counts = np.array([30.0, 0.0, 11.0, 200.0, 9.9, 0.0, 10.0, 90.0, 49.0, 0.1])  # half of the mean: 20
    assert closed_form.rarest_classes({"counts": counts}) == (1, 5, 9, 4, 6, 2)
    assert closed_form.rarest_classes({}) == closed_form.rarest_classes({"counts": np.zeros(3)}) == ()
    assert closed_form.rarest_classes({"counts": np.arange(100.0)}) == tuple(range(16))


def test_the_next_base_is_what_it_would_be_without(model, digits, run, round_model):
    parts, names = halves(digits)[:1], ["full"]
    kind = registry.make("full", QUICK["full"])
    plain = Folding({"full": kind}, round_model)
    plain.add(kind.train(model, parts[0], run("pi-0")), len(parts[0]))
    merged, _ = pooled(model, parts, names, run, round_model)
    assert encode(merged.base) == encode(plain.merged()[0].base)


def test_a_round_of_class_means_alone_serves_a_head(model, digits, run, round_model):
    """The trained head of the exported bundle is untrained; ten devices of 24 samples send means."""
    parts = [LocalData(digits.x[i::10], digits.y[i::10]) for i in range(10)]
    merged, odd = pooled(model, parts, ["class-means"] * 10, run, round_model, moments=False)
    assert odd == ""
    model.load(merged.served)
    right = (model.logits(digits.x).argmax(axis=1) == digits.y).mean()
    sums = statistics(model.features(digits.x), digits.y, 10).sums
    nearest = np.square(model.features(digits.x)[:, None] - sums.means()).sum(axis=2).argmin(axis=1)
    assert right > (nearest == digits.y).mean()


def test_a_pool_that_was_written_before_means_had_a_scatter_is_read(model, digits, run, round_model):
    first, _ = pooled(model, halves(digits)[:1], ["full"], run, round_model)
    memory = dict(first.carried.memory[closed_form.MEMORY])
    now = StatisticsPool.of(memory, 10, Projection(64, 512, 0))
    del memory["mean_scatter"], memory["mean_free"]
    pool = StatisticsPool.of(memory, 10, Projection(64, 512, 0))
    assert (pool.of_means.free, pool.rounds) == (0, 1)
    heads = [closed_form.solve_head(each.statistics) for each in (pool, now)]
    np.testing.assert_array_equal(heads[0][0], heads[1][0])


def test_a_pool_that_was_kept_goes_on_to_the_bit(model, digits, run, round_model):
    """What a restarted aggregator reads from disk is what it had in memory."""
    parts, names = halves(digits)[:1], ["full"]
    first, _ = pooled(model, parts, names, run, round_model)
    memory = first.carried.memory[closed_form.MEMORY]
    read = type(first.carried)(memory={closed_form.MEMORY: decode(encode(memory))})
    second = [pooled(model, parts, names, run, round_model, carried)[0] for carried in (first.carried, read)]
    assert encode(second[0].served) == encode(second[1].served)
    assert encode(second[0].carried.memory[closed_form.MEMORY]) == encode(
        second[1].carried.memory[closed_form.MEMORY]
    )
    assert StatisticsPool.of(memory, 10, Projection(64, 512, 0)).rounds == 1


def test_statistics_are_of_features_without_their_scale(exported):
    """Where a bundle has such a tensor, W undoes it: what is served says the same whatever the scale is."""
    x = np.random.default_rng(0).normal(size=(60, 4)) + np.repeat(np.eye(3, 4) * 5, 20, axis=0)
    y = np.repeat([0, 1, 2], 20)
    measured_statistics = statistics(x, y, 3)
    weights, _ = closed_form.solve_head(measured_statistics)
    scale = np.array([1.0, 2.0, 4.0, 0.5])
    scaled = statistics(x * scale, y, 3).times(1 / scale)
    np.testing.assert_allclose(closed_form.solve_head(scaled)[0], weights, rtol=1e-3)


def test_a_contribution_without_statistics_is_left_as_it_is(round_model):
    plain = Update("full", {"w": np.ones(2)}, 3, 0.5)
    pooling = closed_form.RoundStatistics(round_model.manifest, round_model.weights, ClassStatistics())
    assert pooling.parted(plain) == (plain, None)
