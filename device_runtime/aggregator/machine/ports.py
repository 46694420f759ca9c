"""The interfaces of the service to its environment: broker link, clock, signing, observers."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from device_runtime.aggregator.limits import MOST_DEVICES
from device_runtime.broker.security.signing import SessionKey
from device_runtime.broker.wire.link import Event
from device_runtime.broker.wire.messages import Offer, encode

from .run_events import Observer, RunEvent

log = logging.getLogger(__name__)

GRACE_S = 2.0
"""Seconds in which the loss of a broker is noticed."""


class AggregatorLink(Protocol):
    """The part of `broker.wire.link.Link` that the service uses."""

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Sends, now or when the link is back; never waits. False when too much waits already."""


class LoopClock:
    """A clock for `Ports` that remembers when the loop last looked at it; any thread may read that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()

    def __call__(self) -> float:
        """Seconds that never go back. Only the loop calls this."""
        self._last_s = self._clock()
        return self._last_s

    @property
    def silence_s(self) -> float:
        """Seconds since the loop last looked: many while a round is merged, ever more when the loop hangs."""
        return self._clock() - self._last_s


Seal = Callable[[str, Offer], bytes]
"""From a topic and an offer to the signed payload."""


Agree = Callable[[bytes], SessionKey]
"""From the key in a device's hello to the session key shared with it. Raises MessageError."""


class EnrolledDevices(Protocol):
    """The enrolled devices and their keys."""

    def knows(self, device: str) -> bool:
        """Whether the device is enrolled."""

    def signs(self, device: str) -> bool:
        """Whether the device has a key; then its unsigned messages are dropped."""

    def verified_payload(self, device: str, topic: str, payload: bytes) -> bytes:
        """The encoded message in a payload. Raises NotTrusted where this device has not signed it."""


def unsigned(_topic: str, offer: Offer) -> bytes:
    """Encodes an offer without a signature; a device that is enrolled with a key refuses it."""
    return encode(offer)


@dataclass(frozen=True)
class Ports:
    """The environment of a service.

    inbox: gets what `link` receives from topics.FROM_DEVICES.
    clock: gives seconds and never goes back.
    mqtt5: only changes the computed size of packets.
    will_grace_s: as in HeldWills.
    max_devices: the most devices known at a time, and the most contributions of a round.
    database: URL of the PostgreSQL server that keeps the run; empty: the server where the run was begun, or
    SQLite in its folder.
    backlog: gives the bytes in `link` that wait to be sent.
    """

    link: AggregatorLink
    inbox: queue.SimpleQueue[Event]
    observers: tuple[Observer, ...] = ()
    clock: Callable[[], float] = time.monotonic
    mqtt5: bool = False
    seal: Seal = unsigned
    agree: Agree | None = None
    """None: devices know no key of ours; compact offers go to all of them, unsigned."""
    devices: EnrolledDevices | None = None
    """None: devices are not enrolled, and a message under a name is taken for that device's."""
    will_grace_s: float = GRACE_S
    max_devices: int = MOST_DEVICES
    database: str = ""
    backlog: Callable[[], int] = lambda: 0

    def tell(self, event: RunEvent) -> None:
        """Tells all observers; one that fails must not stop the rounds."""
        for observer in self.observers:
            try:
                observer(event)
            except Exception as error:
                log.warning("observer failed: %s: %s", type(error).__name__, error)
