"""Sends the blocks that devices ask for: one of each device in turn, while the link has room for them.

What does not fit into the link waits here as a number, not as 64 KiB. A device that is sent the same blob
again and again has to wait; nothing that it asks for is dropped for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush

from device_runtime.broker.wire.blobs import BLOCK, Blobs, block_count
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.transfer import MAX_WINDOW, answer

ROOM_BYTES = 16 * 1024**2
"""Bytes of messages that wait in the link; while there are more, blocks wait here."""
MOST_OF_ONE = 512
"""Blocks of one device that may wait; of what comes beyond, the device asks again."""
MOST = 1_000_000
"""Blocks of all devices that may wait."""
TIMES, EXTRA_BYTES = 2, 16 * BLOCK
"""A device is sent so many times a blob, and so many bytes, without waiting."""
REFILL_S = 60.0
"""Seconds after which it is sent as many again."""
PAIRS = 200_000
"""Pairs of device and blob of which it is known how much was sent."""

Send = Callable[[str, Blob, int, bytes], bool]
"""A block to a device: blob, number, bytes. False when the link takes no more."""


class Blocks:
    """`clock` gives seconds; `backlog` the bytes that wait in the link."""

    def __init__(self, send: Send, clock: Callable[[], float], backlog: Callable[[], int]) -> None:
        self._send, self._clock, self._backlog = send, clock, backlog
        self._wanted: dict[str, dict[tuple[Blob, int], Blobs]] = {}
        self._count = 0
        self._turn: OrderedDict[str, None] = OrderedDict()
        self._held: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []
        self._left: OrderedDict[tuple[str, Blob], tuple[float, float]] = OrderedDict()

    def ask(self, device: str, get: Get, blobs: Blobs) -> None:
        """Send the blocks of a Get that exist, at most MAX_WINDOW; or word that the blob is not here."""
        count = block_count(get.blob)
        asked = [index for index in dict.fromkeys(get.blocks) if 0 <= index < count]
        for index in asked[:MAX_WINDOW]:
            wanted = self._wanted.setdefault(device, {})
            if len(wanted) < MOST_OF_ONE and self._count < MOST and (get.blob, index) not in wanted:
                wanted[get.blob, index] = blobs
                self._count += 1
        if device in self._wanted and device not in self._held:
            self._turn[device] = None
        self.go_on()

    def forget(self, device: str) -> None:
        """A device that is not known any longer."""
        self._count -= len(self._wanted.pop(device, ()))
        self._turn.pop(device, None)
        self._held.pop(device, None)

    def go_on(self) -> None:
        """Send what the link has room for; call it several times a second."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            until, device = heappop(self._due)
            if self._held.get(device) == until:
                del self._held[device]
                self._turn[device] = None
        while self._turn and self._backlog() < ROOM_BYTES:
            device, _ = self._turn.popitem(last=False)
            if not self._wanted.get(device):
                self._wanted.pop(device, None)
            elif wait_s := self._one(device, now):
                self._held[device] = now + wait_s
                heappush(self._due, (now + wait_s, device))
            else:
                self._turn[device] = None

    def _one(self, device: str, now: float) -> float:
        """Send a block to a device, or return the seconds until it may be sent one."""
        wanted = self._wanted[device]
        (blob, index), blobs = next(iter(wanted.items()))
        if wait_s := self._wait_s(device, blob, now):
            return wait_s
        for number, data in answer(blobs, Get(blob=blob, blocks=(index,))):
            if not self._send(device, blob, number, data):
                return 1.0
            here = number == index
            gone = [(blob, index)] if here else [one for one in wanted if one[0] == blob]
            for one in gone:
                del wanted[one]
            self._count -= len(gone)
            if here:
                left, then = self._left[device, blob]
                self._left[device, blob] = (left - len(data), then)
        return 0.0

    def _wait_s(self, device: str, blob: Blob, now: float) -> float:
        """Seconds until a device may be sent another block of a blob; 0 for now."""
        most = float(TIMES * blob.size + EXTRA_BYTES)
        left, then = self._left.pop((device, blob), (most, now))
        left = min(most, left + max(0.0, now - then) * most / REFILL_S)
        self._left[device, blob] = (left, now)
        if len(self._left) > PAIRS:
            self._left.popitem(last=False)
        return 0.0 if left >= BLOCK else (BLOCK - left) * REFILL_S / most
