"""Runs the round machine: feeds it events, and has ports execute its commands in order.

The aggregator's ports send messages and write to the disk; a simulation's work in virtual time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from typing import Protocol

from device_runtime.aggregator.tasks.closing import Progress

from . import events as ev
from . import step as machine
from .state import RoundsState, Saved


class NotStored(Exception):
    """Counted contributions could not be stored, so that they do not count: `updates`."""

    def __init__(self, *updates: ev.ContributionId) -> None:
        super().__init__(*updates)
        self.updates = updates


class ContributionPort(Protocol):
    """Executes the commands about one contribution; `state` is that after the event.

    fetch: returns Validated or Rejected; None where that event comes later, or the content is lost.
    store: raises NotStored with all contributions that are lost, this one included.
    """

    def fetch(self, command: ev.FetchContribution, state: RoundsState) -> ev.Event | None: ...
    def store(self, command: ev.StoreContribution, state: RoundsState) -> None: ...
    def reply(self, command: ev.Reply, state: RoundsState) -> None: ...


class RoundPort(Protocol):
    """Executes the commands about the round, each by way of `around`, which may raise NotStored at first.

    clock: seconds, as in events.
    invite: returns the devices that were asked.
    unmask: returns whether all sums are opened; else the event PhaseDone comes later.
    publish: returns `score` and `back` of PhaseDone.
    """

    def clock(self) -> float: ...

    def around(self, command: ev.RoundCommand, execute: Callable[[], ev.Event | None]) -> ev.Event | None:
        return execute()

    def announce(self, command: ev.Announce, state: RoundsState) -> None: ...
    def extend(self, command: ev.Extend, state: RoundsState) -> None: ...
    def invite(self, command: ev.Invite, state: RoundsState) -> tuple[str, ...]: ...
    def give_up(self, command: ev.GiveUp | ev.GiveUpSums) -> None: ...

    def await_helpers(self, command: ev.AwaitHelpers, state: RoundsState) -> None:
        return

    def unmask(self, command: ev.DoPhase, state: RoundsState) -> bool:
        return True

    def merge(self, command: ev.DoPhase) -> None: ...
    def evaluate(self, number: int) -> None: ...
    def publish(self, number: int, state: RoundsState) -> tuple[float, Progress | None]: ...
    def finish(self, command: ev.Finish, state: RoundsState) -> None: ...


class RoundEngine:
    """Holds the state of a run. Not thread-safe; never waits, but in its ports."""

    def __init__(self, state: RoundsState, contributions: ContributionPort, rounds: RoundPort) -> None:
        self.state = state
        self._contributions, self._rounds = contributions, rounds
        self._events: deque[ev.Event] = deque()
        self._busy = False

    def resume(self, saved: Saved | None) -> None:
        """Begins a new run, or goes on with one as it was saved."""
        self._execute_all(*machine.resume(self.state.rules, saved, self._rounds.clock()))
        self._drain()

    def feed(self, event: ev.Event) -> None:
        """Takes an event, and executes its commands before it returns, unless it is called by a command."""
        self._events.append(event)
        if not self._busy:
            self._drain()

    def take_back(self, error: NotStored) -> None:
        """Counts contributions no more that were lost between two events."""
        self._events.appendleft(ev.CommitFailed(self._rounds.clock(), error.updates))
        self._drain()

    def _drain(self) -> None:
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                self._execute_all(*machine.step(self.state, event), event)
        finally:
            self._busy = False

    def _execute_all(
        self, state: RoundsState, commands: Sequence[ev.Command], event: ev.Event | None = None
    ) -> None:
        """Changes to the state after an event and executes its commands.

        If contributions are lost, the event is taken again without them. An event that a command causes waits
        until those before it are done, but the next draw depends on the answer to the one before.
        """
        before, self.state = self.state, state
        for command in commands:
            try:
                if isinstance(command, ev.ContributionCommand):
                    answer = self._execute(command, state)
                else:
                    answer = self._rounds.around(command, partial(self._execute, command, state))
            except NotStored as error:
                self._undo(before, event, error)
                return
            if isinstance(answer, ev.Invited):
                self._events.appendleft(answer)
            elif answer:
                self._events.append(answer)

    def _execute(self, command: ev.Command, state: RoundsState) -> ev.Event | None:
        """Executes a command in this state. Returns the event that answers it, if any."""
        rounds, score, back = self._rounds, nan, None
        match command:
            case ev.FetchContribution():
                return self._contributions.fetch(command, state)
            case ev.StoreContribution():
                self._contributions.store(command, state)
            case ev.Reply():
                self._contributions.reply(command, state)
            case ev.Announce():
                rounds.announce(command, state)
            case ev.Extend():
                rounds.extend(command, state)
            case ev.Invite():
                devices = rounds.invite(command, state)
                return ev.Invited(rounds.clock(), command.round, devices)
            case ev.AwaitHelpers():
                rounds.await_helpers(command, state)
            case ev.GiveUp() | ev.GiveUpSums():
                rounds.give_up(command)
            case ev.Finish():
                rounds.finish(command, state)
            case ev.DoPhase():
                match command.phase:
                    case "unmask":
                        if not rounds.unmask(command, state):
                            return None
                    case "merge":
                        rounds.merge(command)
                    case "evaluate":
                        rounds.evaluate(command.round)
                    case "publish":
                        score, back = rounds.publish(command.round, state)
                return ev.PhaseDone(rounds.clock(), command.phase, score, back)
        return None

    def _undo(self, before: RoundsState, event: ev.Event | None, error: NotStored) -> None:
        """Goes back to the state before an event, as contributions are lost that are counted in it."""
        self.state = before
        own = event.update if isinstance(event, ev.Validated) else None
        if event is not None and own is None:
            self._events.appendleft(event)
        counted = tuple(update for update in error.updates if update != own)
        self._events.appendleft(ev.CommitFailed(self._rounds.clock(), counted))
