"""Which contributions may go in few bytes: those like one that the aggregator has said it has."""

from __future__ import annotations

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire.messages import Contribution, encode
from device_runtime.strategies.names import EXACT


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
