"""Sending contributions until they are receipted, across lost links and lives of the process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import inf

import msgspec

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire.messages import Contribution, Receipt, encode
from device_runtime.client.connection.presence import Voice
from device_runtime.strategies.names import EXACT

from .outbox import Outbox

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""Seconds without receipt, and with nothing on its way to the broker, after which a contribution is sent
again. They double each time, up to MAX_RESEND_S."""
MAX_RESEND_S = 60.0


@dataclass(frozen=True)
class _Sent:
    """When, on this link and to this life of the aggregator; `wait_s`: until it is sent again."""

    first_s: float
    last_s: float
    wait_s: float = RESEND_S


class Sending:
    """What waits in the outbox, sent by `voice` in the name of its life.

    A slow link is not filled with copies: while it has anything to carry, no silence is counted.
    """

    def __init__(self, outbox: Outbox, voice: Voice) -> None:
        self.outbox = outbox
        self._voice = voice
        self._sent: dict[int, _Sent] = {}  # the latest is the last
        self._brief = Brief()
        self._short: set[int] = set()
        self._busy_s = -inf

    def keep(self, message: Contribution) -> Contribution:
        """On disk, with its name in the receipt; `due` sends it. Raises OSError."""
        message = msgspec.structs.replace(message, boot=self._voice.boot, seq=self.outbox.next_seq)
        self.outbox.add(message)
        return message

    def due(self, now: float) -> None:
        """Send what was not sent yet, and again what has waited for its receipt for too long."""
        if self._voice.under_way():
            self._busy_s = now
        for message in self.outbox:
            sent = self._sent.get(message.seq)
            if sent is None or now - max(sent.last_s, self._busy_s) >= sent.wait_s:
                self._send(message, now)

    def drop(self, run: str) -> None:
        """The run is over: nobody waits for what it has not receipted."""
        for message in [message for message in self.outbox if message.run == run]:
            log.warning(
                "round %d: %s was not receipted before the task was done", message.round, message.kind
            )
            self.outbox.drop(message.seq)

    def restart(self) -> None:
        """The link was down, or the aggregator: what the broker had may be lost, and is due at once.

        What it has not acknowledged, the link brings it by itself, but for what went in few bytes.
        """
        self._brief.forget()
        latest = [(seq, sent) for seq, sent in self._sent.items() if seq not in self._short]
        coming = latest[max(0, len(latest) - self._voice.under_way("contribution")) :]
        self._sent = {seq: replace(sent, wait_s=RESEND_S) for seq, sent in coming}

    def settle(self, receipt: Receipt, now: float) -> tuple[int, float]:
        """The aggregator has decided; a receipt of anything that does not wait is ignored.

        Returns what was fetched from here in bytes, and the seconds from sending to the receipt.
        """
        message = self.outbox.settle(receipt)
        if message is None:
            self._put_off(receipt, now)
            return 0, 0.0
        sent = self._forget(message)
        if receipt.status in ("accepted", "duplicate"):
            self._brief.received(message)
        level = logging.INFO if receipt.status in ("accepted", "duplicate") else logging.WARNING
        text = " ".join(part for part in (message.kind, receipt.status, receipt.reason) if part)
        if spent := message.metrics.epsilon_milli:
            text += f", epsilon {spent / 1000:.2f} spent of these samples' privacy"
        log.log(level, "round %d: %s", receipt.round, text)
        return (message.blob.size if message.blob else 0), (now - sent.first_s if sent else 0.0)

    def over(self, run: str, number: int) -> None:
        """Round `number` of a run is open, and what was sent in few bytes for those before has either been
        counted, or cannot be any more.
        """
        for message in [m for m in self.outbox if m.run == run and m.round < number and m.seq in self._short]:
            log.info("round %d: %s: the round is over", message.round, message.kind)
            self._forget(message)
            self.outbox.end(message)

    def _forget(self, message: Contribution) -> _Sent | None:
        self._short.discard(message.seq)
        return self._sent.pop(message.seq, None)

    def _put_off(self, receipt: Receipt, now: float) -> None:
        """If the aggregator has no room for it now, it is sent again when that says."""
        message, wait_s = self.outbox.named(receipt), receipt.retry_after_s
        if message and wait_s:
            sent = self._sent.get(message.seq, _Sent(now, now))
            self._sent[message.seq] = replace(sent, last_s=now, wait_s=wait_s)
            log.warning("round %d: %s again in %g s: %s", receipt.round, message.kind, wait_s, receipt.reason)

    def _send(self, message: Contribution, now: float) -> None:
        """One of an earlier life is sent in this one's name."""
        if message.boot != self._voice.boot:
            message = msgspec.structs.replace(message, boot=self._voice.boot)
            self.outbox.add(message)
        before = self._sent.pop(message.seq, None)
        short = None if before else self._brief.of(message)
        if short is None:
            self._short.discard(message.seq)
            self._brief.sends(message)
            self._voice.contribution(message)
        else:
            self._short.add(message.seq)
            self._voice.short(short, message.run)
        again = before and _Sent(before.first_s, now, min(2 * before.wait_s, MAX_RESEND_S))
        self._sent[message.seq] = again or _Sent(now, now)


# FROM compact_sender: Which contributions may go in few bytes: those like one that the aggregator has said
# it has.


class Brief:
    """The last contribution that was sent whole, and whether it was received by who listens now."""

    def __init__(self) -> None:
        self._last: Contribution | None = None
        self._like: Contribution | None = None

    def sends(self, message: Contribution) -> None:
        """It goes whole: until it has its receipt, nothing is known to be known."""
        self._last, self._like = message, None

    def received(self, message: Contribution) -> None:
        """It has been counted."""
        if message == self._last and len(encode(message)) <= small.MOST_BYTES:
            self._like = message

    def forget(self) -> None:
        """Who listens may be another."""
        self._last = self._like = None

    def of(self, message: Contribution) -> bytes | None:
        """In few bytes; None where it must go whole. What a codec leaves out of an update depends on what
        became of the one before: where there is one, every update has its receipt.
        """
        like = self._like
        if like is None or message.boot != like.boot or message.kind not in EXACT:
            return None
        return small.short_of(message, like)
