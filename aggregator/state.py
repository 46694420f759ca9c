"""Where a run is: the rules of its rounds, who is there, what has been counted. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from .task import Late

Phase = Literal["wait", "collect", "merge", "evaluate", "publish", "done"]
SETTLE_S = 1.0
"""Seconds after a restart in which a round does not close early: who is online must first be heard of."""
SILENT = 2
"""Deadlines that a device may let pass without a word; then no round waits for it until it is heard again."""


@dataclass(frozen=True)
class Rules:
    """When a round opens and closes; as in Task. `bound`: kinds that never count in a later round."""

    rounds: int
    round_deadline_s: float
    min_contributions: int = 1
    min_devices: int = 1
    late: Late = "discard"
    bound: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Presence:
    """What is known of a device: the life that it spoke from last, whether that is online, and ready.

    `silences`: deadlines that it has let pass since it was last heard. A will may never come: of a device
    that went while the broker was away, or that hangs.
    """

    boot: int
    online: bool
    ready: bool = True
    silences: int = 0


@dataclass(frozen=True)
class State:
    """`round` is the open or latest one, 0 before the first; times are in seconds of the events' clock."""

    rules: Rules
    phase: Phase = "wait"
    round: int = 0
    opened_s: float = 0.0
    closes_s: float = 0.0
    settles_s: float = 0.0
    contributions: int = 0
    answered: frozenset[str] = frozenset()
    """Devices that have contributed to this round, or been refused."""
    sat_out: frozenset[str] = frozenset()
    devices: Mapping[str, Presence] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def online(self) -> frozenset[str]:
        return frozenset(name for name, presence in self.devices.items() if presence.online)

    @property
    def ready(self) -> frozenset[str]:
        """The devices that a round waits for."""
        return frozenset(
            name for name in self.online if self.devices[name].ready and self.devices[name].silences < SILENT
        )

    def remaining_s(self, now: float) -> float:
        """Seconds until the deadline of the open round."""
        return max(0.0, self.closes_s - now) if self.phase == "collect" else 0.0


@dataclass(frozen=True)
class Saved:
    """Where a run was: the latest round, how far it was, and whose contributions it has."""

    round: int
    phase: Literal["collect", "merge", "evaluate", "publish", "closed"]
    contributions: int = 0
    answered: frozenset[str] = frozenset()
