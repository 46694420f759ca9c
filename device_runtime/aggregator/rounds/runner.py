"""Runs the round machine: feeds it events and executes its commands in order.

Not thread-safe; never waits.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.storage import rollback_request
from device_runtime.aggregator.views.text import printable

from . import events, machine
from .contribution_commands import ContributionCommands
from .ports import Ports
from .round_commands import RoundCommands
from .run import OpenRun
from .state import RoundsState, Rules

log = logging.getLogger(__name__)


class RoundRunner:
    """Runs one run. `contributions` and `commands` execute the machine's commands; `out` sends to devices."""

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.contributions = ContributionCommands(rounds, out, ports)
        self.commands = RoundCommands(rounds, self.contributions, out, ports)
        self._rounds, self._out, self._ports = rounds, out, ports
        self.state = RoundsState(self._rules)
        self._events: deque[events.Event] = deque()
        self._busy = False

    @property
    def _rules(self) -> Rules:
        return replace(self._rounds.progress.rules, max_contributions=self._ports.max_devices)

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        saved = self._rounds.progress.saved()
        if saved:
            self._out.traffic.begin(self._rounds.store.contributions.traffic(saved.round))
        if self._rounds.registry.pending():
            self._rounds.registry.deploy()
        self._do(*machine.resume(self._rules, saved, self._ports.clock()))
        self._drain()
        self.commands.offering.started(self.state, saved.round if saved else 0)

    def feed(self, event: events.Event) -> None:
        """Takes an event, and executes its commands before it returns."""
        if isinstance(event, events.DevicePresent | events.Forgotten):
            self._rounds.store.session.note(event)
        self._events.append(event)
        if not self._busy:
            self._drain()

    def settle(self) -> None:
        """Commits counted contributions and sends their receipts; drops those that the disk refuses."""
        try:
            self.contributions.group.settle()
        except RunFolderError as error:
            self._lost(error)
            self._drain()
        self._rounds.store.session.settle(self.state)
        self.contributions.receipts.pay()

    def go_back(self, to: int) -> None:
        """Serves an earlier round's model and continues from it; see `OpenRun.go_back`.

        Contributions of an open round get their receipts first, and then do not count. Raises RollbackError,
        RunFolderError.
        """
        self.settle()
        self._rounds.go_back(to)
        self.feed(events.RolledBack(self._ports.clock(), self._rounds.progress.given_up()))

    def do_requested_rollback(self) -> None:
        """Does a rollback that was requested in the run folder; logs why, where it cannot."""
        to = rollback_request.requested_round(self._rounds.store.folder)
        if to is None:
            return
        try:
            self.go_back(to)
            log.warning("rolled back to the model of round %d, as requested", to)
        except RollbackError as error:
            log.warning("cannot roll back: %s", error)
        rollback_request.clear_request(self._rounds.store.folder, to)

    def _drain(self) -> None:
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                self._do(*machine.step(self.state, event), event)
        finally:
            self._busy = False

    def _do(
        self, state: RoundsState, commands: tuple[events.Command, ...], event: events.Event | None = None
    ) -> None:
        """Changes to the state after an event and executes its commands.

        Commands that depend on counted contributions run after their commit. If a commit fails, the
        contributions are dropped and the event is taken again without them. An event that a command causes
        waits until those before it are done, but the next draw depends on the answer to the one before.
        Raises RunFolderError when the run itself cannot go on.
        """
        before, self.state = self.state, state
        for command in commands:
            if isinstance(command, events.RoundCommand):
                try:
                    self.contributions.group.settle()
                except RunFolderError as error:
                    self._undo(before, event, error)
                    return
            try:
                if isinstance(command, events.ContributionCommand):
                    answer = self.contributions.do(command, state)
                else:
                    answer = self.commands.do(command, state)
            except Exception as error:
                if isinstance(command, events.RoundCommand):
                    raise _stuck(command, error) from error
                if isinstance(command, events.StoreContribution):
                    self._undo(before, event, error)
                    return
                self.contributions.release(command.update, error)
                continue
            if answer:
                place = self._events.appendleft if isinstance(answer, events.Invited) else self._events.append
                place(answer)

    def _undo(self, before: RoundsState, event: events.Event | None, error: Exception) -> None:
        """Goes back to the state before an event, because the disk refused contributions counted in it."""
        self.state = before
        own = event.update if isinstance(event, events.Validated) else None
        if event is not None and own is None:
            self._events.appendleft(event)
        self._lost(error, own)

    def _lost(self, error: Exception, uncounted: events.Update | None = None) -> None:
        """Drops contributions as `ContributionCommands.drop`, and tells the machine that it failed."""
        counted = self.contributions.drop(error, uncounted)
        self._events.appendleft(events.CommitFailed(self._ports.clock(), counted))


def _stuck(command: events.Command, error: Exception) -> AggregatorError:
    """The error to raise where a command failed and the run cannot go on."""
    if isinstance(error, RunFolderError | DatabaseError):
        return error
    text = f"{type(error).__name__}: {printable(str(error))}"
    return RunFolderError(f"the run cannot go on at {command}: {text}; start again to retry")
