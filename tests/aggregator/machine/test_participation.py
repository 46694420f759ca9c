"""Cohorts, and whom a round waits for, after whatever happens."""

from dataclasses import replace

import pytest

from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import (
    Announce,
    Announced,
    ContributionId,
    DevicePresent,
    DoPhase,
    Extend,
    Invite,
    Invited,
    PhaseDone,
    Planned,
    Rejected,
    Reply,
    StoreContribution,
    TimePassed,
    Validated,
)
from device_runtime.aggregator.machine.state import RETRY_S, SETTLE_S, RoundsState, Rules, Saved
from device_runtime.aggregator.machine.step import step
from device_runtime.aggregator.tasks.closing import FullBuffer

RULES = Rules(rounds=9, round_deadline_s=10.0, min_devices=4, devices_per_round=2)
BUFFERED = replace(RULES, closing=FullBuffer(2), max_staleness=3)


def play(state, *events):
    commands = []
    for event in events:
        state, more = step(state, event)
        commands += more
    return state, commands


def update(device, number=1):
    return ContributionId(device, number, "full", 1, 1)


def believed(device, now=1.0, number=1):
    return Validated(now, update(device, number))


def online(*devices, now=0.0):
    return [DevicePresent(now, device, 1, True) for device in devices]


def end_of_work(now):
    return [PhaseDone(now, phase) for phase in ("merge", "evaluate", "publish")]


def invites(commands):
    return [command for command in commands if isinstance(command, Invite)]


def asking(*devices, rules=RULES):
    """Round 1 open since time 0, a to f online, these asked."""
    state, _ = play(RoundsState(rules), *online(*"abcdef"))
    return play(state, Invited(0.0, 1, devices))[0]


def test_when_a_round_opens_a_cohort_is_to_be_invited():
    state, commands = play(RoundsState(RULES), *online(*"abcd"))
    assert commands == [Announce(1), Invite(1, 2)]
    state, commands = play(state, Invited(0.0, 1, ("b", "d")))
    assert (state.waiting, commands) == ({"b", "d"}, [])


@pytest.mark.parametrize(
    ("events", "closes"),
    [
        ([believed("a")], False),
        ([believed("a"), believed("b")], True),
        ([believed("a"), Planned(1, "b", 1, "")], True),
        ([believed("a"), Planned(1, "b", 1, ""), Planned(1, "b", 1, "full")], True),
        ([Planned(1, "b", 1, ""), Planned(1, "b", 1, "full"), believed("a")], False),
        ([believed("a"), DevicePresent(1, "b", 1, False)], True),
        ([DevicePresent(1, "b", 1, False), DevicePresent(1, "b", 1, True), believed("a")], False),
        ([believed("a"), Rejected(1, update("b"), "nan")], True),
        ([DevicePresent(1, "a", 1, False), DevicePresent(1, "b", 1, False)], False),
        ([believed("a"), DevicePresent(1, "c", 1, False)], False),
    ],
    ids=[
        "one of two has answered",
        "both have contributed",
        "the other sits out",
        "the other thought better of it when it was too late",
        "the other sat out and thought better of it",
        "the other is gone",
        "the other was gone for a moment",
        "the other was refused",
        "both are gone",
        "somebody is gone who was not asked",
    ],
)
def test_a_round_waits_for_its_cohort_alone(events, closes):
    _, commands = play(asking("a", "b"), *events)
    assert (DoPhase("merge", 1) in commands) is closes


def test_the_first_rounds_ask_all_and_the_next_a_cohort():
    """f is too late for round 1: its update still counts in round 2, for which it is not asked."""
    rules = replace(RULES, ask_all_rounds=1, late="count")
    state, commands = play(RoundsState(rules), *online(*"abcdef"))
    assert (commands, state.waiting) == ([Announce(1)], set("abcdef"))
    state, commands = play(state, *(believed(device) for device in "abcde"))
    assert commands[-1] == Reply(update("e"), "accepted", "")
    state, commands = play(state, TimePassed(10.0), *end_of_work(10.0))
    assert commands[-2:] == [Announce(2), Invite(2, 2)]
    assert (dict(state.behind), state.waiting) == ({"f": 10.0}, set())
    state, _ = play(state, Invited(10.0, 2, ("a", "b")))
    state, commands = play(state, believed("f", 11.0, 1), believed("c", 12.0, 2))
    assert [command.status for command in commands if isinstance(command, Reply)] == ["accepted", "refused"]
    assert (dict(state.behind), state.waiting) == ({}, {"a", "b"})


def test_who_was_not_asked_is_refused_and_told_why():
    state = asking("a", "b")
    for event in (Announced(1, update("c")), believed("c")):
        after, commands = play(state, event)
        assert commands == [Reply(update("c"), "refused", "c was not asked for round 1")]
        assert (after.contributions, after.answered, after.waiting) == (0, set(), {"a", "b"})


def test_a_synchronous_round_asks_for_no_more_when_one_has_answered():
    _, commands = play(asking("a", "b"), believed("a"), DevicePresent(2, "b", 1, False))
    assert invites(commands) == []


def test_an_extended_round_asks_for_as_many_as_it_does_not_wait_for():
    """a has answered, b still may: one more. c sat out in its turn: the lot may fall on it again."""
    state, commands = play(
        asking("a", "b", rules=replace(RULES, min_contributions=2)), believed("a"), TimePassed(10)
    )
    assert commands[-2:] == [Extend(1, 1), Invite(1, 1)]
    state, commands = play(state, Invited(10, 1, ("c",)), Planned(11, "c", 1, ""), TimePassed(20.0))
    assert commands[-2:] == [Extend(1, 1), Invite(1, 2)]  # b has let two deadlines pass
    assert not state.is_asked("c")


def test_a_device_that_has_contributed_is_not_asked_again_when_its_round_is_extended():
    """Not even if it has said that it sits the round out, before or after."""
    rules = replace(RULES, min_contributions=2)
    state, _ = play(asking("a", "b", rules=rules), believed("a"), Planned(2.0, "a", 1, ""))
    state, commands = play(state, TimePassed(10.0))
    assert (dict(state.asked), set(state.waiting)) == ({"a": 1, "b": 1}, {"b"})
    assert invites(commands) == [Invite(1, 1)]


@pytest.mark.parametrize("event", [Invited(1.0, 2, ("c",)), Invited(1.0, 0, ("c",))])
def test_a_draw_for_another_round_changes_nothing(event):
    state = asking("a", "b")
    assert play(state, event) == (state, [])
    merged = replace(state, phase="merge")
    assert play(merged, Invited(1.0, 1, ("c",))) == (merged, [])


def test_places_that_nobody_could_take_are_offered_to_whoever_comes():
    state, _ = play(RoundsState(replace(RULES, min_devices=1)), *online("a"), Invited(0.0, 1, ("a",)))
    state, commands = play(state, TimePassed(1.0), DevicePresent(2.0, "b", 1, True, ready=False))
    assert commands == []
    state, commands = play(state, *online("b", now=3.0))
    assert commands == [Invite(1, 1)]
    _, commands = play(state, Invited(3.0, 1, ("b",)), *online("c", now=4.0))
    assert commands == []


def test_who_missed_a_round_is_at_work_until_it_is_heard_or_two_more_deadlines_are_over():
    state, commands = play(asking("a", "b"), believed("a"), TimePassed(10.0), *end_of_work(10.0))
    assert (state.waiting, set(state.behind), invites(commands)) == (set(), {"b"}, [Invite(2, 2)])
    late, _ = play(state, Announced(11.0, update("b")))
    gone, _ = play(state, DevicePresent(11.0, "b", 1, False))
    anew, _ = play(state, DevicePresent(11.0, "b", 2, True))
    given_up, _ = play(state, Planned(11.0, "b", 1, ""))
    assert [len(after.behind) for after in (late, gone, anew, given_up)] == [0, 0, 0, 0]
    for number, now, left in ((2, 29.0, {"b"}), (3, 30.0, set())):
        invitation = Invited(now, number, ("c",))
        state, _ = play(state, invitation, believed("c", now, number), *end_of_work(now))
        assert set(state.behind) == left


def test_a_buffered_run_keeps_as_many_at_work_as_it_may_whatever_round_they_work_on():
    state, commands = play(asking("a", "b", rules=BUFFERED), believed("a"))
    assert commands[-1] == Invite(1, 1)
    state, commands = play(state, Invited(1.0, 1, ("c",)), Planned(1.5, "c", 1, ""))
    assert commands == [Invite(1, 1)]
    state, commands = play(state, Invited(1.5, 1, ("d",)), DevicePresent(1.7, "d", 1, False))
    assert commands == [Invite(1, 1)]
    state, commands = play(state, Invited(1.7, 1, ("e",)), believed("e", 2.0), *end_of_work(2.0))
    assert commands[-2:] == [Announce(2), Invite(2, 1)]  # b is still at work on round 1
    state, commands = play(state, Invited(2.0, 2, ("f",)), believed("b", 3.0))
    assert (state.round, state.contributions, state.waiting) == (2, 1, {"f"})
    assert commands[-2:] == [
        Reply(update("b"), "accepted", "round 1 is closed, counted in round 2 unless a newer one comes"),
        Invite(2, 1),
    ]


def test_a_buffered_run_that_found_too_few_looks_again_after_a_while():
    state, commands = play(asking("a", rules=BUFFERED), TimePassed(RETRY_S - 0.01))
    assert commands == []
    _, commands = play(state, TimePassed(RETRY_S), TimePassed(RETRY_S + 0.1))
    assert commands == [Invite(1, 1)]


def test_who_was_asked_for_a_round_may_come_late_with_it_and_nobody_else():
    state, _ = play(asking("a", "b", rules=BUFFERED), believed("a"), Invited(1.0, 1, ("c",)), believed("c"))
    state, _ = play(state, *end_of_work(2.0))
    assert StoreContribution(update("b"), 2) in play(state, believed("b", 3.0))[1]
    refused = Reply(update("d"), "refused", "d was not asked for round 1")
    assert play(state, believed("d", 2.5))[1] == [refused]


def test_after_a_restart_the_cohort_is_the_same_and_others_are_asked_once_it_is_known_who_is_there():
    saved = Saved(1, "collect", {"a": 1}, frozenset({"a"}), {"a": 1, "b": 1, "c": 0})
    for rules, places in ((replace(RULES, devices_per_round=3), 1), (BUFFERED, 1)):
        state, commands = machine.resume(rules, saved, 500.0)
        assert commands == (Announce(1, again=True),)
        state, commands = play(state, *online("b", "c", "a", now=500.1))
        assert (state.waiting, commands) == ({"b"}, [])
        assert play(state, TimePassed(500.0 + SETTLE_S))[1] == [Invite(1, places)]


def test_who_was_asked_is_known_while_it_matters_and_no_longer():
    rules = replace(RULES, devices_per_round=1, late="count", max_staleness=3)
    state = asking("a", rules=rules)
    for number, (device, following) in enumerate(zip("abcde", "bcdef", strict=True), 1):
        state, _ = play(state, believed(device, number, number), *end_of_work(number))
        assert min(state.asked.values()) == max(1, state.round - rules.max_staleness)
        state, _ = play(state, Invited(number, number + 1, (following,)))
    assert sorted(state.asked) == ["c", "d", "e", "f"]


def test_who_is_at_work_on_an_old_round_is_known_to_be():
    """What it says of that round is understood."""
    state = asking("a", "b")
    state, _ = play(state, believed("a"), TimePassed(10.0), *end_of_work(10.0))
    assert dict(state.asked) == {"b": 1}
    assert dict(state.behind) == {"b": 10.0}
    state, _ = play(state, Planned(11.0, "b", 1, ""))
    assert dict(state.behind) == {}
