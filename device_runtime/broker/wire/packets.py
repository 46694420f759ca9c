"""The arithmetic of a link: what a packet weighs, how long to wait."""

from __future__ import annotations

from . import compact_round as small
from . import topics


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
