"""Commits contributions, sends their receipts to devices, and reports refusals to observers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import inf

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine import events
from device_runtime.aggregator.machine.engine import NotStored
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import Contributed, ContributionRefused
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.storage.contributions import StoredContribution, record_of
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.wire.messages import Receipt

from .reception import DeviceStatements, Reception
from .run import OpenRun

log = logging.getLogger(__name__)

RECEIPT_S = 5.0
"""Seconds after which a compact contribution gets its receipt.

If the next round opens before that, its offer is the receipt. Devices send again after 10 seconds.
"""


class ContributionCommands:
    """The contributions of one run on their way from a message to a receipt. `out` sends to devices.

    A commit waits for the disk, and each call of the database for other threads; these two are most of the
    cost of a small contribution. So contributions that come close to each other are written together by
    `commit`, and receipts and other reports wait until then. An error in a command stops no run. A
    `ContributionPort`.
    """

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.statements = DeviceStatements()
        self.reception = Reception(rounds, self.statements, out, ports)
        self.fetch = self.reception.fetch
        self._stored, self._out, self._ports = rounds.store.contributions, out, ports
        self._owed: dict[events.Reply, float] = {}
        self._full = 0
        self._waiting: list[events.ContributionId] = []
        self._reports: list[Callable[[], None]] = []

    def reply(self, command: events.Reply, state: RoundsState) -> None:
        """Sends a receipt, after the commit where contributions wait for one."""
        if self._waiting:
            self._reports.append(partial(self.give, command, state))
            return
        try:
            self.give(command, state)
        except Exception as error:
            self.reception.lose(command.update, error)

    def store(self, command: events.StoreContribution, state: RoundsState) -> None:
        """Adds a contribution to the next commit; its content is durable already, its receipt follows.

        Raises NotStored.
        """
        try:
            self._store(command)
        except Exception as error:
            raise NotStored(*self._drop(error, command.update)) from error

    def _store(self, command: events.StoreContribution) -> None:
        update, device = command.update, command.update.device
        message, moved = self.reception.message(update), self._out.traffic.of(device)
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
            mask=message.mask,
        )
        self._stored.keep(stored, moved)
        self._waiting.append(update)
        self._reports.append(lambda: self._ports.tell(Contributed(record_of(stored, moved))))

    def commit(self) -> None:
        """Commits, then sends what waited; one report that fails does not stop the others.

        Raises NotStored where the disk refuses all that waited.
        """
        if not self._waiting:
            return
        try:
            self._stored.settle()
        except RunFolderError as error:
            raise NotStored(*self._drop(error)) from error
        self.reception.disk.took()
        reports, self._waiting, self._reports = self._reports, [], []
        for say in reports:
            try:
                say()
            except Exception as error:  # whatever it is, the others have their receipts
                log.warning("a report after a commit failed: %s: %s", type(error).__name__, error)

    def _drop(self, error: Exception, *more: events.ContributionId) -> tuple[events.ContributionId, ...]:
        """Drops all contributions that wait for their commit, and `more`. Returns them."""
        updates = tuple(dict.fromkeys((*self._waiting, *more)))
        self._waiting, self._reports = [], []
        self._stored.drop()
        self.reception.disk.refused(error)
        for update in updates:
            self.reception.lose(update, error)
        return updates

    def give(self, reply: events.Reply, state: RoundsState) -> None:
        """Send a receipt, and report a contribution that does not count to observers.

        A device that gets no receipt sends its contribution again. The receipt for an accepted compact
        contribution waits for up to RECEIPT_S: the offer of the next round, if it comes first, says the same
        without another message.
        """
        update = reply.update
        if reply.status == "accepted" and not update.seq and not state.rules.counts_late:
            self.reception.release(update)
            self._owed[reply] = self._ports.clock()
            return
        if reply.status != "accepted":
            self.reception.turn_away(update)
        self.reception.release(update)
        self._send(reply)
        if reply.retry_s and state.full:
            self._say_full(state)
        if reply.status != "accepted":
            kind, reason = printable(update.kind), printable(reply.reason)
            self._ports.tell(ContributionRefused(update.device, update.round, kind, reply.status, reason))

    def pay(self, waited_s: float = RECEIPT_S) -> None:
        """Send the receipts that have waited for so many seconds."""
        until = self._ports.clock() - waited_s
        for reply in [reply for reply, since in self._owed.items() if since <= until]:
            del self._owed[reply]
            self._send(reply)

    def pay_all(self, by_offer: bool = False) -> None:
        """Send all waiting receipts, or drop them where the next offer says the same (`by_offer`)."""
        if by_offer:
            self._owed.clear()
        self.pay(-inf)

    def _send(self, reply: events.Reply) -> None:
        update, reason = reply.update, printable(reply.reason)
        if reply.status == "refused":
            reason = f"update from {update.device} refused: {reason}"
        self._out.receipt(
            update.device,
            Receipt(
                boot=update.boot,
                seq=update.seq,
                round=update.round,
                status=reply.status,
                reason=reason,
                retry_after_s=reply.retry_s,
            ),
        )

    def _say_full(self, state: RoundsState) -> None:
        """Log once a round that it takes no more contributions."""
        if self._full != state.round:
            self._full = state.round
            log.warning(
                "round %d takes %d contributions, later ones are deferred: "
                "raise max_devices, or enrol devices",
                self._full,
                state.rules.max_contributions,
            )
