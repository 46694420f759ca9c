import numpy as np

from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.interface.aggregator_half import KindResult, TensorMean
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.merge import merge, rebased_tensors


def named(*effects):
    """Of kinds by some names, in this order."""
    return {str(place): effect for place, effect in enumerate(effects)}


def effect(value, names, n, round_model):
    tensors = {name: np.full_like(round_model.weights[name], value) for name in names}
    return KindResult(mean=TensorMean().add(tensors, n), num_examples=n)


def test_each_tensor_is_averaged_over_those_who_trained_it(round_model):
    manifest = round_model.manifest
    full = effect(1.0, manifest.names("all"), 60, round_model)
    subset = effect(4.0, manifest.names("mid"), 30, round_model)
    base = merge(round_model, named(full, subset)).base
    for name in manifest.names("all"):
        expected = (60 * 1 + 30 * 4) / 90 if name in manifest.names("mid") else 1.0
        assert np.allclose(base[name], expected), name


def test_a_tensor_that_nobody_trained_stays(round_model):
    manifest = round_model.manifest
    base = merge(round_model, named(effect(4.0, manifest.names("head"), 5, round_model))).base
    untouched = set(manifest.names("all")) - set(manifest.names("head"))
    assert untouched
    assert all(np.array_equal(base[name], round_model.weights[name]) for name in untouched)


def test_zeroth_order_steps_are_taken_beside_the_mean_by_their_share_of_samples(round_model):
    strategy = ZerothOrder(lr=0.5)
    state = strategy.start(round_model).add(np.array([3.0, -1.0]), 25.0, None)
    steps = strategy.finish(state, round_model)
    alone = merge(round_model, named(steps))
    assert (alone.replayable, alone.steps[0].share) == (True, 1.0)
    full = effect(1.0, round_model.manifest.names("all"), 75, round_model)
    mixed = merge(round_model, named(full, steps))
    assert (mixed.replayable, mixed.steps[0].share) == (False, 0.25)
    moved = replay(round_model.weights, alone.steps, round_model.manifest)
    for name, start in round_model.weights.items():
        np.testing.assert_allclose(mixed.base[name] - 1, (moved[name] - start) / 4, atol=1e-6)


def test_what_smaller_models_teach_moves_a_mixed_round_by_their_share_of_its_samples(round_model):
    """75 samples of whole updates at 1, 25 of smaller models that teach 5: the base is 1 + 0.25 (5 - 1)."""
    names = round_model.manifest.names("all")
    full = effect(1.0, names, 75, round_model)

    def base(right=None, mixed=True):
        lesson = {name: np.full_like(round_model.weights[name], 5) for name in names}
        taught = KindResult(num_examples=25, refine=lambda _: lesson, right=right)
        merged = merge(round_model, named(full, taught), mixed=mixed)
        assert not merged.replayable
        return [float(merged.base[name].max()) for name in names]

    assert base() == [2.0] * len(names)
    assert base(mixed=False) == [5.0] * len(names)
    assert base(right=lambda weights: -int(weights[names[0]].max())) == [1.0] * len(names)
    assert base(right=lambda weights: int(weights[names[0]].max())) == [2.0] * len(names)


def test_all_five_kinds_of_one_round_make_one_better_model(model, digits, round_model, run):
    """One device of each kind, on a fifth of the digits each; the merged model beats the distributed one."""
    parts = np.array_split(np.arange(len(digits)), 5)
    effects = []
    for kind, indices in zip(registry.DEFAULT_KINDS, parts, strict=True):
        settings = {"few-shot": {"join_base": True}, "class-means": {"head": "trained"}}.get(kind, {})
        strategy = registry.make(kind, settings)
        data = type(digits)(digits.x[indices], digits.y[indices])
        state = strategy.fold(strategy.start(round_model), strategy.train(model, data, run(kind)), len(data))
        effects.append(strategy.finish(state, round_model))
    before = accuracy_and_loss(model.logits(digits.x), digits.y)
    merged = merge(round_model, named(*effects))
    assert len(merged.steps) == 1
    model.load(merged.served)
    after = accuracy_and_loss(model.logits(digits.x), digits.y)
    assert after.eval_loss < before.eval_loss
    assert after.eval_acc > before.eval_acc + 0.2


def test_merging_does_not_depend_on_how_the_samples_were_divided_between_equal_updates(round_model):
    names = round_model.manifest.names("all")
    together = merge(round_model, named(effect(2.0, names, 10, round_model))).base
    apart = merge(round_model, named(*(effect(2.0, names, n, round_model) for n in (3, 7)))).base
    for name in names:
        np.testing.assert_allclose(together[name], apart[name], atol=1e-7)


def test_the_most_preferred_kind_says_what_is_served(round_model):
    name = round_model.manifest.head.bias
    value = np.ones_like(round_model.weights[name])
    merged = merge(round_model, named(KindResult(served={name: value}), KindResult(served={name: 2 * value})))
    assert (merged.served[name] == 1).all()


def test_partitions_cover_the_digits(digits, partitions):
    for parts in partitions.values():
        assert sum(len(p) for p in parts) == len(digits)
    assert FewShot().variants() == (FewShot(),)


def test_a_late_update_moves_the_base_by_its_own_change_scaled():
    """The update moved its base from 1 to 3; a share of 1/2 moves the base of now from 10 to 11."""
    before, now = {"w": np.full(2, 1, np.float32)}, {"w": np.full(2, 10, np.float32)}
    moved = rebased_tensors({"w": np.full(2, 3, np.float32)}, before, now, 0.5)
    assert moved["w"].dtype == np.float32
    np.testing.assert_array_equal(moved["w"], [11, 11])


def test_running_statistics_of_a_late_update_go_towards_it_and_no_variance_becomes_negative():
    """From 0.5 half the way to 0.25; as a change of its own base, 0.25 - 2, it would end below 0."""
    before, now = {"bn.running_var": np.float32([2])}, {"bn.running_var": np.float32([0.5])}
    moved = rebased_tensors({"bn.running_var": np.float32([0.25])}, before, now, 0.5)
    np.testing.assert_array_equal(moved["bn.running_var"], np.float32([0.375]))


def test_what_the_base_does_not_have_or_has_in_another_form_does_not_change_when_it_is_late():
    base = {"w": np.zeros(2, np.float32), "n": np.zeros(2, np.int64), "g": np.zeros(3, np.float32)}
    update = {"w": np.ones(2, np.float32), "n": np.ones(2, np.int64), "g": np.ones(2, np.float32)}
    update["sums"] = np.ones(2, np.float32)
    moved = rebased_tensors(update, base, base, 0.5)
    assert {name: float(value[0]) for name, value in moved.items()} == {"w": 0.5, "n": 1, "g": 1, "sums": 1}
    assert update["w"][0] == 1
