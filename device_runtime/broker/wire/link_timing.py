"""Delays between reconnections, and the QoS and size of MQTT packets. No clock, no sockets."""

from __future__ import annotations

import random

from . import compact_round, topics

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

    def lost(self, lasted_s: float) -> None:
        """Note that a connection that was ready ended after `lasted_s` seconds."""
        if lasted_s >= STEADY_S:
            self._failures = self._short = 0
        else:
            self._short += 1

    @property
    def crowded(self) -> bool:
        """Whether connections end as they do when two clients of one name disconnect each other."""
        return self._short >= SUSPICIOUS


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
