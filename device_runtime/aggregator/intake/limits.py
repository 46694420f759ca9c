"""How many messages a device may send: one that has gone wrong must not keep the others from being heard.

A bucket of BURST messages for each device, which fills again by RATE a second; large messages count more.
What is over is dropped, and gets no receipt: a device that means it sends again after a silence, and nothing
that counts is lost. While a round is merged, an Inbox keeps only so many bytes, of one device and of all.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from device_runtime.broker.wire.link_events import Event, Received

# FROM device_limit: Whom we know by name. On an open broker anybody may come under any name: only so many
# are remembered.
#
# Where there is no more room, of those that are away the one that was heard longest ago is forgotten; while
# all
# are here, nobody else is let in. Enrolment keeps strangers out altogether.

log = logging.getLogger(__name__)

MOST_DEVICES = 100_000
"""That are known at a time, and contributions that a round takes, where the settings say nothing."""
LOOKED_AT = 100
"""Devices that are looked at for one that is away, when another comes."""


class Crowd:
    """`away` says whether a device may be forgotten, `forget` is told of one that is."""

    def __init__(self, away: Callable[[str], bool], forget: Callable[[str], object], most: int) -> None:
        self._away, self._forget, self._most = away, forget, most
        self._known: OrderedDict[str, None] = OrderedDict()
        self._refused, self._said_at = 0, 1

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, devices: Iterable[str]) -> None:
        """Those that are known from before, however many."""
        self._known.update(dict.fromkeys(devices))

    def lets_in(self, device: str) -> bool:
        """A device is heard: whether it is known from now on."""
        if device in self._known:
            self._known.move_to_end(device)
            return True
        if len(self._known) >= self._most and not self._made_room():
            self._refuse(device)
            return False
        self._known[device] = None
        return True

    def _made_room(self) -> bool:
        for _ in range(min(LOOKED_AT, len(self._known))):
            device = next(iter(self._known))
            if self._away(device):
                del self._known[device]
                self._forget(device)
                return True
            self._known.move_to_end(device)
        return False

    def _refuse(self, device: str) -> None:
        """Said of the first, the tenth, the hundredth: strangers have no end of names."""
        self._refused += 1
        if self._refused < self._said_at:
            return
        self._said_at *= 10
        log.warning(
            "%d messages of others than the %d devices that are known are dropped, the last from %s: "
            "enrol devices to keep strangers out",
            self._refused,
            len(self._known),
            device,
        )


BURST = 1000.0
RATE = 100.0
"""Messages a second: a device with all kinds of update sends a few a round."""
COUNTED_BYTES = 16 * 1024
"""A message of more bytes counts as several."""
GET = 0.1
"""What a Get counts: a device on a fast network sends hundreds a second, and asks for 256 KiB with each."""
INBOX_BYTES, INBOX_OF_ONE = 256 * 1024**2, 8 * 1024**2
"""The most bytes of messages that wait to be read, from all devices and from one of them.

While a round is merged, an honest device sends one contribution and at most 4 MiB of blocks.
"""
EVENT_BYTES = 512
"""What an event takes beside its payload."""
SAID_EVERY_S = 60.0
"""Seconds between two lines of the log about one device."""


class Flood:
    """`now` is in seconds of any one clock. Of more than `most` devices the one that was silent longest is
    forgotten, and begins anew.
    """

    def __init__(self, burst: float = BURST, rate: float = RATE, most: int = MOST_DEVICES) -> None:
        self._burst, self._rate, self._most = burst, rate, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._said: OrderedDict[str, float] = OrderedDict()

    def lets(self, device: str, now: float, cost: float = 1.0) -> bool:
        """Whether one more message of this device is taken, which counts as `cost` messages."""
        left, then = self._left.pop(device, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - then) * self._rate)
        taken = left >= cost
        self._left[device] = (left - cost if taken else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return taken

    def worth_saying(self, device: str, now: float) -> bool:
        """Whether it was not said lately that messages of this device are dropped."""
        if now - self._said.get(device, -SAID_EVERY_S) < SAID_EVERY_S:
            return False
        self._said.pop(device, None)
        self._said[device] = now
        if len(self._said) > self._most:
            self._said.popitem(last=False)
        return True


def cost(leaf: str, size: int) -> float:
    """As how many messages one of `size` bytes on a topic that ends in `leaf` counts."""
    return (GET if leaf == "get" else 1.0) + size // COUNTED_BYTES


class BoundedInbox(queue.SimpleQueue[Event]):
    """Events that wait to be heard. Messages beyond `most` bytes in all, or `most_of_one` of one device, are
    dropped: their devices send again.
    """

    def __init__(self, most: int = INBOX_BYTES, most_of_one: int = INBOX_OF_ONE) -> None:
        super().__init__()
        self._most, self._most_of_one = most, most_of_one
        self._lock = threading.Lock()
        self._bytes = 0
        self._of: Counter[str] = Counter()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        """Never waits. What is no message always finds room."""
        if isinstance(item, Received):
            size, device = EVENT_BYTES + len(item.payload), _device(item)
            with self._lock:
                full = self._bytes + size > self._most or self._of[device] + size > self._most_of_one
                if not full:
                    self._bytes += size
                    self._of[device] += size
            if full:
                log.warning("message from %s dropped: too much waits to be heard", device)
                return
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        """The next. Raises queue.Empty."""
        item = super().get(block, timeout)
        if isinstance(item, Received):
            size, device = EVENT_BYTES + len(item.payload), _device(item)
            with self._lock:
                self._bytes -= size
                self._of[device] -= size
                if not self._of[device]:
                    del self._of[device]
        return item

    def get_nowait(self) -> Event:
        """The next, if there is one. Raises queue.Empty."""
        return self.get(block=False)


def _device(message: Received) -> str:
    """By its topic, which need not be one of ours."""
    return "/".join(message.topic.split("/", 4)[2:4])
