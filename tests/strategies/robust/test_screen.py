"""What the rules make of a round in which some devices lie, against the plain mean."""

import tracemalloc

import numpy as np
import pytest

from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import RULES, Robust, Screen
from device_runtime.strategies.robust.rules import trim_count
from device_runtime.strategies.statistics.class_statistics import Statistics

HOLDING = [rule for rule in RULES if rule != "none"]


def near_base(round_model, seed, kind="full", level="all"):
    """An update that changes every value by about 0.01, and one of them by exactly 1."""
    rng = np.random.default_rng(seed)
    names = round_model.manifest.names(level)
    moved = {
        n: (round_model.weights[n] + 0.01 * rng.normal(size=round_model.weights[n].shape)) for n in names
    }
    moved = {n: value.astype(np.float32) for n, value in moved.items()}
    moved["head.bias"][0] = round_model.weights["head.bias"][0] + 1
    return Update(kind, moved, 10, 0.5)


def lie(round_model, seed, scale=-1000.0):
    """The opposite of an honest change, a thousand times as long, of a device that says it has much data."""
    honest = near_base(round_model, seed)
    base = round_model.weights
    turned = {n: (base[n] + scale * (v - base[n])).astype(np.float32) for n, v in honest.tensors.items()}
    return Update("full", turned, 1_000_000, 0.5)


def merged(round_model, rule, sent, tmp_path, **settings):
    """`sent`: (device, contribution)s in order; the merged base, and what is noted."""
    join = {"few-shot": {"join_base": True}}
    kinds = {update.kind: registry.make(update.kind, join.get(update.kind)) for _, update in sent}
    with Screen(Folding(kinds, round_model), Robust(rule, **settings), tmp_path) as screen:
        for device, update in sent:
            screen.add(update, float(update.num_examples), device)
        after, note = screen.merged()
    assert not list(tmp_path.iterdir())
    return after.base, note


def crowd(round_model, honest, lying):
    sent = [(f"pi-{i}", near_base(round_model, i)) for i in range(honest)]
    return sent + [(f"z-evil-{i}", lie(round_model, 100 + i)) for i in range(lying)]


def furthest(round_model, base):
    return max(float(np.abs(base[n] - round_model.weights[n]).max()) for n in base)


def test_two_liars_of_nine_slow_the_plain_mean_down(round_model, tmp_path):
    """Of all samples and a thousand times as long, they count as three others each: (7 - 2 * 3) / 9."""
    base, note = merged(round_model, "none", crowd(round_model, 7, 2), tmp_path)
    moved = float(base["head.bias"][0] - round_model.weights["head.bias"][0])
    assert moved == pytest.approx(1 / 9, abs=0.01)
    assert "shortened: z-evil-0, z-evil-1 (full)" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_two_liars_of_nine_do_not_carry_a_rule_away(round_model, tmp_path, rule):
    """All honest devices move one bias by 1; the rules that leave liars out move it by that too."""
    base, _ = merged(round_model, rule, crowd(round_model, 7, 2), tmp_path, trim=0.25)
    assert furthest(round_model, base) < 1.2
    moved = float(base["head.bias"][0] - round_model.weights["head.bias"][0])
    if rule == "norm-clip":  # (7 - 2) / 9 of it: a liar weighs as much as another, and points the other way
        assert moved == pytest.approx(5 / 9, abs=0.05)
    else:
        assert moved == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("rule", HOLDING)
def test_a_device_that_sends_many_late_updates_has_one_voice(round_model, tmp_path, rule):
    """One liar, who kept its lies of six rounds for this one, among five devices."""
    honest = crowd(round_model, 4, 0)
    late = [("z-evil", lie(round_model, 200 + number)) for number in range(6)]
    base, note = merged(round_model, rule, [*honest, *late], tmp_path, trim=0.25)
    once, _ = merged(round_model, rule, [*honest, late[-1]], tmp_path, trim=0.25)
    assert furthest(round_model, base) < 1.2
    for name in base:
        np.testing.assert_array_equal(base[name], once[name])
    assert "5 full do not count: their devices sent a later one too" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_one_update_alone_is_merged_as_it_came_and_the_note_says_what_that_is_worth(
    round_model, tmp_path, rule
):
    update = near_base(round_model, 1)
    base, note = merged(round_model, rule, [("pi", update)], tmp_path)
    for name, value in update.tensors.items():
        np.testing.assert_array_equal(base[name], value)
    assert note == f"1 full too few for {rule} to detect false updates"


@pytest.mark.parametrize("rule", HOLDING)
def test_the_order_of_the_devices_changes_no_value(round_model, tmp_path, rule):
    sent = crowd(round_model, 6, 2)
    base, _ = merged(round_model, rule, sent, tmp_path)
    other, _ = merged(round_model, rule, sent[::-1], tmp_path)
    for name in base:
        np.testing.assert_allclose(base[name], other[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_krum_with_fewer_than_2f_plus_3_updates_gives_way_to_the_median_and_says_so(
    round_model, tmp_path, rule
):
    sent = crowd(round_model, 5, 1)
    base, note = merged(round_model, rule, sent, tmp_path, byzantine=2)
    assert note == f"{rule} needs 7 full to withstand 2 lying devices, not 6: the median replaces it"
    middle, _ = merged(round_model, "median", sent, tmp_path)
    for name in base:
        np.testing.assert_array_equal(base[name], middle[name])


def test_krum_takes_one_update_unchanged_and_multi_krum_names_whom_it_left_out(round_model, tmp_path):
    sent = crowd(round_model, 7, 2)
    base, note = merged(round_model, "krum", sent, tmp_path, byzantine=2)
    device = note.removeprefix("krum selected ").removesuffix(" (full) of 9")
    update = dict(sent)[device]
    np.testing.assert_array_equal(base["head.weight"], update.tensors["head.weight"])
    _, note = merged(round_model, "multi-krum", sent, tmp_path, byzantine=2)
    assert note == "multi-krum rejected z-evil-0, z-evil-1 (full)"


def test_a_group_that_krum_chose_from_weighs_as_before_beside_other_kinds(round_model, tmp_path):
    """Five full updates of 10 samples weigh 50, beside five of an upper part that do too: half and half."""
    names = round_model.manifest.names("mid")
    same = {n: np.full_like(round_model.weights[n], 1) for n in round_model.manifest.names("all")}
    upper = {n: np.full_like(round_model.weights[n], 3) for n in names}
    sent = [(f"pi-{i}", Update("full", same, 10, 0.5)) for i in range(5)]
    sent += [(f"tiny-{i}", Update("entropy-subset", upper, 10, 0.5, "50%")) for i in range(5)]
    base, _ = merged(round_model, "krum", sent, tmp_path)
    np.testing.assert_allclose(base[names[0]], 2.0, rtol=1e-6)


@pytest.mark.parametrize("rule", HOLDING)
def test_a_device_alone_in_its_sort_weighs_as_one_of_the_round(round_model, tmp_path, rule):
    """Three of 10 samples that move a bias by 1, and one of another kind that says it has a million."""
    names = round_model.manifest.names("mid")
    still = {n: round_model.weights[n] for n in names}
    sent = [(f"pi-{i}", near_base(round_model, i)) for i in range(3)]
    sent.append(("z-alone", Update("entropy-subset", still, 1_000_000, 0.5, "50%")))
    base, _ = merged(round_model, rule, sent, tmp_path, clip=1e6)
    moved = float(base["head.bias"][0] - round_model.weights["head.bias"][0])
    assert moved == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("rule", HOLDING)
def test_a_device_alone_that_says_what_its_samples_stand_for_weighs_as_one_of_the_round(
    round_model, tmp_path, rule
):
    """10 samples, each of which stands for ten, beside three devices of 10 that move a bias by 1."""
    kinds = {
        "full": registry.make("full"),
        "entropy-subset": registry.make("entropy-subset", {"weigh": "local"}),
    }
    still = {n: round_model.weights[n] for n in round_model.manifest.names("mid")}
    alone = Update("entropy-subset", still, 10, 0.5, "10%")
    sent = [(f"pi-{i}", near_base(round_model, i)) for i in range(3)]
    with Screen(Folding(kinds, round_model), Robust(rule, clip=1e6), tmp_path) as screen:
        for device, update in [*sent, ("z-alone", alone)]:
            screen.add(update, kinds[update.kind].weight(update), device)
        base = screen.merged()[0].base
    moved = float(base["head.bias"][0] - round_model.weights["head.bias"][0])
    assert moved == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("rule", HOLDING)
def test_a_device_that_sends_several_kinds_does_not_make_the_usual_number_of_samples(
    round_model, tmp_path, rule
):
    """Three updates of one device against three devices with one: the median is of devices."""
    names, own = round_model.manifest.names, round_model.weights
    parts = [("entropy-subset", "mid", "50%"), ("entropy-subset", "head", "25%"), ("few-shot", "head", "")]
    sent = [(f"pi-{i}", near_base(round_model, i)) for i in range(3)]
    for kind, level, form in parts:
        still = {n: own[n] for n in names(level)}
        sent.append(("z-alone", Update(kind, still, 1_000_000, 0.5, form)))
    base, _ = merged(round_model, rule, sent, tmp_path, clip=1e6)
    moved = float(base["head.bias"][0] - own["head.bias"][0])
    assert moved == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("rule", HOLDING)
def test_class_means_of_a_device_alone_weigh_as_one_of_the_round(round_model, tmp_path, rule):
    """Three full updates of 10 samples; the only class means say a million, of two classes."""
    kinds = {name: registry.make(name) for name in ("full", "class-means")}
    folding = Folding(kinds, round_model)
    with Screen(folding, Robust(rule), tmp_path) as screen:
        for i in range(3):
            screen.add(near_base(round_model, i), 10.0, f"pi-{i}")
        screen.add(class_means([2.0, 4.0] + [0] * 8, [750_000, 250_000] + [0] * 8), 1e6, "z")
        screen.merged()
    state = summed(folding._states["class-means"])
    np.testing.assert_array_equal(state.counts[:3], [8, 2, 0])
    np.testing.assert_allclose(state.sums[:2, 0] / state.counts[:2], [2.0, 4.0], rtol=1e-6)


def test_norm_clip_with_a_bound_shortens_to_it_by_hand(round_model, tmp_path):
    bias = round_model.weights["head.bias"]
    step = np.zeros_like(bias)
    step[0], step[1] = 3, 4  # of length 5
    content = {"head.weight": round_model.weights["head.weight"], "head.bias": bias + step}
    sent = [("pi", Update("few-shot", content, 10, 0.5))]
    kinds = {"few-shot": registry.make("few-shot", {"join_base": True})}
    with Screen(Folding(kinds, round_model), Robust("norm-clip", clip=1.0), tmp_path) as screen:
        screen.add(sent[0][1], 10.0, "pi")
        after, note = screen.merged()
    np.testing.assert_allclose(after.base["head.bias"] - bias, step / 5, atol=1e-6)
    assert "norm-clip shortened pi (few-shot) from at most 5 to 1" in note


def test_a_weight_above_the_median_counts_as_the_median(round_model, tmp_path):
    """Three of 10 samples, one that says a million: clipped to a length of its own, it weighs a quarter."""
    honest = [(f"pi-{i}", near_base(round_model, i)) for i in range(3)]
    still = Update("full", dict(round_model.weights), 1_000_000, 0.5)
    base, _ = merged(round_model, "norm-clip", [*honest, ("z", still)], tmp_path, clip=1e6)
    moved = base["head.bias"][0] - round_model.weights["head.bias"][0]
    assert moved == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize(("devices", "share", "cut"), [(1, 0.2, 0), (2, 0.2, 0), (3, 0.2, 1), (30, 0.1, 3)])
def test_at_least_the_share_is_trimmed_and_somebody_is_left(devices, share, cut):
    assert trim_count(devices, share) == cut


@pytest.mark.parametrize("rule", [rule for rule in HOLDING if rule != "norm-clip"])
def test_scalars_of_zeroth_order_are_told_from_lies(round_model, tmp_path, rule):
    values = [0.9, 1.0, 1.1, 1e9, 1.0]
    kind = registry.make("zeroth-order")
    with Screen(Folding({kind.name: kind}, round_model), Robust(rule), tmp_path) as screen:
        for i, g in enumerate(values):
            content = {"g": np.full(kind.num_z, g, np.float32)}
            screen.add(Update(kind.name, content, 10, 0.5), 10.0, f"pi-{i}")
        after, _ = screen.merged()
    assert after.steps[0].scalars == pytest.approx([1.0] * kind.num_z, abs=0.11)


def test_a_bound_on_changes_of_the_base_is_none_on_scalars(round_model, tmp_path):
    kind = registry.make("zeroth-order")
    with Screen(Folding({kind.name: kind}, round_model), Robust("norm-clip", clip=0.1), tmp_path) as screen:
        for i, g in enumerate([20.0, 20.0, 20.0, 1e9, 20.0]):
            content = {"g": np.full(kind.num_z, g, np.float32)}
            screen.add(Update(kind.name, content, 10, 0.5), 10.0, f"pi-{i}")
        after, _ = screen.merged()
    assert after.steps[0].scalars == pytest.approx([20.0] * kind.num_z, rel=1e-6)


def summed(state):
    """The sums of all devices."""
    return sum((statistics.sums for statistics in state), Statistics.none(state.labels, state.width).sums)


def class_means(means, counts):
    counts = np.asarray(counts, np.int32)
    sums = (np.asarray(means, np.float32)[:, None] * np.ones((1, 64), np.float32)) * counts[:, None]
    return Update("class-means", {"sums": sums, "counts": counts}, int(counts.sum()), float("nan"))


@pytest.mark.parametrize("rule", HOLDING)
def test_class_means_are_compared_class_by_class_among_those_who_have_it(round_model, tmp_path, rule):
    """Class 0: means 1 (5 samples, that count as 1), 1 (1) and 1000 (1); class 1 of one device only stays."""
    ones = [1.0] + [0] * 9
    sent = [class_means(ones, [5] + [0] * 9), class_means([1.0, 7.0] + [0] * 8, [1, 2] + [0] * 8)]
    sent.append(class_means([1000.0] + [0] * 9, [1] + [0] * 9))
    kind = registry.make("class-means")
    folding = Folding({kind.name: kind}, round_model)
    with Screen(folding, Robust(rule), tmp_path) as screen:
        for i, update in enumerate(sent):
            screen.add(update, 1.0, f"pi-{i}")
        screen.merged()
    state = summed(folding._states["class-means"])
    np.testing.assert_array_equal(state.counts[:2], [3, 2])
    np.testing.assert_allclose(state.sums[0] / 3, 1.0, rtol=1e-6)
    np.testing.assert_allclose(state.sums[1] / 2, 7.0, rtol=1e-6)


@pytest.mark.parametrize("rule", HOLDING)
def test_who_says_that_it_has_a_million_samples_of_a_class_does_not_own_it(round_model, tmp_path, rule):
    """Four devices whose mean is 1, and one of -1: at most a fifth of what is merged."""
    honest = [class_means([1.0] + [0] * 9, [count] + [0] * 9) for count in (3, 3, 3, 3)]
    sent = [*honest, class_means([-1.0] + [0] * 9, [1_000_000] + [0] * 9)]
    kind = registry.make("class-means")
    folding = Folding({kind.name: kind}, round_model)
    with Screen(folding, Robust(rule), tmp_path) as screen:
        for i, update in enumerate(sent):
            screen.add(update, float(update.num_examples), f"pi-{i}")
        screen.merged()
    state = summed(folding._states["class-means"])
    assert state.counts[0] == 15
    assert state.sums[0, 0] / state.counts[0] >= 0.6 - 1e-6


def test_what_is_not_the_models_own_goes_with_its_update_as_it_came(round_model, tmp_path):
    """Full updates with and without a classifier are separate groups, so that all shapes agree."""
    kind = registry.make("full+few-shot")
    full = near_base(round_model, 1).tensors
    heads = {n: round_model.weights[n] for n in ("head.weight", "head.bias")}
    with_head = {**full, **{f"few-shot/{n}": v + 1 for n, v in heads.items()}}
    without = {**full, **{f"few-shot/{n}": v[:0] for n, v in heads.items()}}
    folding = Folding({kind.name: kind}, round_model)
    with Screen(folding, Robust("median"), tmp_path) as screen:
        for i, content in enumerate([with_head] * 3 + [without] * 3):
            screen.add(Update(kind.name, content, 10, 0.5), 10.0, f"pi-{i}")
        after, note = screen.merged()
    assert note == ""
    np.testing.assert_array_equal(after.base["head.weight"], full["head.weight"])
    np.testing.assert_allclose(after.served["head.bias"], heads["head.bias"] + 1, rtol=1e-6)


def test_an_update_that_is_not_finite_is_left_out(round_model, tmp_path):
    broken = near_base(round_model, 9)
    broken.tensors["head.bias"][3] = np.inf  # as after a late one was moved to this base
    sent = [*crowd(round_model, 3, 0), ("z", broken)]
    base, note = merged(round_model, "median", sent, tmp_path)
    assert note == "z (full) is not finite, rejected"
    assert furthest(round_model, base) < 1.2


@pytest.mark.parametrize("rule", HOLDING)
def test_small_pieces_give_what_one_large_piece_gives(round_model, tmp_path, rule, monkeypatch):
    """Two values of each device at a time, and the distances of two devices."""
    sent = [(f"pi-{i}", near_base(round_model, i, "few-shot", "head")) for i in range(9)]
    whole, _ = merged(round_model, rule, sent, tmp_path)
    for place in (
        "device_runtime.strategies.robust.spool.BUDGET",
        "device_runtime.strategies.robust.rules.BUDGET",
    ):
        monkeypatch.setattr(place, 2 * 9 * 8)
    pieces, _ = merged(round_model, rule, sent, tmp_path)
    for name in whole:
        np.testing.assert_allclose(whole[name], pieces[name], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", HOLDING)
def test_memory_does_not_grow_with_the_devices(round_model, tmp_path, rule, monkeypatch):
    """Four times the devices: 60 more updates of 0.3 MB each, and not a megabyte more."""
    monkeypatch.setattr("device_runtime.strategies.robust.spool.BUDGET", 2**20)
    monkeypatch.setattr("device_runtime.strategies.robust.rules.BUDGET", 2**20)
    peaks = []
    for devices in (20, 80):
        kind = registry.make("full")
        folding = Folding({kind.name: kind}, round_model)
        with Screen(folding, Robust(rule), tmp_path) as screen:
            for i in range(devices):
                screen.add(near_base(round_model, i), 10.0, f"pi-{i:03}")
            tracemalloc.start()
            screen.merged()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**20


def test_without_a_rule_no_device_counts_for_more_than_three_times_the_upper_quartile(round_model):
    """Four devices of 10 samples leave the bias; one that claims a million moves it by 1, for 30 of 70."""
    sizes = [10, 10, 10, 10, 1_000_000]
    kind, moved = registry.make("full"), []
    for expected in (sizes, []):
        with Screen(Folding({"full": kind}, round_model), Robust(), sizes=expected) as screen:
            for i, size in enumerate(sizes):
                tensors = {
                    spec.name: round_model.weights[spec.name] for spec in kind.expected(round_model.manifest)
                }
                tensors["head.bias"] = tensors["head.bias"] + np.float32(size > 10)
                screen.add(Update("full", tensors, size, 0.5), float(size), f"pi-{i}")
            merged, _ = screen.merged()
        moved.append(float((merged.base["head.bias"] - round_model.weights["head.bias"]).mean()))
    assert moved[0] == pytest.approx(30 / 70, rel=1e-4)
    assert moved[1] > 0.99


def test_gathered_class_means_of_a_liar_stay_near_those_of_earlier_rounds(round_model):
    """What is gathered never fades; the served rows are unit vectors."""
    kind = registry.make("class-means", {"gathered": True})
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))

    def sent(lie=1.0):
        means, counts = lie * (centres + 0.1 * rng.normal(size=(10, 64))), np.full(10, 20, np.int32)
        sums = (means * counts[:, None]).astype(np.float32)
        return Update("class-means", {"sums": sums, "counts": counts}, 200, float("nan"))

    carried = CarriedState()
    for number in range(3):
        folding = Folding({kind.name: kind}, round_model, carried)
        for i in range(5):
            folding.add(sent(-1e6 if i == 0 and number == 1 else 1.0), 200.0)
        merged, _ = folding.merged()
        carried = merged.carried
    rows = merged.served["head.weight"]
    along = (rows * centres).sum(axis=1) / np.linalg.norm(centres, axis=1)
    assert along.min() > 0.95
