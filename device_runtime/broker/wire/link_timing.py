"""How long to wait before connecting again, and what short connections mean. No clock, no sockets."""

from __future__ import annotations

import random

from . import compact_round as small
from . import topics

STEADY_S = 5.0
"""Seconds. A connection that lasted less did not count: the back-off goes on growing."""
SUSPICIOUS = 2
"""Short connections in a row after which somebody else with our name is suspected."""


class ReconnectDelay:
    """The attempts of one link. `bounds_s`: wait before the first, and at most; `seed`: of the jitter."""

    def __init__(self, bounds_s: tuple[float, float], seed: int | None = None) -> None:
        self._bounds_s = bounds_s
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._failures = 0
        self._short = 0

    def wait_s(self) -> float:
        """Seconds before the next attempt, drawn anew each time."""
        return backoff(self._failures, self._bounds_s, self._random.random())

    def failed(self) -> None:
        """An attempt came to nothing."""
        self._failures += 1

    def lost(self, lasted_s: float) -> None:
        """A connection that was ready ended after `lasted_s` seconds."""
        if lasted_s >= STEADY_S:
            self._failures = self._short = 0
        else:
            self._short += 1

    @property
    def crowded(self) -> bool:
        """Whether connections end as they do when two clients of one name throw each other out."""
        return self._short >= SUSPICIOUS


# FROM packets: The arithmetic of a link: what a packet weighs, how long to wait.


def qos_of(topic: str, payload: bytes) -> int:
    """0 for what is said in few bytes (see `small`): who misses it finds out, and nothing that a broker
    acknowledges spares it that. 1 for all else.
    """
    few = topics.is_offer(topic) and small.is_next(payload)
    return 0 if few or topic.endswith(topics.IN_FEW_BYTES) else 1


def packet_bytes(topic: str, payload: bytes, qos: int | None = None, mqtt5: bool = False) -> int:
    """Bytes of one PUBLISH packet without properties: fixed header, topic, packet id, payload.

    `qos` is that of `qos_of`, if it is not given.
    """
    qos = qos_of(topic, payload) if qos is None else qos
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + (1 if mqtt5 else 0) + len(payload)
    header = 2
    while rest >= 128 ** (header - 1):
        header += 1
    return header + rest


def backoff(failures: int, bounds_s: tuple[float, float], draw: float) -> float:
    """Seconds before the next attempt: doubling from the first bound to the second, less up to a half.

    `draw` is uniform in [0, 1): a fleet that lost its broker at one instant must not return at one.
    """
    first_s, most_s = bounds_s
    return float(min(most_s, first_s * 2.0 ** min(failures, 32)) * (1 - draw / 2))
