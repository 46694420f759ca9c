"""The learnt deadline: by hand, and what the round machine makes of it."""

from dataclasses import replace

import pytest

from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import (
    CommitFailed,
    ContributionId,
    DevicePresent,
    DoPhase,
    Extend,
    GiveUp,
    Invited,
    PhaseDone,
    Planned,
    TimePassed,
    Validated,
)
from device_runtime.aggregator.machine.run_events import RoundOpened
from device_runtime.aggregator.machine.state import RoundsState, Rules, Saved
from device_runtime.aggregator.tasks.closing import STEP, LearntDeadline, class_of, deadline_s, longest_s

PACE = LearntDeadline(quantile=0.75, margin=2.0, least_s=1.0)
RULES = Rules(rounds=9, round_deadline_s=100.0, closing=PACE)


def play(state, *events):
    commands = []
    for event in events:
        state, more = machine.step(state, event)
        commands += more
    return state, commands


def online(*devices):
    return [DevicePresent(0.0, device, 1, True) for device in devices]


def came(device, now, number=1):
    return Validated(now, ContributionId(device, number, "full", 1, 1))


def end_of_work(now):
    return [PhaseDone(now, phase) for phase in ("merge", "evaluate", "publish")]


def classes(*seconds):
    durations = {}
    for each in seconds:
        durations[class_of(each)] = durations.get(class_of(each), 0) + 1
    return durations


@pytest.mark.parametrize("seconds", [1e-9, 0.5, 1.0, 7.3, 86_400.0])
def test_a_class_ends_at_most_a_step_above_its_durations(seconds):
    assert max(seconds, 1e-3) <= longest_s(class_of(seconds)) * (1 + 1e-6)
    assert longest_s(class_of(seconds)) < max(seconds, 1e-3) * STEP * (1 + 1e-6)


def test_the_deadline_is_the_quantile_of_the_last_rounds_times_the_margin():
    """Three of four devices needed at most 3 s: twice that, and up to 5% for the class."""
    learnt = deadline_s(PACE, [classes(1.0, 2.0), classes(3.0, 50.0)], 100.0)
    assert 6.0 <= learnt <= 6.0 * STEP


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [([], 100.0), ([{}], 100.0), ([classes(0.01)], 1.0), ([classes(90.0)], 100.0)],
    ids=["nothing is known", "nobody came", "at least", "at most"],
)
def test_it_is_clamped_and_the_longest_where_nothing_is_known(rounds, expected):
    assert deadline_s(PACE, rounds, 100.0) == expected


def test_the_order_of_devices_changes_nothing():
    assert classes(1, 2, 3) == classes(3, 1, 2)


def test_a_round_lasts_as_long_as_devices_needed_in_those_before():
    state, _ = play(RoundsState(RULES), *online("a", "b", "c", "d"))
    assert state.closes_at == 100.0
    state, commands = play(state, came("a", 2.0), came("b", 3.0), came("c", 4.0), came("d", 10.0))
    assert commands[-1] == DoPhase("merge", 1, tuple(sorted(classes(2, 3, 4, 10).items())))
    state, _ = play(state, *end_of_work(11.0))
    assert state.round == 2
    assert 8.0 <= state.closes_at - 11.0 <= 8.0 * STEP


def test_who_is_waited_for_in_vain_needed_all_of_the_deadline():
    """Two of four do not come: the next deadline is twice the first, which is the longest."""
    state, _ = play(
        RoundsState(RULES), *online("a", "b", "c", "d"), came("a", 2.0), came("b", 3.0), TimePassed(100.0)
    )
    state, _ = play(state, *end_of_work(101.0))
    assert state.closes_at == 201.0


def test_for_whom_nothing_fitted_the_deadline_was_too_short():
    """A deadline that was learnt without a device grows until it is there again."""
    learnt = RoundsState(RULES, paces=(classes(2, 2, 2, 2),))
    state, _ = play(learnt, *online("a", "b"))
    first = state.closes_at
    state, commands = play(state, Planned(1.0, "b", 1, ""), came("a", 2.0))
    assert commands[-1] == DoPhase("merge", 1, tuple(sorted(classes(2, first).items())))
    for number in (2, 3):
        state, _ = play(state, *end_of_work(3.0), Planned(4.0, "b", number, ""), came("a", 5.0, number))
    state, _ = play(state, *end_of_work(6.0))
    assert state.closes_at - 6.0 > first


def test_what_the_disk_refused_has_taken_no_time():
    """Two are not kept, and one of them is sent again, later: it is as if they had come only then."""
    state, _ = play(RoundsState(RULES), *online("a", "b", "c"), came("a", 2.0), came("b", 2.0))
    state, _ = play(state, CommitFailed(2.0, (came("a", 2.0).update, came("b", 2.0).update)), came("a", 9.0))
    assert dict(state.durations) == classes(9)
    _, commands = play(state, came("b", 20.0), came("c", 30.0))
    assert commands[-1] == DoPhase("merge", 1, tuple(sorted(classes(9, 20, 30).items())))


def test_a_learnt_deadline_in_vain_is_doubled_up_to_the_longest_before_the_run_is_given_up():
    saved = Saved(2, "collect", paces=(classes(5),))
    state, _ = machine.resume(replace(RULES, max_extensions=2), saved, 0.0)
    learnt, longest = state.closes_at, RULES.round_deadline_s
    lengths, now, commands = [], 0.0, []
    while state.phase == "collect" and len(lengths) < 20:
        lengths.append(state.closes_at - now)
        now = state.closes_at
        state, commands = play(state, *online("a"), Planned(now - 0.5, "a", 2, ""), TimePassed(now))
    assert lengths == pytest.approx([*(learnt * 2**n for n in range(len(lengths) - 1)), longest])
    assert len(lengths) >= 3
    assert commands[-1] == GiveUp(2, len(lengths), longest, ("a",), ())


def test_the_round_after_a_deadline_in_vain_has_the_learnt_deadline_again():
    state, _ = machine.resume(RULES, Saved(2, "collect", paces=(classes(5),)), 0.0)
    learnt = state.closes_at
    state, _ = play(
        state, *online("a"), TimePassed(learnt), came("a", learnt + 1, 2), *end_of_work(learnt + 1)
    )
    assert (state.round, state.closes_at) == (3, pytest.approx(2 * learnt + 1))


def test_of_a_cohort_each_device_needed_the_time_since_it_was_asked():
    rules = replace(RULES, devices_per_round=2, min_contributions=2)
    state, _ = play(RoundsState(rules), *online("a", "b", "c"), Invited(0.0, 1, ("a", "b")), came("a", 3.0))
    state, commands = play(state, TimePassed(100.0))
    assert Extend(1, 1) in commands
    state, _ = play(state, Invited(100.0, 1, ("c",)))
    _, commands = play(state, came("c", 104.0), DevicePresent(105.0, "b", 1, False))
    merged = next(command for command in commands if isinstance(command, DoPhase))
    assert merged.durations == tuple(sorted(classes(3, 4).items()))


def test_a_round_that_a_restart_interrupted_teaches_nothing_and_has_its_learnt_deadline():
    saved = Saved(2, "collect", paces=(classes(5),))
    state, _ = machine.resume(RULES, saved, 50.0)
    assert 10.0 <= state.closes_at - 50.0 <= 10.0 * STEP
    _, commands = play(state, *online("a"), came("a", 51.5, 2), TimePassed(52.0))
    assert DoPhase("merge", 2) in commands


def test_only_the_last_five_rounds_are_looked_back_on():
    state = RoundsState(RULES, paces=tuple(classes(1) for _ in range(5)))
    state, _ = play(state, *online("a"), came("a", 3.0))
    assert [dict(durations) for durations in state.paces] == [classes(1)] * 4 + [classes(3)]


def test_rounds_without_a_deadline_have_none_and_teach():
    rules = replace(RULES, untimed_rounds=1)
    state, _ = play(RoundsState(rules), *online("a"), came("a", 20.0))
    state, _ = play(state, *end_of_work(21.0))
    assert 40.0 <= state.closes_at - 21.0 <= 40.0 * STEP


def test_on_the_service_the_record_says_what_was_learnt_and_a_restart_learns_the_same(
    bench, make_task, update_of
):
    task = make_task("few-shot", rounds=3, round_deadline_s=50.0, deadline_quantile=1.0, deadline_margin=2.0)
    b = bench(task)
    b.join("a")
    b.now += 6
    b.contribute("a", b.contribution("few-shot", update_of("few-shot")))
    learnt = b.offer.deadline_s
    assert 12.0 <= learnt <= 12.0 * STEP
    b.restart()
    b.join("a", boot=2)
    assert b.offer.deadline_s == learnt
    b.contribute("a", b.contribution("few-shot", update_of("few-shot"), 2, boot=2))
    b.wait(2)
    assert [closed.record.deadline_s for closed in b.store.rounds.closed()] == [50.0, learnt]


def test_a_learnt_deadline_that_was_doubled_is_told_as_such_by_the_next_life(bench, make_task, update_of):
    task = make_task("few-shot", rounds=3, round_deadline_s=50.0, deadline_quantile=1.0, deadline_margin=2.0)
    b = bench(task)
    b.join("a")
    b.now += 6
    b.contribute("a", b.contribution("few-shot", update_of("few-shot")))
    learnt = b.offer.deadline_s
    b.sit_out("a", 2)
    b.wait(learnt)
    again = b.restart()
    assert again.service.state.closes_at - again.now == pytest.approx(2 * learnt)
    assert again.heard(RoundOpened)[-1].deadline_s == pytest.approx(2 * learnt)
