"""Sends contributions until they are receipted, across lost links and restarts of the process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import inf

import msgspec

from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import Contribution, Receipt, encode
from device_runtime.client.connection.presence import DeviceMessages
from device_runtime.strategies.names import EXACT_KINDS

from .outbox import Outbox

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""Seconds without a receipt after which a contribution is sent again.

The seconds double each time, up to MAX_RESEND_S. Time in which messages are on their way to the broker does
not count.
"""
MAX_RESEND_S = 60.0


@dataclass(frozen=True)
class _Sent:
    """When a contribution was sent on this link to this aggregator; `wait_s`: until it is sent again."""

    first_s: float
    last_s: float
    wait_s: float = RESEND_S


class ContributionSender:
    """Sends what waits in the outbox by `messages`.

    A slow link is not filled with copies: while it has anything to carry, the wait for a receipt does not
    begin.
    """

    def __init__(self, outbox: Outbox, messages: DeviceMessages) -> None:
        self.outbox = outbox
        self._messages = messages
        self._sent: dict[int, _Sent] = {}  # in the order of sending
        self._compact = CompactSender()
        self._short: set[int] = set()
        self._busy_s = -inf

    def keep(self, message: Contribution) -> Contribution:
        """Save a contribution, with the boot and number that its receipt will name. Raises OSError."""
        message = msgspec.structs.replace(message, boot=self._messages.boot, seq=self.outbox.next_seq)
        self.outbox.add(message)
        return message

    def due(self, now: float) -> None:
        """Send what was not sent yet, and again what has waited for its receipt for too long."""
        if self._messages.unacknowledged():
            self._busy_s = now
        for message in self.outbox:
            sent = self._sent.get(message.seq)
            if sent is None or now - max(sent.last_s, self._busy_s) >= sent.wait_s:
                self._send(message, now)

    def drop(self, run: str) -> None:
        """The run is over: drop its contributions without a receipt."""
        for message in [message for message in self.outbox if message.run == run]:
            log.warning(
                "round %d: %s was not receipted before the task was done", message.round, message.kind
            )
            self.outbox.drop(message.seq)

    def restart(self) -> None:
        """The link or the aggregator was down: the broker may have lost messages, so all are due at once.

        The link itself resends messages without acknowledgement, except compact ones.
        """
        self._compact.forget()
        latest = [(seq, sent) for seq, sent in self._sent.items() if seq not in self._short]
        coming = latest[max(0, len(latest) - self._messages.unacknowledged("contribution")) :]
        self._sent = {seq: replace(sent, wait_s=RESEND_S) for seq, sent in coming}

    def settle(self, receipt: Receipt, now: float) -> tuple[int, float]:
        """Take a receipt; one of a contribution that does not wait is ignored.

        Returns the bytes that were fetched from here, and the seconds from sending to the receipt.
        """
        message = self.outbox.settle(receipt)
        if message is None:
            self._put_off(receipt, now)
            return 0, 0.0
        sent = self._forget(message)
        if receipt.status in ("accepted", "duplicate"):
            self._compact.received(message)
        level = logging.INFO if receipt.status in ("accepted", "duplicate") else logging.WARNING
        text = " ".join(part for part in (message.kind, receipt.status, receipt.reason) if part)
        if spent := message.metrics.epsilon_milli:
            text += f", epsilon {spent / 1000:.2f} spent of these samples' privacy"
        log.log(level, "round %d: %s", receipt.round, text)
        return (message.blob.size if message.blob else 0), (now - sent.first_s if sent else 0.0)

    def over(self, run: str, number: int) -> None:
        """Round `number` of a run is open: compact contributions to earlier rounds need not wait any longer.

        They have been counted, or cannot be any more.
        """
        for message in [m for m in self.outbox if m.run == run and m.round < number and m.seq in self._short]:
            log.info("round %d: %s: the round is over", message.round, message.kind)
            self._forget(message)
            self.outbox.end(message)

    def _forget(self, message: Contribution) -> _Sent | None:
        self._short.discard(message.seq)
        return self._sent.pop(message.seq, None)

    def _put_off(self, receipt: Receipt, now: float) -> None:
        """If the aggregator has no room now, send the contribution again when the receipt says."""
        message, wait_s = self.outbox.named(receipt), receipt.retry_after_s
        if message and wait_s:
            sent = self._sent.get(message.seq, _Sent(now, now))
            self._sent[message.seq] = replace(sent, last_s=now, wait_s=wait_s)
            log.warning("round %d: %s again in %g s: %s", receipt.round, message.kind, wait_s, receipt.reason)

    def _send(self, message: Contribution, now: float) -> None:
        """Send a contribution; one of an earlier process gets this one's boot."""
        if message.boot != self._messages.boot:
            message = msgspec.structs.replace(message, boot=self._messages.boot)
            self.outbox.add(message)
        before = self._sent.pop(message.seq, None)
        short = None if before else self._compact.of(message)
        if short is None:
            self._short.discard(message.seq)
            self._compact.sends(message)
            self._messages.contribution(message)
        else:
            self._short.add(message.seq)
            self._messages.short(short, message.run)
        again = before and _Sent(before.first_s, now, min(2 * before.wait_s, MAX_RESEND_S))
        self._sent[message.seq] = again or _Sent(now, now)


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
        update goes whole, for its receipt.
        """
        like = self._like
        if like is None or message.boot != like.boot or message.kind not in EXACT_KINDS:
            return None
        return compact_round.compact_contribution(message, like)
