"""Sending contributions until they are receipted, across lost links and lives of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from broker.messages import Contribution, Receipt

from .outbox import Outbox

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""Seconds after which a contribution without receipt is sent again."""


class Sending:
    """What waits in the outbox, sent in the name of this life (`boot`) by `publish`."""

    def __init__(self, outbox: Outbox, boot: int, publish: Callable[[Contribution], None]) -> None:
        self.outbox = outbox
        self._boot = boot
        self._publish = publish
        self._sent_at: dict[int, float] = {}

    def keep(self, message: Contribution) -> Contribution:
        """On disk, with its name in the receipt; `due` sends it. Raises OSError."""
        message = msgspec.structs.replace(message, boot=self._boot, seq=self.outbox.next_seq)
        self.outbox.add(message)
        return message

    def due(self, now: float) -> None:
        """Send what was not sent yet, or RESEND_S ago."""
        for message in self.outbox:
            if now - self._sent_at.get(message.seq, -RESEND_S) >= RESEND_S:
                self._send(message, now)

    def drop(self, run: str) -> None:
        """The run is over: nobody waits for what it has not receipted."""
        for message in [message for message in self.outbox if message.run == run]:
            log.warning(
                "round %d: %s was not receipted before the task was done", message.round, message.kind
            )
            self.outbox.drop(message.seq)

    def restart(self) -> None:
        """The link was down: whatever was sent may be lost."""
        self._sent_at.clear()

    def settle(self, receipt: Receipt, now: float) -> tuple[int, float]:
        """The aggregator has decided; a receipt of anything that does not wait is ignored.

        Returns what was fetched from here in bytes, and the seconds from sending to the receipt.
        """
        message = self.outbox.settle(receipt)
        if message is None:
            return 0, 0.0
        took_s = now - self._sent_at.pop(receipt.seq, now)
        level = logging.INFO if receipt.status in ("accepted", "duplicate") else logging.WARNING
        log.log(level, "round %d: %s %s %s", receipt.round, message.kind, receipt.status, receipt.reason)
        return (message.blob.size if message.blob else 0), took_s

    def _send(self, message: Contribution, now: float) -> None:
        """One of an earlier life is sent in this one's name."""
        if message.boot != self._boot:
            message = msgspec.structs.replace(message, boot=self._boot)
            self.outbox.add(message)
        self._publish(message)
        self._sent_at[message.seq] = now
