"""Limits the devices that are known, the messages that each may send, and the bytes that wait.

A faulty device must not keep the messages of others from being read. What is over a limit is dropped without
a receipt: an honest device sends again after a silence, so nothing that counts is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from device_runtime.broker.wire.link_events import WAKE, Event, Received

log = logging.getLogger(__name__)

MOST_DEVICES = 100_000
"""The default limit of devices known at a time, and of contributions in a round."""
DEVICES_LOOKED_AT = 100
"""Known devices that are looked at to find one that is away, when a new one comes."""


class KnownDevices:
    """Limits how many devices are known by name: on an open broker anybody may use any name.

    When `most` devices are known, a new one takes the place of one that is away, the one that was silent
    longest. While all are online, no new one is let in. Enrolment keeps strangers out altogether. `away` says
    whether a device may be forgotten; `forget` is called with one that is.
    """

    def __init__(self, away: Callable[[str], bool], forget: Callable[[str], object], most: int) -> None:
        self._away, self._forget, self._most = away, forget, most
        self._devices: OrderedDict[str, None] = OrderedDict()
        self._refused, self._log_at = 0, 1

    def __len__(self) -> int:
        return len(self._devices)

    def remember(self, devices: Iterable[str]) -> None:
        """Add devices known from before a restart, without a limit."""
        self._devices.update(dict.fromkeys(devices))

    def lets_in(self, device: str) -> bool:
        """Note a message of a device. Returns whether the device is known from now on."""
        if device in self._devices:
            self._devices.move_to_end(device)
            return True
        if len(self._devices) >= self._most and not self._made_room():
            self._refuse(device)
            return False
        self._devices[device] = None
        return True

    def _made_room(self) -> bool:
        """Forget a device that is away. Returns False if none is found."""
        for _ in range(min(DEVICES_LOOKED_AT, len(self._devices))):
            device = next(iter(self._devices))
            if self._away(device):
                del self._devices[device]
                self._forget(device)
                return True
            self._devices.move_to_end(device)
        return False

    def _refuse(self, device: str) -> None:
        """Log the first refusal, the tenth, the hundredth and so on, as strangers may use many names."""
        self._refused += 1
        if self._refused < self._log_at:
            return
        self._log_at *= 10
        log.warning(
            "%d messages dropped, as %d devices are known and no more are let in; the last was from %s: "
            "enrol devices to keep strangers out",
            self._refused,
            len(self._devices),
            device,
        )


BURST = 1000.0
"""Messages that a device may send at once."""
RATE = 100.0
"""Messages a second after that; a device with all kinds of update sends a few a round."""
COUNTED_BYTES = 16 * 1024
"""A message counts one more for each of these bytes that it holds."""
GET_COST = 0.1
"""A Get counts less: on a fast network a device sends hundreds a second, each for 256 KiB."""
INBOX_BYTES, INBOX_DEVICE_BYTES = 256 * 1024**2, 8 * 1024**2
"""The most bytes of messages that wait to be read, from all devices and from one of them.

While a round is merged, an honest device sends one contribution and at most 4 MiB of blocks.
"""
EVENT_BYTES = 512
"""Bytes that an event takes in addition to its payload."""
LOG_EVERY_S = 60.0
"""Seconds between two log lines about one device."""


class RateLimit:
    """Limits how many messages each device may send (token bucket).

    Each device has a bucket of `burst` messages, which refills by `rate` a second; a large message counts as
    several. Beyond `most` devices, the one that was silent longest is forgotten and gets a full bucket. `now`
    is in seconds of any one clock.
    """

    def __init__(self, burst: float = BURST, rate: float = RATE, most: int = MOST_DEVICES) -> None:
        self._burst, self._rate, self._most = burst, rate, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._logged_at: OrderedDict[str, float] = OrderedDict()

    def lets(self, device: str, now: float, cost: float = 1.0) -> bool:
        """Whether another message of this device is accepted; it counts as `cost` messages."""
        left, then = self._left.pop(device, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - then) * self._rate)
        enough = left >= cost
        self._left[device] = (left - cost if enough else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return enough

    def worth_saying(self, device: str, now: float) -> bool:
        """Whether no log line of the last LOG_EVERY_S said that messages of this device are dropped."""
        if now - self._logged_at.get(device, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._logged_at.pop(device, None)
        self._logged_at[device] = now
        if len(self._logged_at) > self._most:
            self._logged_at.popitem(last=False)
        return True


def message_cost(leaf: str, size: int) -> float:
    """How many messages a message of `size` bytes counts as, on a topic that ends in `leaf`."""
    return (GET_COST if leaf == "get" else 1.0) + size // COUNTED_BYTES


class BoundedInbox(queue.SimpleQueue[Event]):
    """A queue of events with a limit in bytes, as messages pile up while a round is merged.

    A message is dropped if more than `most` bytes would wait, or more than `most_of_one` of its device.
    """

    def __init__(self, most: int = INBOX_BYTES, most_of_one: int = INBOX_DEVICE_BYTES) -> None:
        super().__init__()
        self._most, self._most_of_one = most, most_of_one
        self._lock = threading.Lock()
        self._bytes = 0
        self._of: Counter[str] = Counter()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        """Add an event; never waits. Events other than messages are always accepted."""
        if isinstance(item, Received):
            size, device = EVENT_BYTES + len(item.payload), _device(item)
            with self._lock:
                full = self._bytes + size > self._most or self._of[device] + size > self._most_of_one
                if not full:
                    self._bytes += size
                    self._of[device] += size
            if full:
                log.warning("message from %s dropped: the inbox is full", device)
                return
        super().put(item, block, timeout)

    def wake(self) -> None:
        """End the current wait, or the next one, with queue.Empty. May be called in a signal handler."""
        super().put(WAKE)

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        """The next event. Raises queue.Empty."""
        item = super().get(block, timeout)
        if item is WAKE:
            raise queue.Empty
        if isinstance(item, Received):
            size, device = EVENT_BYTES + len(item.payload), _device(item)
            with self._lock:
                self._bytes -= size
                self._of[device] -= size
                if not self._of[device]:
                    del self._of[device]
        return item

    def get_nowait(self) -> Event:
        """The next event, without waiting. Raises queue.Empty."""
        return self.get(block=False)


def _device(message: Received) -> str:
    """The device that a message's topic names, even if the topic is not valid."""
    return "/".join(message.topic.split("/", 4)[2:4])
