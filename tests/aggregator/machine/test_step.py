"""The round machine, without a socket, a thread or a file."""

from dataclasses import replace

import pytest

from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import (
    Announce,
    Announced,
    AwaitHelpers,
    Close,
    CommitFailed,
    ContributionId,
    DevicePresent,
    DoPhase,
    Extend,
    FetchContribution,
    Finish,
    Give,
    GiveUp,
    GiveUpSums,
    PhaseDone,
    Planned,
    Rejected,
    Reply,
    RolledBack,
    StoreContribution,
    SumAnswered,
    TimePassed,
    Validated,
)
from device_runtime.aggregator.machine.state import SETTLE_S, RoundsState, Rules, Saved
from device_runtime.aggregator.machine.step import step
from device_runtime.aggregator.tasks.closing import FullBuffer

RULES = Rules(rounds=2, round_deadline_s=10.0)


def play(state, *events):
    """The state after these events, and all commands in order."""
    commands = []
    for event in events:
        state, more = step(state, event)
        commands += more
    return state, commands


def online(*devices, now=0.0):
    return [DevicePresent(now, device, 1, True) for device in devices]


def update(device="a", number=1, kind="full", seq=1):
    return ContributionId(device, number, kind, 1, seq)


def believed(device, now=1.0, number=1, kind="full", sent=""):
    return Validated(now, update(device, number, kind), sent)


def collecting(*devices, rules=RULES):
    """Round 1 open since time 0 with these devices online."""
    return play(RoundsState(rules), *online(*devices))[0]


def end_of_work(now):
    return [PhaseDone(now, phase) for phase in ("merge", "evaluate", "publish")]


def statuses(commands):
    return [command.status for command in commands if isinstance(command, Reply)]


def test_round_one_waits_for_the_devices_asked_for():
    state, commands = play(RoundsState(replace(RULES, min_devices=2)), *online("a"), TimePassed(100.0))
    assert (state.phase, commands) == ("wait", [])
    state, commands = play(state, *online("b", now=101.0))
    assert (state.phase, state.round, state.closes_at) == ("collect", 1, 111.0)
    assert commands == [Announce(1)]


def test_a_round_goes_through_its_phases_and_the_next_one_opens():
    state, commands = play(
        collecting("a"),
        believed("a"),
        PhaseDone(2, "merge"),
        PhaseDone(3, "evaluate"),
        PhaseDone(4, "publish"),
    )
    assert commands == [
        StoreContribution(update("a"), 1),
        Reply(update("a"), "accepted"),
        DoPhase("merge", 1),
        DoPhase("evaluate", 1),
        DoPhase("publish", 1),
        Announce(2),
    ]
    assert (state.phase, state.round, state.closes_at, state.contributions) == ("collect", 2, 14.0, 0)


def test_after_the_last_round_the_task_is_done():
    last = replace(collecting("a"), round=2, phase="publish")
    state, commands = play(last, PhaseDone(5, "publish"))
    assert (state.phase, commands) == ("done", [Finish()])


def test_work_reported_for_another_phase_changes_nothing():
    state = replace(collecting("a"), phase="evaluate")
    assert play(state, PhaseDone(5, "merge")) == (state, [])


@pytest.mark.parametrize(
    ("events", "closes"),
    [
        ([believed("a")], False),
        ([believed("a"), believed("b")], True),
        ([believed("a"), Planned(1, "b", 1, "")], True),
        ([believed("a"), Planned(1, "b", 1, "few-shot")], False),
        ([believed("a"), Planned(1, "b", 2, "")], False),
        ([Planned(1, "b", 1, ""), Planned(1, "b", 1, "full"), believed("a")], False),
        ([believed("a"), DevicePresent(1, "b", 1, False)], True),
        ([believed("a"), DevicePresent(1, "b", 7, False)], False),
        ([believed("a"), Rejected(1, update("b"), "nan")], True),
        ([Planned(1, "a", 1, ""), Planned(1, "b", 1, "")], False),
        ([Rejected(1, update("a"), "nan"), Rejected(1, update("b"), "nan")], False),
        ([believed("a"), TimePassed(9.9)], False),
        ([believed("a"), TimePassed(10.0)], True),
        ([believed("a"), DevicePresent(1, "a", 1, False), DevicePresent(1, "b", 1, False)], False),
    ],
    ids=[
        "one of two has answered",
        "both have contributed",
        "the other sits out",
        "the other has plans",
        "the other sits another round out",
        "the other sat out and thought better of it",
        "the other is gone",
        "an earlier life of the other is gone",
        "the other was refused",
        "both sit out",
        "both were refused",
        "just before the deadline",
        "at the deadline",
        "both are gone and may come back",
    ],
)
def test_a_round_closes_when_all_who_are_online_have_answered_or_at_its_deadline(events, closes):
    state, commands = play(collecting("a", "b"), *events)
    assert (DoPhase("merge", 1) in commands) is closes
    assert state.phase == ("merge" if closes else "collect")


def test_a_deadline_with_too_few_contributions_is_extended_and_says_so():
    rules = replace(RULES, min_contributions=2)
    state, commands = play(collecting("a", "b", "c", rules=rules), believed("a"), TimePassed(10.0))
    assert commands[-1] == Extend(1, 1)
    assert (state.phase, state.closes_at) == ("collect", 20.0)
    state, commands = play(state, believed("b", now=12.0), TimePassed(20.0))
    assert commands[-1] == DoPhase("merge", 1)


IN_VAIN = replace(RULES, max_extensions=3)


def sitting_out(*devices, now=1.0):
    return [Planned(now, device, 1, "") for device in devices]


def test_after_enough_deadlines_in_vain_the_run_is_given_up_and_says_what_devices_did():
    state = collecting("a", "b", "c", rules=IN_VAIN)
    for now in (10.0, 20.0):
        state, commands = play(
            state, *sitting_out("a", "b"), Planned(now - 1, "c", 1, "full"), TimePassed(now)
        )
        assert commands[-1] == Extend(1, 0)
    state, commands = play(state, *sitting_out("b", "a"), Planned(29.0, "c", 1, "full"), TimePassed(30.0))
    assert commands[-1] == GiveUp(1, 3, 10.0, ("a", "b"), ("c",))
    assert state.phase == "given up"
    assert play(state, TimePassed(99.0), believed("a", now=99.0))[0].phase == "given up"


def test_a_contribution_begins_the_count_anew_also_where_it_is_not_enough():
    rules = replace(IN_VAIN, min_contributions=9)
    state = collecting("a", "b", rules=rules)
    for now in (10.0, 20.0):
        state, _ = play(state, *sitting_out("a", "b"), TimePassed(now))
    assert (state.fruitless, state.extensions_left) == (2, 1)
    state, commands = play(state, believed("a", now=21.0), TimePassed(30.0))
    assert (commands[-1], state.fruitless, state.extensions_left) == (Extend(1, 1), 0, 3)


@pytest.mark.parametrize(
    "away",
    [
        [DevicePresent(2.0, "a", 1, False)],
        [DevicePresent(2.0, "a", 1, True, ready=False)],
        [Planned(1.0, "a", 1, ""), DevicePresent(2.0, "a", 1, False)],
    ],
    ids=["offline", "paused, or fetching", "sat out and left"],
)
def test_while_no_device_is_there_a_round_waits_however_long(away):
    state, _ = play(collecting("a", rules=IN_VAIN), *away)
    for now in range(10, 1000, 10):
        state, commands = play(state, TimePassed(float(now)))
        assert commands == [Extend(1, 0)]
    assert state.fruitless == 0


def test_where_all_that_are_there_have_contributed_a_round_waits_for_more_devices_however_long():
    state = collecting("a", rules=replace(IN_VAIN, min_contributions=2))
    state, _ = play(state, believed("a"))
    for now in range(10, 1000, 10):
        state, commands = play(state, TimePassed(float(now)))
        assert commands == [Extend(1, 1)]
    state, _ = play(state, *online("b"), *sitting_out("b", now=1001.0), TimePassed(1010.0))
    assert (state.phase, state.fruitless) == ("collect", 1)


def test_a_device_whose_contribution_was_not_believed_does_not_keep_the_run_waiting():
    state, _ = play(collecting("a", rules=IN_VAIN), Rejected(1.0, update("a"), "not finite"))
    for now in (10.0, 20.0, 30.0):
        state, commands = play(state, TimePassed(now))
    assert commands == [GiveUp(1, 3, 10.0, (), ())]


def test_a_device_that_is_silent_is_not_there_after_two_deadlines():
    state = collecting("a", rules=IN_VAIN)
    for now in range(10, 1000, 10):
        state, _ = play(state, TimePassed(float(now)))
    assert (state.phase, state.fruitless) == ("collect", 1)


def test_with_0_and_where_rounds_are_given_no_deadline_ends_the_run():
    state, rules = collecting("a", rules=replace(RULES, max_extensions=0)), replace(IN_VAIN, given=True)
    other, _ = play(RoundsState(rules), *online("a"), Give(0.0, 10.0, 1))
    for now in range(10, 1000, 10):
        state, _ = play(state, *sitting_out("a"), TimePassed(float(now)))
        other, _ = play(other, *sitting_out("a"), TimePassed(float(now)))
    assert (state.phase, other.phase) == ("collect", "collect")
    assert (state.extensions_left, other.extensions_left) == (None, None)


def test_deadlines_in_vain_are_counted_on_after_a_restart():
    state, _ = machine.resume(IN_VAIN, Saved(1, "collect", fruitless=2), 0.0)
    _, commands = play(state, *online("a"), *sitting_out("a"), TimePassed(10.0))
    assert isinstance(commands[-1], GiveUp)


def test_the_next_round_begins_to_count_anew():
    state, _ = play(collecting("a", "b", rules=IN_VAIN), *sitting_out("a", "b"), TimePassed(10.0))
    state, _ = play(state, believed("a", now=11.0), *sitting_out("b"), *end_of_work(12.0))
    assert (state.round, state.fruitless, state.had) == (2, 0, 0)


def test_who_sat_out_is_asked_again_when_the_round_is_extended():
    state, _ = play(collecting("a"), Planned(1, "a", 1, ""), TimePassed(10.0))
    assert state.sat_out == frozenset()


def test_a_contribution_that_is_stored_already_is_a_duplicate_in_whatever_round():
    for number in (1, 2):
        state = replace(collecting("a", "b"), round=2)
        for event in (
            Announced(1, update(number=number), "full"),
            Validated(1, update(number=number), "full"),
        ):
            after, commands = play(state, event)
            assert statuses(commands) == ["duplicate"]
            assert after.contributions == 0


def test_content_is_fetched_only_for_a_contribution_that_can_count():
    state = replace(collecting("a", "b"), round=2)
    assert play(state, Announced(1, update(number=2)))[1] == [FetchContribution(update(number=2))]
    assert statuses(play(state, Announced(1, update(number=1)))[1]) == ["late"]
    assert statuses(play(state, Announced(1, update(number=3)))[1]) == ["refused"]
    assert statuses(play(state, Announced(1, update(number=0)))[1]) == ["refused"]


def test_a_contribution_whose_content_comes_after_the_deadline_is_late_and_told_why():
    state = replace(collecting("a", "b"), round=2)
    _, commands = play(state, believed("a", number=1))
    assert commands == [Reply(update("a", 1), "late", "round 1 is closed, round 2 is open")]


def test_a_late_contribution_counts_in_the_open_round_where_the_task_says_so():
    state = replace(collecting("a", "b", rules=replace(RULES, late="count")), round=2)
    after, commands = play(state, believed("a", number=1))
    assert commands[0] == StoreContribution(update("a", 1), 2)
    assert commands[1] == Reply(
        update("a", 1), "accepted", "round 1 is closed, counted in round 2 unless a newer one comes"
    )
    assert (after.contributions, after.answered) == (1, frozenset())


def test_what_comes_late_for_a_round_that_was_given_up_does_not_count():
    rules = replace(RULES, rounds=9, late="count")
    state = replace(collecting("a", "b", rules=rules), round=5)
    state, commands = play(
        state, RolledBack(2, frozenset({3, 4})), believed("a", number=3), believed("b", number=2)
    )
    assert statuses(commands) == ["late", "accepted"]
    assert (
        commands[0].reason
        == "round 3 is closed, and was discarded: the run was rolled back to an earlier model"
    )
    state, commands = play(state, Announced(2, update("a", 4)))
    assert statuses(commands) == ["late"]


def test_rounds_that_were_given_up_are_remembered_after_a_restart():
    rules = replace(RULES, rounds=9, late="count")
    state, _ = machine.resume(rules, Saved(5, "collect", given_up=frozenset({4})), 0.0)
    assert statuses(play(state, believed("a", number=4))[1]) == ["late"]


def test_a_kind_that_is_bound_to_its_round_is_late_even_where_late_ones_count():
    rules = replace(RULES, late="count", bound=frozenset({"prototypes"}))
    state = replace(collecting("a", "b", rules=rules), round=2)
    assert statuses(play(state, believed("a", number=1, kind="prototypes"))[1]) == ["late"]


@pytest.mark.parametrize("event", [Announced, Validated])
def test_a_device_has_one_voice_in_a_round_whatever_kinds_it_sends(event):
    state, _ = play(collecting("a", "b"), believed("a"))
    state, commands = play(state, event(2.0, update("a", kind="few-shot"), "full"))
    assert commands == [Reply(update("a", kind="few-shot"), "refused", "a has already sent full for round 1")]
    assert (state.contributions, state.phase) == (1, "collect")


@pytest.mark.parametrize("rules", [Rules(9, 10.0, late="count"), Rules(9, 10.0, FullBuffer(2))])
def test_a_device_has_one_voice_for_an_earlier_round_too(rules):
    state = replace(collecting("a", "b", rules=rules), round=3)
    state, commands = play(
        state, believed("a", number=2), believed("a", number=2, kind="few-shot", sent="full")
    )
    assert statuses(commands) == ["accepted", "refused"]
    assert state.contributions == 1


def test_a_minimum_of_contributions_is_one_of_devices():
    """The late one of a and its fresh one both count; the round waits for another device."""
    rules = replace(RULES, rounds=9, late="count", min_contributions=2)
    state = replace(collecting("a", "b", rules=rules), round=2)
    state, commands = play(state, believed("a", number=1), believed("a", number=2), TimePassed(10.0))
    assert (state.contributions, commands[-1]) == (2, Extend(2, 1))
    assert play(state, believed("b", number=2, now=12.0), TimePassed(20.0))[1][-1] == DoPhase("merge", 2)


def test_the_will_of_an_earlier_life_is_ignored():
    state = collecting("a")
    state, _ = play(state, DevicePresent(1, "a", 2, True), DevicePresent(2, "a", 1, False))
    assert state.online == {"a"}
    state, _ = play(state, DevicePresent(3, "a", 2, False))
    assert state.online == frozenset()


def test_a_crash_costs_no_device_its_round():
    saved = Saved(1, "collect", counted={"a": 1}, answered=frozenset({"a"}))
    state, commands = machine.resume(RULES, saved, 500.0)
    assert commands == (Announce(1, again=True),)
    assert (state.contributions, state.closes_at) == (1, 510.0)


def test_after_a_restart_nobody_is_forgotten_because_another_is_heard_first():
    saved = Saved(1, "collect", counted={"a": 1}, answered=frozenset({"a"}))
    state, _ = machine.resume(RULES, saved, 500.0)
    state, commands = play(
        state, *online("a", now=500.1), *online("b", now=500.2), TimePassed(500.0 + SETTLE_S)
    )
    assert (state.phase, commands) == ("collect", [])
    state, commands = play(state, believed("b", now=502.0))
    assert commands[-1] == DoPhase("merge", 1)


@pytest.mark.parametrize("phase", ["merge", "evaluate", "publish"])
def test_work_that_a_crash_interrupted_is_done_again(phase):
    state, commands = machine.resume(RULES, Saved(1, phase), 5.0)
    assert (state.phase, commands) == (phase, (DoPhase(phase, 1),))


def test_after_a_closed_round_a_restart_opens_the_next_or_finishes():
    assert machine.resume(RULES, Saved(1, "closed"), 5.0)[1] == (Announce(2),)
    assert machine.resume(RULES, Saved(2, "closed"), 5.0)[1] == (Finish(),)


def test_a_new_run_waits():
    assert machine.resume(RULES, None, 5.0) == (RoundsState(RULES), ())


@pytest.mark.parametrize("phase", ["merge", "evaluate", "publish"])
def test_a_round_that_was_closing_when_the_aggregator_ended_lasted_since_the_restart(phase):
    state, _ = machine.resume(RULES, Saved(2, phase), 5000.0)
    assert state.opened_at == 5000.0


def test_a_device_that_lets_two_deadlines_pass_in_silence_is_not_waited_for_until_it_is_heard():
    state, _ = play(RoundsState(replace(RULES, rounds=9)), *online("a", "ghost"))
    for number in (1, 2):
        now = state.opened_at + 1.0
        state, commands = play(state, believed("a", now, number))
        assert DoPhase("merge", number) not in commands  # the ghost is waited for, to the deadline
        state, _ = play(state, TimePassed(state.closes_at), *end_of_work(state.closes_at))
    state, commands = play(state, believed("a", state.opened_at + 1.0, 3))
    assert DoPhase("merge", 3) in commands
    state, _ = play(state, *end_of_work(state.opened_at + 1.0))
    announcement = Announced(state.opened_at, update("ghost", 3))
    state, _ = play(state, announcement)
    assert state.ready == {"a", "ghost"}


def test_a_device_that_sits_out_is_not_silent():
    state, _ = play(RoundsState(replace(RULES, rounds=9)), *online("a", "b"))
    for number in (1, 2, 3):
        planned = Planned(state.opened_at + 0.5, "b", number, "")
        state, _ = play(state, planned, believed("a", state.opened_at + 1.0, number))
        state, _ = play(state, *end_of_work(state.opened_at + 1.0))
    assert state.devices["b"].silences == 0


BUFFERED = replace(RULES, rounds=9, closing=FullBuffer(2), max_staleness=2)


def test_a_buffered_round_closes_as_soon_as_its_buffer_is_full_whoever_still_works():
    state, commands = play(collecting("a", "b", "c", rules=BUFFERED), believed("a"), believed("c"))
    assert commands[-1] == DoPhase("merge", 1)
    assert state.waiting == {"b"}


def test_a_device_alone_does_not_fill_a_buffer():
    state = replace(collecting("a", "b", "c", rules=BUFFERED), round=3)
    sent = [believed("a", number=number) for number in (1, 2, 3)]
    state, commands = play(state, *sent)
    assert (state.contributions, state.phase, statuses(commands)) == (3, "collect", ["accepted"] * 3)
    assert play(state, believed("b", number=3))[1][-1] == DoPhase("merge", 3)


def test_an_update_that_is_older_than_its_devices_newest_does_not_count():
    rules = replace(RULES, rounds=9, late="count")
    state = replace(collecting("a", "b", rules=rules), round=3)
    sent = [believed("a", number=number) for number in (2, 3, 1)]
    state, commands = play(state, *sent)
    assert statuses(commands) == ["accepted", "accepted", "late"]
    assert commands[-1].reason == "round 1 is closed, and a counts in round 3 with its update for round 3"
    assert (state.contributions, dict(state.newest)) == (2, {"a": 3})
    state, commands = play(state, Announced(4.0, update("b", 1)))
    assert commands == [FetchContribution(update("b", 1))]


def test_what_the_disk_refuses_counts_for_no_device():
    rules = replace(RULES, late="count", min_contributions=2)
    state = replace(collecting("a", "b", "c", rules=rules), round=2)
    state, _ = play(state, believed("a", number=1), believed("a", number=2), believed("b", number=2))
    state, _ = play(state, CommitFailed(2.0, (update("a", 2), update("b", 2))))
    assert (state.contributions, dict(state.counted)) == (1, {"a": 1})


def test_a_buffered_round_does_not_close_because_all_have_answered_but_at_its_deadline():
    state, commands = play(collecting("a", rules=BUFFERED), believed("a"), TimePassed(9.9))
    assert commands == [StoreContribution(update("a"), 1), Reply(update("a"), "accepted")]
    assert play(state, TimePassed(10.0))[1] == [DoPhase("merge", 1)]
    rules = replace(BUFFERED, min_contributions=2)
    assert play(collecting("a", rules=rules), believed("a"), TimePassed(10.0))[1][-1] == Extend(1, 1)


@pytest.mark.parametrize("rules", [BUFFERED, replace(RULES, late="count", max_staleness=2)])
def test_a_contribution_counts_in_a_later_round_if_it_is_not_too_many_rounds_late(rules):
    state = replace(collecting("a", "b", "c", rules=rules), round=4)
    _, commands = play(state, believed("a", number=2))
    reply = Reply(
        update("a", 2), "accepted", "round 2 is closed, counted in round 4 unless a newer one comes"
    )
    assert commands == [StoreContribution(update("a", 2), 4), reply]
    _, commands = play(state, believed("a", number=1))
    assert commands == [Reply(update("a", 1), "late", "round 1 is closed: 3 rounds late, at most 2 may be")]


def test_a_kind_that_is_bound_to_its_round_is_late_in_a_buffered_run_too():
    rules = replace(BUFFERED, bound=frozenset({"prototypes"}))
    state = replace(collecting("a", "b", rules=rules), round=2)
    assert statuses(play(state, believed("a", number=1, kind="prototypes"))[1]) == ["late"]


def test_what_comes_late_fills_the_buffer_as_well():
    state = replace(collecting("a", "b", "c", rules=BUFFERED), round=2)
    _, commands = play(state, believed("a", number=1), believed("b", number=2))
    assert commands[-1] == DoPhase("merge", 2)


def test_a_round_that_is_full_puts_others_off_until_it_closes_and_waits_for_nobody_it_cannot_take():
    rules = replace(RULES, max_contributions=2)
    state, commands = play(collecting("a", "b", "c", "d", rules=rules), believed("a"), believed("b"))
    assert statuses(commands) == ["accepted", "accepted"]
    state, commands = play(state, Announced(4.2, update("c")), Announced(4.2, update("a"), "full"))
    full = "round 1 has 2 contributions, as many as it takes"
    assert commands == [
        Reply(update("c"), "refused", full, retry_s=6),
        Reply(update("a"), "duplicate"),
    ]
    state, commands = play(state, believed("d", now=5.0))  # its content came while there was room
    assert commands == [Reply(update("d"), "refused", full, retry_s=5), DoPhase("merge", 1)]


def test_what_comes_late_is_put_off_too_and_counts_when_it_comes_again():
    rules = replace(RULES, rounds=4, late="count", max_contributions=1)
    state = play(collecting("a", "b", rules=rules), believed("a"), TimePassed(10.0), *end_of_work(10.0))[0]
    state, _ = play(state, believed("a", now=11.0, number=2))
    state, commands = play(state, Announced(12.0, update("b")))
    assert [(reply.status, reply.retry_s) for reply in commands] == [("refused", 8)]
    state, _ = play(state, TimePassed(20.0), *end_of_work(20.0))
    assert (state.round, state.contributions) == (3, 0)
    assert play(state, believed("b", now=21.0))[1][:2] == [
        StoreContribution(update("b"), 3),
        Reply(update("b"), "accepted", "round 1 is closed, counted in round 3 unless a newer one comes"),
    ]


def test_nobody_is_put_off_for_longer_than_an_hour():
    rules = replace(RULES, untimed_rounds=1, max_contributions=1)
    state = play(collecting("a", "b", rules=rules), believed("a"))[0]
    assert step(state, Announced(2.0, update("b")))[1][0].retry_s == 3600


MASKED = replace(RULES, masked=True, max_extensions=3)


def unmasking(rules=MASKED):
    """Round 1 of masked updates, closed at time 1 with one contribution."""
    return play(collecting("a", rules=rules), believed("a"))[0]


def test_a_masked_round_is_unmasked_before_it_is_merged():
    state, commands = play(collecting("a", rules=MASKED), believed("a"))
    assert (state.phase, commands[-1]) == ("unmask", DoPhase("unmask", 1))
    state, commands = play(state, SumAnswered(2), PhaseDone(2, "unmask"))
    assert (state.phase, commands) == ("merge", [DoPhase("merge", 1)])


def test_a_masked_round_that_is_closed_from_outside_is_unmasked_too():
    state, commands = play(collecting("a", "b", rules=MASKED), believed("a"), Close(3))
    assert (state.phase, state.closes_at, commands[-1]) == ("unmask", 13, DoPhase("unmask", 1))
    assert play(state, Close(4)) == (state, [])


def test_helpers_are_waited_for_deadline_after_deadline_then_the_run_is_given_up():
    state, commands = play(unmasking(), TimePassed(10.9), TimePassed(11), TimePassed(20.9), TimePassed(21))
    assert commands == [AwaitHelpers(1, 1, 10.0), AwaitHelpers(1, 2, 10.0)]
    assert (state.phase, state.round) == ("unmask", 1)
    state, commands = play(state, TimePassed(31))
    assert (state.phase, commands) == ("given up", [GiveUpSums(1, 3, 10.0)])


def test_an_answer_begins_the_count_of_deadlines_anew():
    state, commands = play(unmasking(), TimePassed(11), TimePassed(21), SumAnswered(30), TimePassed(39))
    assert (state.fruitless, state.closes_at, len(commands)) == (0, 40, 2)
    state, commands = play(state, TimePassed(40))
    assert commands == [AwaitHelpers(1, 1, 10.0)]


@pytest.mark.parametrize("changes", [{"max_extensions": 0}, {"given": True}])
def test_helpers_are_waited_for_however_long_where_no_deadline_ends_the_run(changes):
    state = replace(unmasking(), rules=replace(MASKED, **changes))
    state, commands = play(state, *(TimePassed(11 + 10 * at) for at in range(50)))
    assert (state.phase, commands[-1]) == ("unmask", AwaitHelpers(1, 50, 10.0))


def test_deadlines_that_devices_missed_do_not_count_against_helpers():
    rules = replace(MASKED, min_contributions=2)
    state, _ = play(collecting("a", "b", rules=rules), TimePassed(10))
    assert state.fruitless == 1
    state, _ = play(state, *online("a", "b", now=21), believed("a", 21), believed("b", 22))
    assert (state.phase, state.fruitless, state.closes_at) == ("unmask", 0, 32)


def test_a_round_that_a_crash_interrupted_while_unmasked_is_unmasked_again():
    state, commands = machine.resume(MASKED, Saved(1, "unmask", {"a": 1}, fruitless=1), 50.0)
    assert (state.phase, state.closes_at, commands) == ("unmask", 60.0, (DoPhase("unmask", 1),))
    assert play(state, TimePassed(60), TimePassed(70))[1] == [
        AwaitHelpers(1, 2, 10.0),
        GiveUpSums(1, 3, 10.0),
    ]


@pytest.mark.parametrize(
    ("changes", "number", "kind", "status", "retry_s"),
    [
        ({"late": "count"}, 1, "full", "refused", 5),
        ({"late": "discard"}, 1, "full", "late", 0),
        ({"late": "count", "bound": frozenset({"full"})}, 1, "full", "late", 0),
        ({"late": "count"}, 2, "full", "refused", 0),
    ],
    ids=["may count", "late do not count", "its kind counts in its own round", "of no round yet"],
)
def test_what_comes_while_a_round_is_unmasked_is_put_off_where_it_may_count_next(
    changes, number, kind, status, retry_s
):
    state = unmasking(replace(MASKED, **changes))
    _, commands = play(state, Announced(2, update("b", number, kind)))
    [reply] = [command for command in commands if isinstance(command, Reply)]
    assert (reply.status, reply.retry_s) == (status, retry_s)


def test_presence_does_not_open_or_close_a_round_that_is_unmasked():
    state, commands = play(unmasking(), *online("b", now=2), DevicePresent(3, "a", 1, False), SumAnswered(4))
    assert (state.phase, commands) == ("unmask", [])
