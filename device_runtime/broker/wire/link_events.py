"""Events that a link reports, in the order in which they happened; its options, and its times."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import compact_round, topics

if TYPE_CHECKING:
    from .url import BrokerUrl


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection and its subscriptions. `first` is false after a reconnection.

    Retained messages may come just before this event.
    """

    first: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection ended; the link tries to reconnect."""

    reason: str


@dataclass(frozen=True)
class Received:
    """A message. `retain`: the broker had kept it from before the subscription."""

    topic: str
    payload: bytes
    retain: bool = False


Event = Connected | Disconnected | Received

WAKE = Received("", b"")
"""Put into a queue of events to end a wait, also by a signal handler.

A signal that comes just as `SimpleQueue.get` times out would make the wait endless (CPython 3.11, _queue.c:
the rest of the timeout is then below 0, which means none).
"""


@dataclass(frozen=True)
class Will:
    """A message for later: the last will, which the broker sends if we vanish, or a greeting or farewell."""

    topic: str
    payload: bytes
    retain: bool = True


@dataclass(frozen=True)
class LinkOptions:
    """Options of a Link.

    `queue_limit` bounds the messages that wait to be sent, `queue_bytes` their bytes. `seed` is of the jitter
    of reconnections (None: the system's randomness). `greeting` is published at each connection before any
    other message: it shows a busy device as present again. `renewed` gives the URL with the credentials as
    they are on the disk now; it is called before each connection, and may raise.
    """

    will: Will | None = None
    subscriptions: tuple[str, ...] = ()
    keepalive_s: int = 30
    reconnect_s: tuple[float, float] = (0.5, 30.0)
    """Seconds before the first attempt, and at most; each wait is shortened at random by up to a half."""
    queue_limit: int = 4096
    queue_bytes: int = 64 * 1024**2
    seed: int | None = None
    greeting: Will | None = None
    steps_s: tuple[float, float] = (5.0, 60.0)
    """Seconds for each step of connecting, at first and at most: doubled after each that ran out of time."""
    renewed: Callable[[], BrokerUrl] | None = None


STEADY_S = 5.0
"""Seconds. After a connection that lasted less, the back-off goes on growing."""
SUSPICIOUS = 2
"""Short connections in a row after which another client with our name is suspected."""


class ReconnectDelay:
    """The delays before the connection attempts of one link.

    `bounds_s`: seconds before the first attempt, and at most; `seed`: of the random jitter.
    """

    def __init__(self, bounds_s: tuple[float, float], seed: int | None = None) -> None:
        self._bounds_s = bounds_s
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._failures = 0
        self._short = 0

    def wait_s(self) -> float:
        """Seconds before the next attempt, drawn anew each time."""
        return backoff(self._failures, self._bounds_s, self._random.random())

    def failed(self) -> None:
        """Note that an attempt failed."""
        self._failures += 1

    def note_end(self, lasted_s: float, rivalry: bool = True) -> None:
        """Note that a connection that was ready ended after `lasted_s` seconds.

        `rivalry`: whether another client of our name may have ended it.
        """
        if lasted_s >= STEADY_S:
            self._failures = self._short = 0
        else:
            self._short = self._short + 1 if rivalry else 0

    @property
    def crowded(self) -> bool:
        """Whether connections end as they do when two clients of one name disconnect each other."""
        return self._short >= SUSPICIOUS


class StepTime:
    """How long a step of connecting may take: name lookup, TCP, TLS, upgrade, CONNACK, SUBACK each.

    `bounds_s`: seconds in the first attempt, and at most. Each attempt that ran out of time doubles it; after
    a connection it is at least SLOWEST times what the slowest step took.
    """

    SLOWEST = 3.0

    def __init__(self, bounds_s: tuple[float, float]) -> None:
        self._bounds_s = bounds_s
        self._timeouts = 0
        self._slowest_s = 0.0

    @property
    def limit_s(self) -> float:
        """Seconds for each step of the next attempt."""
        first_s, most_s = self._bounds_s
        return min(most_s, max(first_s, self.SLOWEST * self._slowest_s) * 2.0 ** min(self._timeouts, 32))

    @property
    def at_most(self) -> bool:
        """Whether the time does not grow any more."""
        return self.limit_s >= self._bounds_s[1]

    def timed_out(self) -> None:
        """Note an attempt that ran out of time."""
        self._timeouts += 1

    def succeeded(self, slowest_s: float) -> None:
        """Note a connection, and the seconds of its slowest step."""
        self._timeouts, self._slowest_s = 0, slowest_s


class Outage:
    """Absences of the broker: which reasons are worth a line, and how long one has lasted.

    Times are seconds of any clock. A reason is said when it differs from the one before; one that was said
    in this absence less than AGAIN_S ago is not, so that two that alternate do not fill the log. Over all
    absences a reason is said MOST times in AGAIN_S, as connections may end for it again and again.
    """

    AGAIN_S = 600.0
    MOST = 3

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._reason = ""
        self._spoken = False
        self._said_at: dict[str, list[float]] = {}

    def worth_saying(self, reason: str, now: float) -> bool:
        """Note why there is no connection now. Returns whether to say so."""
        if self._began_at is None:
            self._began_at, self._spoken = now, False
        changed, self._reason = reason != self._reason, reason
        for text, times in list(self._said_at.items()):
            self._said_at[text] = [at for at in times if now - at < self.AGAIN_S]
            if not self._said_at[text]:
                del self._said_at[text]
        times = self._said_at.get(reason, [])
        if not changed or len(times) >= self.MOST or (times and times[-1] >= self._began_at):
            return False
        self._said_at[reason] = [*times, now]
        self._spoken = True
        return True

    def is_frequent(self, reason: str) -> bool:
        """Whether the reason is not said again for a while, however often it comes."""
        return len(self._said_at.get(reason, ())) >= self.MOST

    def over(self, now: float) -> float | None:
        """Note a connection. Returns the seconds of an absence of which something was said, else None."""
        began_at = self._began_at
        self._began_at, self._reason = None, ""
        return None if began_at is None or not self._spoken else now - began_at


class KeepAlive:
    """Seconds between pings: `most_s`, or fewer behind a proxy that ends silent connections.

    Where two connections in a row end without a word after the same time of silence, the pings come twice as
    often, LEAST_S at least. Where that does not make connections last longer, their silence was not the
    reason, and nothing is changed from then on.
    """

    LEAST_S = 5
    ALIKE = 0.1

    def __init__(self, most_s: int) -> None:
        self.seconds = self._most_s = most_s
        self._silent_s = self._lasted_s = 0.0
        self._settled = False

    def ended(self, silent_s: float, lasted_s: float) -> bool:
        """Note a connection that ended without a word. Returns whether the pings come more often now."""
        before_s, self._silent_s = self._silent_s, silent_s
        if self._settled or silent_s < self.LEAST_S or not _alike(before_s, silent_s, self.ALIKE):
            return False
        if self._lasted_s and _alike(self._lasted_s, lasted_s, self.ALIKE):
            self.seconds, self._settled = self._most_s, True
            return False
        self._lasted_s, self._silent_s = lasted_s, 0.0
        seconds = max(self.LEAST_S, int(min(silent_s, self.seconds) / 2))
        lower, self.seconds = seconds < self.seconds, min(self.seconds, seconds)
        return lower


def _alike(value: float, other: float, share: float) -> bool:
    return abs(value - other) <= share * max(value, other)


def duration(seconds: float) -> str:
    """Seconds in words: "0.4 s", "12 s", "3 min 5 s", "2 h 4 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def qos_of(topic: str, payload: bytes) -> int:
    """The QoS of a message: 0 for a compact one (see `compact_round`), 1 for all others.

    A receiver must notice by itself that it missed a compact message: a PUBACK of the broker does not say
    that the receiver has it.
    """
    compact = topics.is_offer(topic) and compact_round.is_compact_offer(payload)
    return 0 if compact or topic.endswith(topics.COMPACT_TOPICS) else 1


def packet_bytes(topic: str, payload: bytes, qos: int | None = None, mqtt5: bool = False) -> int:
    """Bytes of one PUBLISH packet without properties: fixed header, topic, packet id, payload.

    `qos` is by default that of `qos_of`.
    """
    qos = qos_of(topic, payload) if qos is None else qos
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + (1 if mqtt5 else 0) + len(payload)
    header = 2
    while rest >= 128 ** (header - 1):
        header += 1
    return header + rest


def backoff(failures: int, bounds_s: tuple[float, float], draw: float) -> float:
    """Seconds before the next attempt: doubling from the first bound to the second, less up to a half.

    `draw` is uniform in [0, 1): devices that lost their broker at one moment must not all return at one.
    """
    first_s, most_s = bounds_s
    return float(min(most_s, first_s * 2.0 ** min(failures, 32)) * (1 - draw / 2))
