"""The round machine: a pure function `step(state, event) -> (state, commands)`, without I/O or clock.

    wait -> collect -> merge -> evaluate -> publish -> collect (the next round) | done
            collect -> unmask -> merge, where updates are masked
            collect, unmask -> given up

Events carry the time. Where rounds are given from outside, `publish` leads to `wait` until the next round is
given.

`unmask`, `merge`, `evaluate` and `publish` are work that the runner does and reports with `PhaseDone`; each
may be repeated after a crash. `unmask` waits for the answers of mask helpers, for up to `max_extensions`
deadlines in a row; the others are done at once. A contribution is judged twice: as `Announced` when its
message arrives, so that no content is fetched in vain, and as `Validated` when its content has been fetched
and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, inf

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.tasks.closing import AllDevices, FastDevices, FullBuffer, LearntDeadline
from device_runtime.broker.wire.messages import Status

from . import participation
from .events import (
    Announce,
    Announced,
    AwaitHelpers,
    Close,
    Command,
    CommitFailed,
    ContributionId,
    DevicePresent,
    DoPhase,
    Event,
    Extend,
    FetchContribution,
    Finish,
    Forgotten,
    Give,
    GiveUp,
    GiveUpSums,
    Invite,
    Invited,
    PhaseDone,
    Planned,
    Rejected,
    Reply,
    RolledBack,
    StoreContribution,
    SumAnswered,
    Validated,
    WorkPhase,
)
from .state import MAX_RETRY_S, RETRY_S, SETTLE_S, UNMASK_RETRY_S, RoundsState, Rules, Saved

Result = tuple[RoundsState, tuple[Command, ...]]
_TIMELESS = (Announced, CommitFailed, PhaseDone)
"""Events that do not let time pass: a contribution announced at the deadline is in time."""

_FOLLOWING: Mapping[WorkPhase, WorkPhase] = {"unmask": "merge", "merge": "evaluate", "evaluate": "publish"}


def resume(rules: Rules, saved: Saved | None, now: float) -> Result:
    """The state and the first commands of a run, after a restart or for a new run (`saved` None).

    The deadline of an open round restarts: a crash must not cost devices their round.
    """
    if saved is None:
        return RoundsState(rules), ()
    state = RoundsState(rules, round=saved.round, opened_at=now, settles_at=now + SETTLE_S)
    state = state.but(paces=saved.paces, progress=saved.progress, given_up=saved.given_up)
    state = participation.remembered(state.but(asked=HashTrieMap(saved.asked)), saved)
    if saved.phase == "closed":
        return _next(state, now)
    if saved.phase == "collect":
        already = sum(number == saved.round for number in saved.asked.values())
        opened = participation.round_opened(state.but(round=saved.round - 1), now)
        opened = opened.but(
            contributions=sum(saved.counted.values()),
            counted=HashTrieMap(saved.counted),
            newest=HashTrieMap(saved.newest),
            answered=HashTrieSet(saved.answered),
            waiting=participation.yet_to_answer(opened, saved.answered),
            places=max(0, opened.places - already),
            measured=False,
            opened=HashTrieMap(),
            had=sum(saved.counted.values()),
            fruitless=saved.fruitless,
        )
        opened = opened.but(closes_at=now + opened.deadline_s(opened.round))
        return opened, (Announce(saved.round, again=True),)
    if saved.phase == "unmask":
        state = state.but(closes_at=now + rules.round_deadline_s, fruitless=saved.fruitless)
    return state.but(phase=saved.phase), (DoPhase(saved.phase, saved.round),)


def step(state: RoundsState, event: Event) -> Result:
    """The state after an event, and the commands to execute, in this order."""
    commands: tuple[Command, ...] = ()
    match event:
        case Announced():
            state = participation.heard(state, event.update.device)
            reply = _verdict(state, event)
            if reply.status == "accepted":
                commands = (FetchContribution(event.update),)
            else:
                state, commands = _replied(state, reply, event.now)
        case Validated():
            state, commands = _validated(state, event)
        case DevicePresent():
            state = participation.present(state, event)
        case Forgotten():
            state = participation.forgotten(state, event.device)
        case Planned():
            state = participation.planned(participation.heard(state, event.device), event)
        case Invited():
            state = participation.invited(state, event)
        case Rejected():
            reply = Reply(event.update, "refused", event.reason)
            state, commands = participation.answered(state, event.update), (reply,)
        case CommitFailed():
            state = participation.commit_failed(state, event)
        case PhaseDone():
            state, commands = _phase_done(state, event)
        case SumAnswered() if state.phase == "unmask":
            state = state.but(fruitless=0, closes_at=event.now + state.rules.round_deadline_s)
        case Give():
            state, commands = _given(state, event)
        case Close() if state.phase == "collect":
            state, commands = _collected(state, event.now)
        case RolledBack():
            state = state.but(given_up=event.rounds)
    if not isinstance(event, _TIMELESS):
        state, more = _advance(state, event.now)
        commands += more
    if state.due or event.now >= state.retries_at:
        state, more = _invite(state, event.now)
        commands += more
    return state, commands


def _judge(state: RoundsState, update: ContributionId, sent: str) -> tuple[Status, str]:
    """The status of a contribution if its content is valid, and the reason.

    A device contributes to a round once; `sent` is the kind of a contribution that counts already.
    """
    if sent == update.kind:
        return "duplicate", ""
    if sent:
        return "refused", f"{update.device} has already sent {sent} for round {update.round}"
    if update.round < 1 or update.round > state.round:
        return "refused", f"round {update.round} has not begun, round {state.round} is the latest"
    if state.phase == "collect" and update.round == state.round:
        return ("accepted", "") if state.is_asked(update.device) else ("refused", _unasked(update))
    closed = f"round {update.round} is closed"
    if state.phase != "collect":
        return "late", f"{closed}, and no round is open"
    if not state.rules.counts_late:
        return "late", f"{closed}, round {state.round} is open"
    if update.kind in state.rules.bound:
        return "late", f"{closed}, and {update.kind} counts in its own round only"
    if update.round < (newest := state.newest.get(update.device, 0)):
        instead = f"with its update for round {newest}"
        return "late", f"{closed}, and {update.device} counts in round {state.round} {instead}"
    return _judge_late(state, update)


def _judge_late(state: RoundsState, update: ContributionId) -> tuple[Status, str]:
    """The status of a contribution to an earlier round, where such contributions may count."""
    rules, rounds = state.rules, state.round - update.round
    if update.round in state.given_up:
        why = "and was discarded: the run was rolled back to an earlier model"
        return "late", f"round {update.round} is closed, {why}"
    if rounds > rules.max_staleness:
        most = f"at most {rules.max_staleness} may be"
        return "late", f"round {update.round} is closed: {rounds} rounds late, {most}"
    if rules.cohort(update.round) is not None and state.asked.get(update.device, 0) < update.round:
        return "refused", _unasked(update)
    counted = f"counted in round {state.round} unless a newer one comes"
    return "accepted", f"round {update.round} is closed, {counted}"


def _counts_next(state: RoundsState, update: ContributionId) -> bool:
    """Whether a contribution that comes while a round is unmasked may count in the next round."""
    rules = state.rules
    if state.phase != "unmask" or not rules.counts_late or update.kind in rules.bound:
        return False
    return _judge_late(state.but(round=state.round + 1), update)[0] == "accepted"


def _unasked(update: ContributionId) -> str:
    return f"{update.device} was not asked for round {update.round}"


def _verdict(state: RoundsState, event: Announced | Validated) -> Reply:
    """The receipt if the content is valid. In a full round it says after how many seconds to try again."""
    status, reason = _judge(state, event.update, event.sent)
    if status == "late" and _counts_next(state, event.update):
        reason = f"round {state.round} is being unmasked, it may count in the next one"
        return Reply(event.update, "refused", reason, UNMASK_RETRY_S)
    if status != "accepted" or not state.full:
        return Reply(event.update, status, reason)
    reason = f"round {state.round} has {state.contributions} contributions, as many as it takes"
    retry_s = min(max(state.closes_at - event.now, RETRY_S), MAX_RETRY_S)
    return Reply(event.update, "refused", reason, ceil(retry_s))


def _validated(state: RoundsState, event: Validated) -> Result:
    update, reply = event.update, _verdict(state, event)
    if reply.status != "accepted":
        return _replied(state, reply, event.now)
    state = participation.counted(participation.answered(state, update), update)
    state = participation.update_received(state, update, event.now)
    if update.round == state.round:
        state = participation.duration_measured(state, update, event.now)
    return state, (StoreContribution(update, state.round), reply)


def _replied(state: RoundsState, reply: Reply, now: float) -> Result:
    """Sends the receipt of a contribution that does not count.

    The round does not wait for its device any longer, except where it is refused for good: such a
    contribution is no answer to the round.
    """
    if reply.status == "late":
        state = participation.update_received(state, reply.update, now)
    if reply.status != "refused" or reply.retry_s:
        state = participation.answered(state, reply.update)
    return state, (reply,)


def _phase_done(state: RoundsState, event: PhaseDone) -> Result:
    if event.phase != state.phase:
        return state, ()
    if event.phase == "publish":
        before = event.back or state.progress
        rolled_back = event.back is not None
        after = before.after(state.round, event.score, state.rules.stop_gain, rolled_back)
        return _next(state.but(progress=after), event.now)
    following = _FOLLOWING[event.phase]
    return state.but(phase=following), (DoPhase(following, state.round),)


def _given(state: RoundsState, event: Give) -> Result:
    """Opens the given round, or extends the open one; no effect while a round is merged.

    Round numbers may be skipped.
    """
    state = state.but(rules=replace(state.rules, round_deadline_s=event.deadline_s))
    if state.phase == "wait":
        return participation.round_opened(state.but(round=event.round - 1), event.now), (
            Announce(event.round),
        )
    if state.phase == "collect":
        return participation.extended(state, event.now), (Extend(state.round, len(state.counted)),)
    return state, ()


def _collected(
    state: RoundsState, now: float, durations: tuple[tuple[int, int], ...] = (), early: str = ""
) -> Result:
    """Ends the collecting; `durations` and `early` as in DoPhase."""
    phase: WorkPhase = "merge"
    if state.rules.masked:
        phase = "unmask"
        state = state.but(fruitless=0, closes_at=now + state.rules.round_deadline_s)
    return state.but(phase=phase), (DoPhase(phase, state.round, durations, early),)


def _next(state: RoundsState, now: float) -> Result:
    if state.rules.given:
        return state.but(phase="wait"), ()
    stop_after, progress = state.rules.stop_after, state.progress
    if state.round >= state.rules.rounds or progress.stuck(state.round, stop_after):
        return state.but(phase="done"), (Finish(progress.best if stop_after else 0),)
    return participation.round_opened(state, now), (Announce(state.round + 1),)


def _advance(state: RoundsState, now: float) -> Result:
    """Applies what time and presence alone cause: a round opens, closes, or is extended."""
    if state.phase == "wait" and not state.rules.given and len(state.ready) >= state.rules.min_devices:
        return _next(state, now)
    if state.phase == "unmask" and now >= state.closes_at:
        return _helpers_overdue(state, now)
    if state.phase != "collect":
        return state, ()
    overdue = now >= state.closes_at
    if overdue:
        state = participation.overdue(state)
    if _complete(state, now, overdue):
        state = participation.round_closed(state)
        durations = tuple(sorted(state.durations.items()))
        return _collected(state, now, durations, _closed_early(state, now))
    return _extended(state, now) if overdue else (state, ())


def _helpers_overdue(state: RoundsState, now: float) -> Result:
    """Waits for another deadline of the mask helpers, or abandons the run after too many.

    What came for the round stays on the disk, so that a restart asks the helpers again.
    """
    rules, deadlines = state.rules, state.fruitless + 1
    if rules.max_extensions and not rules.given and deadlines >= rules.max_extensions:
        return state.but(phase="given up"), (GiveUpSums(state.round, deadlines, rules.round_deadline_s),)
    state = state.but(fruitless=deadlines, closes_at=now + rules.round_deadline_s)
    return state, (AwaitHelpers(state.round, deadlines, rules.round_deadline_s),)


def _extended(state: RoundsState, now: float) -> Result:
    """Restarts the deadline, or abandons the run after too many fruitless deadlines.

    A deadline is fruitless if it brought no contribution though a device was ready that has none in the round
    yet. Where no such device was ready, the round waits for one, however long. A learnt deadline first grows
    to its maximum.
    """
    before, brought = state, state.contributions > state.had
    if state.rules.max_extensions and not state.rules.given:
        could = any(device not in state.counted for device in state.ready)
        fruitless = 0 if brought else state.fruitless + could
        state = state.but(had=state.contributions, fruitless=fruitless)
    if before.extensions_left == 1 and state.fruitless > before.fruitless:
        sat_out, missed = tuple(sorted(state.sat_out)), tuple(sorted(state.waiting))
        number, deadline_s = state.round, before.deadline_s(state.round)
        return state.but(phase="given up"), (GiveUp(number, state.fruitless, deadline_s, sat_out, missed),)
    return participation.extended(state, now), (Extend(state.round, len(state.counted)),)


def _complete(state: RoundsState, now: float, overdue: bool) -> bool:
    """Whether the round closes.

    It closes when its buffer is full, all have answered, the fast devices are done, or its time is over.
    """
    devices = len(state.counted)
    enough = devices >= state.rules.min_contributions
    match state.rules.closing:
        case FullBuffer(size):
            return devices >= size or (enough and overdue)
        case AllDevices() | FastDevices() | LearntDeadline():
            if overdue or not enough:
                return enough
            if now < state.settles_at or now >= state.fast_at:
                return now >= state.settles_at
            somebody = bool(state.ready) and bool(state.answered or state.sat_out)
            return somebody and not _at_work(state)


def _at_work(state: RoundsState) -> int:
    """How many devices the round still waits for.

    Where rounds wait for the fast, devices at work on an earlier round are included: if the round closed too
    soon, their updates would be too late to count.
    """
    return len(state.waiting) + (len(state.behind) if state.fast_at < inf else 0)


def _closed_early(state: RoundsState, now: float) -> str:
    """A note that the round closed before all devices were done; empty where it did not."""
    at_work = _at_work(state)
    if now < state.fast_at or not at_work:
        return ""
    return f"closed at {now - state.opened_at:.3g} s, when the fast were done; {at_work} at work"


def _invite(state: RoundsState, now: float) -> Result:
    """Asks devices for the free places of a cohort; a buffered run keeps all places busy.

    After a restart it waits until presence is known (SETTLE_S).
    """
    size = state.rules.cohort(state.round)
    if size is None or state.phase != "collect" or now < state.settles_at:
        return state, ()
    places, retries_at = state.places, inf
    if isinstance(state.rules.closing, FullBuffer):
        places, retries_at = size - len(state.waiting) - len(state.behind), now + RETRY_S
    if places <= 0:
        return state.but(due=False, retries_at=inf), ()
    return state.but(due=False, retries_at=retries_at), (Invite(state.round, places),)
