"""Every message that went over the simulated wire, and when it was at the other end."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

AGGREGATOR = "aggregator"
"""The aggregator's name as a client: no device's topics are below it."""


@dataclass(frozen=True)
class Passed:
    """One PUBLISH packet, of `size` bytes, that arrived: `up` at the broker, else at the client.

    `checksum` is the payload's CRC-32.
    """

    at_s: float
    client: str
    up: bool
    topic: str
    size: int
    checksum: int


class Log:
    """In the order of arrival."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []

    def add(self, passed: Passed) -> None:
        self.passed.append(passed)

    def bytes_of(self, client: str) -> tuple[int, int]:
        """Up and down of one client, whole packets."""
        mine = [passed for passed in self.passed if passed.client == client]
        return sum(p.size for p in mine if p.up), sum(p.size for p in mine if not p.up)


checksum = zlib.crc32
