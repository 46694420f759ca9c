"""Keeps contributions on disk, sends them whole or in compact form, and takes their receipts.

The device's state machine decides when to send one.
"""

from __future__ import annotations

import logging

import msgspec

from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import Contribution, Receipt, encode
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.strategies.kinds.names import EXACT_KINDS

from .outbox import Outbox

log = logging.getLogger(__name__)


class ContributionSender:
    """Sends what waits in the outbox by `messages`."""

    def __init__(self, outbox: Outbox, messages: DeviceMessages) -> None:
        self.outbox = outbox
        self._messages = messages
        self._compact = CompactSender()

    def keep(self, message: Contribution) -> Contribution:
        """Save a contribution, with the boot and number that its receipt will name. Raises OSError."""
        message = msgspec.structs.replace(message, boot=self._messages.boot, seq=self.outbox.next_seq)
        self.outbox.add(message)
        return message

    def send(self, seq: int, first: bool) -> bool:
        """Send a contribution; one of an earlier process gets this one's boot.

        Returns whether it went in compact form, which it may only the `first` time. Raises OSError.
        """
        message = self.outbox.message(seq)
        if message.boot != self._messages.boot:
            message = msgspec.structs.replace(message, boot=self._messages.boot)
            self.outbox.add(message)
        short = self._compact.of(message) if first else None
        if short is None:
            self._compact.sends(message)
            self._messages.contribution(message)
        else:
            self._messages.short(short, message.run)
        return short is not None

    def settle(self, seq: int, receipt: Receipt) -> None:
        """Take a receipt, with which the contribution does not wait any longer, and log it."""
        message = self.outbox.message(seq)
        self.outbox.end(message)
        if counts(receipt):
            self._compact.received(message)
        text = f"{message.kind} {receipt.status}" + (f": {receipt.reason}" if receipt.reason else "")
        if spent := message.metrics.epsilon_milli:
            text += f", epsilon {spent / 1000:.2f} spent of these samples' privacy"
        log.log(logging.INFO if counts(receipt) else logging.WARNING, "round %d: %s", receipt.round, text)

    def close(self, seq: int, over: bool) -> None:
        """Remove a contribution without a receipt; `over`: a later round is open, so it has been counted."""
        message = self.outbox.message(seq)
        if over:
            log.info("round %d: %s: the round is over", message.round, message.kind)
            self.outbox.end(message)
        else:
            about = "round %d: %s was not receipted before the task was done"
            log.warning(about, message.round, message.kind)
            self.outbox.drop(seq)

    def forget(self) -> None:
        """The aggregator may be another process now, which knows nothing of what was sent."""
        self._compact.forget()


def counts(receipt: Receipt) -> bool:
    """Whether the contribution has been accepted, now or before."""
    return receipt.status in ("accepted", "duplicate")


class CompactSender:
    """Decides which contributions are sent in compact form: those like one that the aggregator has.

    Knows the last contribution that was sent whole, and whether this aggregator has received it.
    """

    def __init__(self) -> None:
        self._last: Contribution | None = None
        self._like: Contribution | None = None

    def sends(self, message: Contribution) -> None:
        """A contribution is sent whole: until its receipt comes, the aggregator is not known to have it."""
        self._last, self._like = message, None

    def received(self, message: Contribution) -> None:
        """The contribution has been accepted."""
        if message == self._last and len(encode(message)) <= compact_round.MOST_BYTES:
            self._like = message

    def forget(self) -> None:
        """The aggregator may be another process now."""
        self._last = self._like = None

    def of(self, message: Contribution) -> bytes | None:
        """The contribution in compact form; None if it must go whole.

        What a codec leaves out of an update depends on the fate of the one before, so with such a codec every
        update goes whole, for its receipt. So does a masked update, no part of which repeats.
        """
        like = self._like
        if (
            like is None
            or message.mask is not None
            or message.boot != like.boot
            or message.kind not in EXACT_KINDS
        ):
            return None
        return compact_round.compact_contribution(message, like)
