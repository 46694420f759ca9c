"""Executes the machine's commands about one contribution: fetches it, stores it, sends its receipt."""

from __future__ import annotations

import logging
from functools import partial

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.intake.contributions import StoredContribution, record_of
from device_runtime.aggregator.intake.receipts import Receipts
from device_runtime.aggregator.intake.reception import Reception
from device_runtime.aggregator.intake.statements import DeviceStatements
from device_runtime.aggregator.views.listener import Contributed

from .commit_group import CommitGroup
from .events import ContributionCommand, Event, Fetch, Reply, StoreContribution, Update
from .ports import Ports
from .run import OpenRun
from .state import RoundsState

log = logging.getLogger(__name__)


class ContributionCommands:
    """The contributions of one run on their way from a message to a receipt. `out` sends to devices."""

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.statements = DeviceStatements()
        self.reception = Reception(
            rounds, self.statements, ports.clock, lambda device, get: out.send(device, "get", get)
        )
        self.receipts = Receipts(self.reception, out, ports)
        self.group = CommitGroup(rounds.store.contributions)
        self._traffic, self._ports = out.traffic, ports

    def do(self, command: ContributionCommand, state: RoundsState) -> Event | None:
        """Executes a command in this state. Returns the event that it causes at once, if any."""
        match command:
            case Fetch():
                return self.reception.fetch(command.update, state.round)
            case StoreContribution():
                self._store(command)
            case Reply():
                self.group.then(partial(self.receipts.give, command, state))
        return None

    def _store(self, command: StoreContribution) -> None:
        """Adds a contribution to the commit group; its content is durable already, its receipt follows."""
        update, device = command.update, command.update.device
        message, moved = self.reception.message(update), self._traffic.of(device)
        stored = StoredContribution(
            device=device,
            round=message.round,
            into=command.into,
            kind=message.kind,
            num_examples=message.num_examples,
            metrics=message.metrics,
            why=self.statements.why(update),
            blob=message.blob,
            body=message.body,
            form=message.form,
        )
        self.group.keep(update, stored, moved)
        self.group.then(lambda: self._ports.tell(Contributed(record_of(stored, moved))))

    def drop(self, error: Exception, uncounted: Update | None = None) -> tuple[Update, ...]:
        """Drops all contributions that wait for their commit, because of an error. Returns those counted.

        `uncounted`: one more that is dropped, which the state does not count.
        """
        lost = self.group.drop()
        for update in dict.fromkeys((*lost, uncounted) if uncounted else lost):
            self.release(update, error)
        return tuple(update for update in lost if update != uncounted)

    def release(self, update: Update, error: Exception) -> None:
        """Releases a contribution that an error stopped; its device sends it again."""
        log.warning("update from %s: %s: %s", update.device, type(error).__name__, error)
        self.reception.release(update)
