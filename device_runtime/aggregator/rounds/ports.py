"""What the service is connected to: a link, a clock, observers."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from device_runtime.aggregator.delivery.last_will import GRACE_S
from device_runtime.aggregator.intake.limits import MOST_DEVICES
from device_runtime.aggregator.views.listener import Observer
from device_runtime.broker.wire.link import Event
from device_runtime.broker.wire.messages import Offer, encode
from device_runtime.broker.wire.session_mac import Pact


class AggregatorLink(Protocol):
    """The part of `broker.wire.link.Link` that is used here."""

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. False when too much waits already."""


class Pulse:
    """A clock for `Ports` that remembers when the loop last looked at it; read from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()

    def __call__(self) -> float:
        """Seconds that never go back. Only the loop asks."""
        self._last_s = self._clock()
        return self._last_s

    @property
    def silence_s(self) -> float:
        """Seconds since the loop last looked: much while a round is merged, ever more when it hangs."""
        return self._clock() - self._last_s


Seal = Callable[[str, Offer], bytes]
"""The payload of an offer that goes to a topic, signed."""


Agree = Callable[[bytes], Pact]
"""With a device, by what its hello says. Raises MessageError."""


class EnrolledDevices(Protocol):
    """Which devices are enrolled, and their keys."""

    def knows(self, device: str) -> bool:
        """Whether it is enrolled."""

    def signs(self, device: str) -> bool:
        """Whether it has a key, so that nothing unsigned is taken from it."""

    def said(self, device: str, topic: str, payload: bytes) -> bytes:
        """The encoded message in a payload. Raises NotTrusted for one that this device has not signed."""


def unsigned(_topic: str, offer: Offer) -> bytes:
    """For those who know each other anyway; a device that is enrolled with a key will not take it."""
    return encode(offer)


@dataclass(frozen=True)
class Ports:
    """The outside of a service. `inbox` gets what `link` receives from topics.FROM_DEVICES.

    `clock` gives seconds and never goes back; `mqtt5` only tells how large packets are; `will_grace_s`
    as in Wills. `max_devices` are known at a time, and one round takes as many contributions. `database` is
    the URL of the PostgreSQL where the run is kept; without one it is in its folder, or where it was begun.
    `backlog`: the bytes that wait in `link` to be sent.
    """

    link: AggregatorLink
    inbox: queue.SimpleQueue[Event]
    observers: tuple[Observer, ...] = ()
    clock: Callable[[], float] = time.monotonic
    mqtt5: bool = False
    seal: Seal = unsigned
    agree: Agree | None = None
    """None: nobody knows the key; what is said in few bytes goes to all, unsigned."""
    devices: EnrolledDevices | None = None
    """None: nobody is enrolled, and what comes under a name is taken for that device's."""
    will_grace_s: float = GRACE_S
    max_devices: int = MOST_DEVICES
    database: str = ""
    backlog: Callable[[], int] = lambda: 0
