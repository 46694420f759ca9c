"""What a round makes of its contributions, from the files that it keeps."""

import hashlib

import numpy as np
import pytest

from device_runtime.aggregator.machine.events import DoPhase
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.aggregator.merging.merge_round import EarlierRounds, RoundMerge
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import step_log as steps
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.interface.device_half import Update


def test_the_order_in_which_contributions_arrive_changes_no_bit(bench, make_task, update_of):
    task = make_task("full", "few-shot", "zeroth-order", "class-means", rounds=2, head="trained")
    kinds = ["full", "full", "few-shot", "zeroth-order", "class-means"]
    sent = [(f"pi-{i}", kind, update_of(kind, i)) for i, kind in enumerate(kinds)]
    results = set()
    for order in (sent, sent[::-1], sent[2:] + sent[:2]):
        b = bench(task)
        b.join(*(device for device, _, _ in sent))
        for device, kind, update in order:
            assert b.contribute(device, b.contribution(kind, update))[0].status == "accepted"
        results.add((b.store.rounds.start(2).base.sha, b.store.rounds.made(1).served.sha))
    assert len(results) == 1


def test_updates_are_averaged_by_examples_times_the_weight_of_their_kind(bench, make_task, bundle):
    b = bench(make_task(KindSettings(name="full", weight=2.0), KindSettings(name="entropy-subset"), rounds=1))
    weights = bundle.weights()

    def filled(level, value):
        return {n: np.full_like(weights[n], value) for n in bundle.manifest.names(level)}

    b.join("a", "b")
    b.contribute("a", b.contribution("full", (filled("all", 1.0), 10)))
    b.contribute("b", b.contribution("entropy-subset", (filled("mid", 4.0), 40)))
    merged = b.weights(b.store.rounds.start(2).base)
    upper = set(bundle.manifest.names("mid"))
    for name in bundle.manifest.names("all"):
        # upper: (10 * 2 * 1 + 40 * 4) / (10 * 2 + 40) = 3; below it only the full update
        np.testing.assert_allclose(merged[name], 3.0 if name in upper else 1.0, rtol=1e-6)


def test_an_update_far_longer_than_others_is_shortened_and_named(bench, make_task, bundle):
    """Of four devices three move every value by 0.01; the fourth goes 10,000 times as far the other way."""
    b = bench(make_task(KindSettings(name="full"), rounds=1))
    weights, devices = bundle.weights(), ("a", "b", "c", "d")
    b.join(*devices)
    for device in devices:
        change = np.float32(-100.0 if device == "c" else 0.01)
        moved = {name: weights[name] + change for name in bundle.manifest.names("all")}
        b.contribute(device, b.contribution("full", (moved, 10)))
    merged = b.weights(b.store.rounds.start(2).base)
    for name in bundle.manifest.names("all"):
        assert float(np.abs(merged[name] - weights[name]).max()) < 0.01
    assert "shortened: c (full)" in b.store.rounds.closed()[0].note


def test_a_merge_that_is_done_again_gives_the_same(bench, make_task, update_of):
    b = bench(make_task("full", "zeroth-order", rounds=2))
    b.join("a", "b", "c")
    b.contribute("a", b.contribution("full", update_of("full")))
    b.contribute("b", b.contribution("zeroth-order", update_of("zeroth-order")))
    b.service._run.commands.merge(DoPhase("merge", 1))
    first = b.store.rounds.start(2).base, b.store.rounds.made(1).served
    b.service._run.commands.merge(DoPhase("merge", 1))
    assert (b.store.rounds.start(2).base, b.store.rounds.made(1).served) == first


def test_a_merge_that_is_not_finite_leaves_the_base_as_it_was_and_says_so(bench, make_task):
    b = bench(make_task(KindSettings(name="zeroth-order", settings={"lr": 1e38}), rounds=1))
    b.join("a")
    before = b.offer.base
    huge = {"g": np.full(2, 1e3, np.float32)}
    b.contribute("a", b.contribution("zeroth-order", (huge, 10)))
    assert b.store.rounds.closed()[0].note == "the merged model is not finite: the base stays as it was"
    assert b.store.rounds.start(2).base == before


def test_steps_are_on_one_line_and_a_full_segment_of_the_log_makes_a_checkpoint_beside_it(
    bench, make_task, update_of, monkeypatch
):
    for module in (bases, steps):
        monkeypatch.setattr(module, "SEGMENT", 4)
    monkeypatch.setattr(bases, "MOST_SEGMENTS", 2)
    b = bench(make_task("zeroth-order", rounds=20))
    b.join("a")
    first, logs = b.offer.base, []
    assert first.line == first.sha[:8]
    for number in range(1, 12):
        b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order", number), number))
        base = b.offer.base
        assert (base.line, base.at, base.steps) == (first.line, number, number % 4)
        if not base.steps:
            assert base.sha == hashlib.sha256(tensors.encode(b.weights(base))).digest()
        logs.append([[step.round for step in steps.decode(b.store.models.get(blob))] for blob in base.log])
    assert logs[2:5] == [[[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4], [5]]]
    assert logs[-1] == [[5, 6, 7, 8], [9, 10, 11]]
    assert [step.round for step in steps.unpack(base.tail)] == list(range(1, 12))
    assert all(stretch.seeds == b.task.seed for stretch in base.tail)
    assert base.checkpoint != first.checkpoint


def test_a_restart_goes_on_with_the_line_where_it_was(bench, make_task, update_of):
    b = bench(make_task("zeroth-order", rounds=6))
    b.join("a")
    for number in (1, 2, 3):
        b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order", number), number))
    before = b.offer.base
    b = b.restart()
    b.join("a")
    b.wait(SETTLE_S)
    assert b.offer.base == before
    b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order", 4), 4))
    assert (b.offer.base.line, b.offer.base.at) == (before.line, 4)


def test_a_round_of_other_kinds_begins_another_line(bench, make_task, update_of):
    b = bench(make_task("full", "zeroth-order", rounds=4))
    b.join("a")
    b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order")))
    first = b.offer.base
    b.contribute("a", b.contribution("full", update_of("full"), 2))
    assert (b.offer.base.at, b.offer.base.log, b.offer.base.line == first.line) == (0, (), False)


def test_contents_are_forgotten_once_their_round_is_closed_and_what_is_told_stays(
    bench, make_task, update_of
):
    b = bench(make_task("full", "few-shot", rounds=2))
    b.join("a", "b")
    message = b.contribution("full", update_of("full"))
    b.contribute("a", message)
    assert b.store.updates.has(message.blob)
    b.contribute("b", b.contribution("few-shot", update_of("few-shot")))
    assert not b.store.updates.has(message.blob)
    assert [stored.body for stored in b.store.contributions.of_round(1)] == [b"", b""]
    assert [c.device for c in b.store.rounds.closed()[0].contributions] == ["b", "a"]  # by kind, then device


@pytest.mark.parametrize("mode", [{"late": "count"}, {"buffer_size": 1}])
def test_a_late_update_counts_with_its_own_change_and_less_the_later_it_is(bench, make_task, bundle, mode):
    """By hand, for a weight w that is 0 for round 1; two updates of 10 examples a round.

    Round 1: w -> 1. Round 2, of a base of 1: an update to 5 makes it 5, one for round 1 to 2 counts as
    1 + 2 ** -0.5 * (2 - 0); each by its examples. With a buffer of one, round 2 is the late one's alone.
    """
    name, start = bundle.manifest.head.bias, bundle.weights()[bundle.manifest.head.bias]
    b = bench(make_task("full", rounds=3, **mode))

    def full(change):
        return {**bundle.weights(), name: start + np.float32(change)}, 10

    def base(number):
        return b.weights(b.store.rounds.start(number).base)[name] - start

    b.join("a", "b", "c")
    b.contribute("a", b.contribution("full", full(1.0)))
    b.wait(10.0)
    np.testing.assert_allclose(base(2), 1.0, atol=1e-6)
    late = b.contribute("b", b.contribution("full", full(2.0)))
    assert (late[0].status, late[0].reason) == (
        "accepted",
        "round 1 is closed, counted in round 2 unless a newer one comes",
    )
    moved = 1 + 2 * 2**-0.5
    if mode == {"buffer_size": 1}:
        np.testing.assert_allclose(base(3), moved, atol=1e-6)
        b.contribute("c", b.contribution("full", full(2.0)))  # two rounds late, in round 3
        np.testing.assert_allclose(base(4), moved + 2 * 3**-0.5, atol=1e-6)
    else:
        b.contribute("a", b.contribution("full", full(5.0), 2))
        b.wait(10.0)
        np.testing.assert_allclose(base(3), (moved + 5) / 2, atol=1e-6)


def test_a_late_update_of_a_member_counts_as_a_change_of_its_own_base(bundle):
    """From 1 to 3 is a change of 2; a round late and at weight 0.5 it counts by 1 / sqrt(2), from 10 on."""
    bases = {number: {"head.bias": np.full(10, value, np.float32)} for number, value in ((1, 1), (2, 10))}
    kind = KindSettings(name="width-slice", settings={"members": ["small"]})
    task = Task(bundle="digits-wrn-10-1", family=("small",), late="count", kinds=(kind,))
    model = RoundModel(bundle.manifest, bundle.weights(), 2, seed=0)
    members = []
    earlier = EarlierRounds(task.round_seed, lambda number, member: members.append(member) or bases[number])
    merge = RoundMerge(task, model, CarriedState({"small": bases[2]}), earlier)
    update = Update("width-slice", {"head.bias": np.full(10, 3, np.float32)}, 9, 1.0, "small")
    moved = merge.rebased(update, 1, 1.0).tensors["head.bias"]
    np.testing.assert_allclose(moved, 10 + 2 / np.sqrt(2), rtol=1e-6)
    assert set(members) == {"small"}
    assert merge.rebased(update, 2, 1.0) is update


def test_bases_are_kept_while_late_updates_may_be_made_for_them_and_no_longer(bench, make_task, update_of):
    b = bench(make_task("full", rounds=9, buffer_size=1, max_staleness=2, keep_versions=1))
    b.join("a", "b")
    checkpoints = {}
    for number in range(1, 6):
        checkpoints[number] = b.offer.base.checkpoint
        b.contribute("a", b.contribution("full", update_of("full", number), number))
    kept = [n for n, parts in checkpoints.items() if all(b.store.models.has(part) for part in parts)]
    assert kept == [1, 4, 5]  # the bundle's own, and those of the two rounds before round 6
    receipts = [b.contribute("b", b.contribution("full", update_of("full"), n))[0] for n in (4, 4, 3)]
    assert [receipt.status for receipt in receipts] == ["accepted", "duplicate", "late"]
    assert receipts[2].reason == "round 3 is closed: 4 rounds late, at most 2 may be"


def test_the_norm_of_a_late_update_is_taken_from_the_base_that_it_was_made_for(bench, make_task, bundle):
    """Round 1 moves the bias by 3 where at most 4 is accepted: an update for round 1 may be 6 from there."""
    b = bench(make_task(KindSettings(name="full", max_norm=4.0), rounds=3, buffer_size=1))
    name = bundle.manifest.head.bias

    def moved(change):
        weights = bundle.weights()
        value = weights[name].copy()
        value[0] += change
        return {**weights, name: value}, 10

    b.join("a", "b", "c")
    b.contribute("a", b.contribution("full", moved(3.0)))
    assert b.contribute("b", b.contribution("full", moved(-3.0)))[0].status == "accepted"
    refused = b.contribute("c", b.contribution("full", moved(-4.5)))[0]
    assert (refused.status, "it is 4.5 away from the base" in refused.reason) == ("refused", True)
