"""The rounds as a pure function: `step(state, event) -> (state, commands)`, no I/O, time in the events.

    wait -> collect -> merge -> evaluate -> publish -> collect (the next round) | done

`merge`, `evaluate` and `publish` are work that the shell does and reports with `Worked`; each may be done
again after a crash. A contribution passes twice: `Announced` when its message is here, so that nothing is
fetched in vain, and `Believed` when its content has been fetched and checked.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from broker.messages import Status

from .moves import (
    Announce,
    Announced,
    Believed,
    Command,
    Disbelieved,
    Event,
    Extend,
    Fetch,
    Finish,
    Keep,
    Planned,
    Present,
    Reply,
    Tick,
    Update,
    Work,
    Worked,
    WorkPhase,
)
from .state import SETTLE_S, Presence, Rules, Saved, State

Result = tuple[State, tuple[Command, ...]]


def resume(rules: Rules, saved: Saved | None, now: float) -> Result:
    """The state to go on from, after a restart or at the very beginning (None).

    The deadline of the open round begins anew: a crash must not cost devices their round.
    """
    if saved is None:
        return State(rules), ()
    state = State(rules, round=saved.round, opened_s=now, settles_s=now + SETTLE_S)
    if saved.phase == "closed":
        return _next(state, now)
    if saved.phase == "collect":
        opened = replace(
            _opened(state, saved.round, now), contributions=saved.contributions, answered=saved.answered
        )
        return opened, (Announce(saved.round, again=True),)
    return replace(state, phase=saved.phase), (Work(saved.phase, saved.round),)


def step(state: State, event: Event) -> Result:
    """The state after an event, and what the shell must do, in this order."""
    commands: tuple[Command, ...] = ()
    match event:
        case Present():
            state = _present(state, event)
        case Planned():
            state = _planned(_heard(state, event.device), event)
        case Announced():
            return _heard(state, event.update.device), (_announced(state, event),)
        case Believed():
            state, commands = _believed(state, event)
        case Disbelieved():
            state, commands = _disbelieved(state, event)
        case Worked():
            return _worked(state, event)
        case Tick():
            pass
    state, more = _advance(state, event.now)
    return state, (*commands, *more)


def _present(state: State, event: Present) -> State:
    """A will of an earlier life than the known one says nothing about this one."""
    known = state.devices.get(event.device)
    if not event.online and (known is None or known.boot != event.boot):
        return state
    devices = {**state.devices, event.device: Presence(event.boot, event.online, event.ready)}
    return replace(state, devices=MappingProxyType(devices))


def _heard(state: State, device: str) -> State:
    known = state.devices.get(device)
    if known is None or not known.silences:
        return state
    devices = {**state.devices, device: replace(known, silences=0)}
    return replace(state, devices=MappingProxyType(devices))


def _overdue(state: State) -> State:
    """The deadline has passed: who has not said a word is noted."""
    devices = {
        name: replace(known, silences=known.silences + (name not in state.answered | state.sat_out))
        for name, known in state.devices.items()
    }
    return replace(state, devices=MappingProxyType(devices))


def _planned(state: State, event: Planned) -> State:
    if state.phase != "collect" or event.round != state.round:
        return state
    if event.kind:
        return replace(state, sat_out=state.sat_out - {event.device})
    return replace(state, sat_out=state.sat_out | {event.device})


def _judge(state: State, update: Update, known: bool) -> tuple[Status, str]:
    """What becomes of a contribution if its content is sound."""
    if known:
        return "duplicate", ""
    if update.round < 1 or update.round > state.round:
        return "refused", f"round {update.round} has not begun, round {state.round} is the latest"
    if state.phase == "collect" and update.round == state.round:
        return "accepted", ""
    closed = f"round {update.round} is closed"
    if state.phase != "collect":
        return "late", f"{closed}, and no round is open"
    if state.rules.late == "discard":
        return "late", f"{closed}, round {state.round} is open"
    if update.kind in state.rules.bound:
        return "late", f"{closed}, and {update.kind} counts in its own round only"
    return "accepted", ""


def _announced(state: State, event: Announced) -> Command:
    status, reason = _judge(state, event.update, event.known)
    return Fetch(event.update) if status == "accepted" else Reply(event.update, status, reason)


def _believed(state: State, event: Believed) -> Result:
    update = event.update
    status, reason = _judge(state, update, event.known)
    if status != "accepted":
        return state, (Reply(update, status, reason),)
    if update.round == state.round:
        state = replace(state, answered=state.answered | {update.device})
    else:
        reason = f"round {update.round} is closed, counted in round {state.round}"
    state = replace(state, contributions=state.contributions + 1)
    return state, (Keep(update, state.round), Reply(update, status, reason))


def _disbelieved(state: State, event: Disbelieved) -> Result:
    """A device that was refused has answered: nobody waits for it any longer."""
    update = event.update
    if state.phase == "collect" and update.round == state.round:
        state = replace(state, answered=state.answered | {update.device})
    return state, (Reply(update, "refused", event.reason),)


def _worked(state: State, event: Worked) -> Result:
    if event.phase != state.phase:
        return state, ()
    if event.phase == "publish":
        return _next(state, event.now)
    following: WorkPhase = "evaluate" if event.phase == "merge" else "publish"
    return replace(state, phase=following), (Work(following, state.round),)


def _next(state: State, now: float) -> Result:
    if state.round >= state.rules.rounds:
        return replace(state, phase="done"), (Finish(),)
    return _opened(state, state.round + 1, now), (Announce(state.round + 1),)


def _opened(state: State, number: int, now: float) -> State:
    return replace(
        state,
        phase="collect",
        round=number,
        opened_s=now,
        closes_s=now + state.rules.round_deadline_s,
        contributions=0,
        answered=frozenset(),
        sat_out=frozenset(),
    )


def _advance(state: State, now: float) -> Result:
    """What time and presence alone bring about."""
    if state.phase == "wait" and len(state.ready) >= state.rules.min_devices:
        return _next(state, now)
    if state.phase != "collect":
        return state, ()
    enough = state.contributions >= state.rules.min_contributions
    overdue = now >= state.closes_s
    if overdue:
        state = _overdue(state)
    if enough and (overdue or (now >= state.settles_s and _all_answered(state))):
        return replace(state, phase="merge"), (Work("merge", state.round),)
    if overdue:
        extended = replace(state, closes_s=now + state.rules.round_deadline_s, sat_out=frozenset())
        return extended, (Extend(state.round, state.contributions),)
    return state, ()


def _all_answered(state: State) -> bool:
    return bool(state.ready) and state.ready <= state.answered | state.sat_out
