"""The rounds as a pure function: `step(state, event) -> (state, commands)`, no I/O, time in the events.

    wait -> collect -> merge -> evaluate -> publish -> collect (the next round) | done

`merge`, `evaluate` and `publish` are work that the shell does and reports with `Worked`; each may be done
again after a crash. A contribution passes twice: `Announced` when its message is here, so that nothing is
fetched in vain, and `Believed` when its content has been fetched and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

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
from .task import Late

Phase = Literal["wait", "collect", "merge", "evaluate", "publish", "done"]
SETTLE_S = 1.0
"""Seconds after a restart in which a round does not close early: who is online must first be heard of."""


@dataclass(frozen=True)
class Rules:
    """When a round opens and closes; as in Task. `bound`: kinds that never count in a later round."""

    rounds: int
    round_deadline_s: float
    min_contributions: int = 1
    min_devices: int = 1
    late: Late = "discard"
    bound: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Presence:
    """What is known of a device: the life that it spoke from last, whether that is online, and ready."""

    boot: int
    online: bool
    ready: bool = True


@dataclass(frozen=True)
class State:
    """`round` is the open or latest one, 0 before the first; times are in seconds of the events' clock."""

    rules: Rules
    phase: Phase = "wait"
    round: int = 0
    opened_s: float = 0.0
    closes_s: float = 0.0
    settles_s: float = 0.0
    contributions: int = 0
    answered: frozenset[str] = frozenset()
    """Devices that have contributed to this round, or been refused."""
    sat_out: frozenset[str] = frozenset()
    devices: Mapping[str, Presence] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def online(self) -> frozenset[str]:
        return frozenset(name for name, presence in self.devices.items() if presence.online)

    @property
    def ready(self) -> frozenset[str]:
        """The devices that a round waits for."""
        return frozenset(name for name in self.online if self.devices[name].ready)

    def remaining_s(self, now: float) -> float:
        """Seconds until the deadline of the open round."""
        return max(0.0, self.closes_s - now) if self.phase == "collect" else 0.0


Result = tuple[State, tuple[Command, ...]]


@dataclass(frozen=True)
class Saved:
    """Where a run was: the latest round, how far it was, and whose contributions it has."""

    round: int
    phase: Literal["collect", "merge", "evaluate", "publish", "closed"]
    contributions: int = 0
    answered: frozenset[str] = frozenset()


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
            state = _planned(state, event)
        case Announced():
            return state, (_announced(state, event),)
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
    if enough and (overdue or (now >= state.settles_s and _all_answered(state))):
        return replace(state, phase="merge"), (Work("merge", state.round),)
    if overdue:
        extended = replace(state, closes_s=now + state.rules.round_deadline_s, sat_out=frozenset())
        return extended, (Extend(state.round, state.contributions),)
    return state, ()


def _all_answered(state: State) -> bool:
    return bool(state.ready) and state.ready <= state.answered | state.sat_out
