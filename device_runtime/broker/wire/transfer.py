"""Transfers a blob block by block, at the receiver's request; no clock, no sockets, no threads.

The receiver asks (`Pull.next_blocks` -> a Get on `up/get` or `dn/get`), the sender answers by `send_blocks`,
and the receiver passes each block to `Pull.received`. The receiver alone decides which blocks are sent and
when: it never has more than `window` blocks on the way, and a sender keeps no state. So either side may
restart at any time, and blocks may be lost, doubled or reordered. Only the `opening_blocks` may be sent
unasked, to a receiver that is known to need them: that saves a Get and a round trip.

The wait before asking again adapts: it grows with the time that blocks take, or a slow link would be filled
with copies. Silence doubles the wait and halves the window; blocks that arrive widen the window again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from device_runtime.broker.errors import BlobError, BlockError

from . import topics
from .blobs import Blobs, Partial, block_count
from .messages import Blob, Get

WINDOW = 8
"""The most blocks that are asked for and not yet here."""
MAX_WINDOW = 32
"""The most blocks that answer one Get."""
MAX_WAIT_S = 60.0
"""Seconds. The wait before asking again doubles up to this."""
UNKNOWN = -1
"""Block number by which a sender says that it does not have the blob."""


class SendingLink(Protocol):
    """The part of `link.Link` that devices and mask helpers send by."""

    @property
    def url(self) -> object:
        """The broker that it is connected to, for people."""

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. False when too much waits already."""

    def unacknowledged(self, topic: str = "") -> int:
        """Messages that the broker has not acknowledged yet: on this topic, or on any."""


class Pull:
    """The receiver's side of one transfer. `now` is in seconds, from any clock that only goes forward.

    `refused` turns true when the sender does not have the blob. `unanswered` counts the silences since the
    last good block: the caller decides when to give up.
    """

    def __init__(
        self, blob: Blob, partial: Partial, window: int = WINDOW, retry_after_s: float = 2.0
    ) -> None:
        self.blob = blob
        self.refused = False
        self.unanswered = 0
        self._partial = partial
        self._limit = max(1, min(window, MAX_WINDOW))
        self._window = self._limit
        self._retry_after_s = retry_after_s
        self._wait_s = retry_after_s
        self._slowest_s = 0.0
        self._outstanding: set[int] = set()
        self._last_at = 0.0
        self._began_at = 0.0
        self._silent = False

    @property
    def done(self) -> bool:
        """Whether every block is here. `finish` checks the hash."""
        return not self._partial.missing()

    def next_blocks(self, now: float, share: int = MAX_WINDOW) -> tuple[int, ...]:
        """The block numbers to ask for now; empty while enough are on the way. Call it at every tick.

        `share`: the most blocks on the way here, of all that the receiver can take from all senders; at least
        one block is always asked for.
        """
        if self.refused:
            return ()
        missing = self._partial.missing()
        self._outstanding.intersection_update(missing)
        if not self._outstanding and not self._silent:
            self._began_at = now
        if self._outstanding and now - self._last_at >= self._wait_s:
            self._fell_silent()
        window = max(1, min(self._window, share))
        free = window - len(self._outstanding)
        if self._outstanding and 2 * free < window:
            return ()  # a Get for each block would be mostly overhead
        numbers = [index for index in missing if index not in self._outstanding][: max(0, free)]
        if numbers:
            self._outstanding.update(numbers)
            self._last_at = now
        return tuple(numbers)

    def expect(self, now: float) -> None:
        """Expect the sender's `opening_blocks`, the first WINDOW; those that do not come are asked for."""
        self._outstanding.update(self._partial.missing()[: self._limit])
        self._last_at = self._began_at = now

    def received(self, index: int, data: bytes, now: float) -> bool:
        """Take one block. Returns whether it was good and new; a bad one is dropped and asked for again.

        Raises BlobError when the disk is full.
        """
        if index == UNKNOWN:
            self.refused = True
            return False
        try:
            new = self._partial.add(index, data)
        except BlockError:
            return False
        self._outstanding.discard(index)
        if new:
            self._slowest_s = max(now - self._began_at, self._slowest_s / 2)
            self._wait_s = min(max(self._retry_after_s, 3 * self._slowest_s), MAX_WAIT_S)
            self._window = min(self._limit, self._window + 1)
            self.unanswered = 0
            self._began_at = now
            self._silent = False
        self._last_at = now
        return new

    def restart(self) -> None:
        """Ask again at once, because the link was down and the blocks asked for will not come."""
        self._outstanding.clear()
        self._wait_s = self._retry_after_s
        self._window = self._limit
        self._silent = False
        self.refused = False

    def finish(self) -> Path:
        """Verify and store the blob. Returns its path. Raises BlobError, see Partial.finish."""
        return self._partial.finish()

    def _fell_silent(self) -> None:
        self.unanswered += 1
        self._partial.rest()
        self._silent = True  # the next block may answer the first request: its time counts from that one
        self._outstanding.clear()
        self._wait_s = min(2 * self._wait_s, MAX_WAIT_S)
        self._window = max(1, self._window // 2)


def opening_blocks(blob: Blob) -> Get:
    """A Get for the first WINDOW blocks, which a sender may answer unasked if the receiver needs them."""
    return Get(blob=blob, blocks=tuple(range(min(WINDOW, block_count(blob)))))


def answer_get(blobs: Blobs, get: Get, limit: int = MAX_WINDOW) -> Iterator[tuple[int, bytes]]:
    """The (number, bytes) of the blocks that answer a Get: each once, at most `limit`.

    A blob that is not here is answered by (UNKNOWN, b""), so that the receiver does not wait in vain.
    """
    count = block_count(get.blob)
    numbers = [index for index in dict.fromkeys(get.blocks) if 0 <= index < count]
    for index in numbers[:limit]:
        try:
            data = blobs.read_block(get.blob, index)
        except BlobError:
            yield UNKNOWN, b""
            return
        yield index, data


def send_blocks(link: SendingLink, sender: str, blobs: Blobs, get: Get) -> None:
    """Answers a Get of the aggregator; a block that is still on its way is not sent twice."""
    for index, data in answer_get(blobs, get):
        topic = topics.up(sender, topics.block(get.blob.sha, index))
        if not link.unacknowledged(topic):
            link.publish(topic, data)
