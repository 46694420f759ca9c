"""Sorts of fewer than three devices, which no rule can compare: how far they may go."""

import numpy as np
import pytest

from device_runtime.strategies.interface.device_half import Late, Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import RULES, Robust, Screen
from device_runtime.strategies.statistics.class_statistics import Statistics

HOLDING = [rule for rule in RULES if rule != "none"]
JOINED = {"few-shot": {"join_base": True}}


def moved(round_model, length, level="all", kind="full", seed=0, variant="", late=None):
    """An update that is so far from the base."""
    rng, base = np.random.default_rng(seed), round_model.weights
    names = round_model.manifest.names(level)
    change = {name: rng.normal(size=base[name].shape) for name in names}
    share = length / np.sqrt(sum(float(np.square(value).sum()) for value in change.values()))
    content = {name: (base[name] + share * change[name]).astype(np.float32) for name in names}
    return Update(kind, content, 10, 0.5, variant, late=late)


def merged(round_model, rule, sent, tmp_path, **numbers):
    """`sent`: (device, contribution)s; how far the merged base is from the round's, and the note."""
    kinds = {update.kind: registry.make(update.kind, JOINED.get(update.kind)) for _, update in sent}
    with Screen(Folding(kinds, round_model), Robust(rule, **numbers), tmp_path) as screen:
        for device, update in sent:
            screen.add(update, 10.0, device)
        after, note = screen.merged()
    base = round_model.weights
    change = (float(np.square(after.base[name].astype(np.float64) - base[name]).sum()) for name in base)
    return float(np.sqrt(sum(change))), note


def length_of(base):
    return float(np.sqrt(sum(np.square(value.astype(np.float64)).sum() for value in base.values())))


@pytest.mark.parametrize("rule", HOLDING)
def test_a_liar_alone_in_its_sort_is_held_to_three_times_the_median_length_of_the_round(
    round_model, tmp_path, rule
):
    """Four honest updates of length 1, and one of another kind that goes 1e6 along the classifier."""
    honest = [(f"pi-{i}", moved(round_model, 1.0, seed=i)) for i in range(4)]
    lie = ("z-evil", moved(round_model, 1e6, "head", "few-shot", seed=9))
    went, note = merged(round_model, rule, [*honest, lie], tmp_path)
    assert went < 1.0 + 3.0 * 1.001
    assert "too few to compare: z-evil (few-shot) shortened from at most 1e+06 to 3" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_liars_in_several_small_groups_are_each_bounded(round_model, tmp_path, rule):
    """Three groups of one or two devices: five honest updates of length 1 or 2, two lies."""
    sent = [(f"a-{i}", moved(round_model, 1.0, seed=i)) for i in range(5)]
    for i, (level, kind, form) in enumerate((("head", "few-shot", ""), ("mid", "entropy-subset", "50%"))):
        sent.append((f"z-{i}", moved(round_model, 1e9, level, kind, 10 + i, form)))
    went, _ = merged(round_model, rule, sent, tmp_path)
    assert went < 1.0 + 2 * 3.001


@pytest.mark.parametrize("rule", HOLDING)
@pytest.mark.parametrize("devices", [1, 2])
def test_in_a_round_of_fewer_than_three_devices_an_update_is_no_longer_than_the_base(
    round_model, tmp_path, rule, devices
):
    sent = [(f"pi-{i}", moved(round_model, 1e9)) for i in range(devices)]
    went, note = merged(round_model, rule, sent, tmp_path)
    assert went == pytest.approx(length_of(round_model.weights), rel=1e-3)
    assert "too few to compare: pi-0" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_honest_updates_of_small_sorts_are_merged_as_they_came(round_model, tmp_path, rule):
    """Lengths as measured on digits: full 1.5 to 2.9, a classifier 1.8, a part 1.2."""
    sent = [
        ("a", moved(round_model, 1.5)),
        ("b", moved(round_model, 2.9, seed=1)),
        ("c", moved(round_model, 1.8, "head", "few-shot", seed=2)),
        ("d", moved(round_model, 1.2, "mid", "entropy-subset", 3, "50%")),
    ]
    _, note = merged(round_model, rule, sent, tmp_path)
    assert "shortened" not in note.replace("norm-clip shortened", "")


def test_of_a_device_with_a_late_update_only_the_latest_makes_the_median_length(round_model, tmp_path):
    """A liar of five rounds does not raise the median by its late ones."""
    honest = [(f"pi-{i}", moved(round_model, 1.0, seed=i)) for i in range(3)]
    late = [Late(round_model.round - ago, 7, 1.0) for ago in (3, 2, 1)]
    lies = [
        ("z", moved(round_model, 1e6, "head", "few-shot", 20 + i, late=each)) for i, each in enumerate(late)
    ]
    went, _ = merged(round_model, "median", [*honest, *lies], tmp_path)
    assert went < 1.0 + 3.001


@pytest.mark.parametrize("rule", HOLDING)
def test_scalars_of_a_device_alone_move_the_base_no_further_than_it_is_long(round_model, tmp_path, rule):
    kind = registry.make("zeroth-order")
    with Screen(Folding({kind.name: kind}, round_model), Robust(rule), tmp_path) as screen:
        lie = Update(kind.name, {"g": np.full(kind.num_z, 1e9, np.float32)}, 10, 0.5)
        screen.add(lie, 10.0, "z-evil")
        after, note = screen.merged()
    base = round_model.weights
    change = (float(np.square(after.base[name].astype(np.float64) - base[name]).sum()) for name in base)
    # at most 2 (triangle inequality) of directions that are nearly at right angles
    assert float(np.sqrt(sum(change))) < 1.1 * length_of(base)
    assert "too few to compare: z-evil (zeroth-order) shortened" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_the_mean_of_a_class_that_one_device_has_is_held_to_the_length_of_the_others(
    round_model, tmp_path, rule
):
    """Means of length 8 (64 ones) of classes 0 to 3; class 9 of a liar alone, a million times as long."""

    def means(values):
        counts = np.array([5 * bool(value) for value in values], np.int32)
        sums = (np.asarray(values, np.float32)[:, None] * np.ones((1, 64), np.float32)) * counts[:, None]
        return Update("class-means", {"sums": sums, "counts": counts}, int(counts.sum()), float("nan"))

    kind = registry.make("class-means")
    folding = Folding({kind.name: kind}, round_model)
    with Screen(folding, Robust(rule), tmp_path) as screen:
        for i in range(3):
            screen.add(means([1.0, 1.0, 1.0, 1.0] + [0] * 6), 20.0, f"pi-{i}")
        screen.add(means([0] * 9 + [1e6]), 5.0, "z-evil")
        _, note = screen.merged()
    state = folding._states["class-means"]
    state = sum((statistics.sums for statistics in state), Statistics.none(state.labels, state.width).sums)
    np.testing.assert_allclose(state.sums[9] / state.counts[9], 3.0, rtol=1e-5)
    np.testing.assert_allclose(state.sums[0] / state.counts[0], 1.0, rtol=1e-6)
    assert "means of z-evil (class-means) shortened to 24" in note
