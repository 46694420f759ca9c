"""What the asks of a run add up to, in one pass over them: ten million lines need no memory of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from device_runtime.simulation.records import Ask


@dataclass(frozen=True)
class Busy:
    """One device's updates, whatever became of them: how many, and the seconds from download to upload."""

    group: str
    asks: int
    seconds: float


@dataclass(frozen=True)
class Tally:
    """`counted`: by device, how often its update counted; devices that were asked and never counted have 0.

    `outcomes`: asks by (group, outcome), where the outcome is the kind that counted, or else the fate.
    `kinds`: counted updates by kind. `busy`: by device that did not always
    sit out.
    """

    asks: int
    counted: Mapping[str, int]
    outcomes: Mapping[tuple[str, str], int]
    kinds: Mapping[str, int]
    busy: Mapping[str, Busy]

    @property
    def groups(self) -> tuple[str, ...]:
        """In alphabetical order."""
        return tuple(sorted({group for group, _ in self.outcomes}))


def tally(asks: Iterable[Ask]) -> Tally:
    """One pass."""
    number = 0
    counted: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    spent: dict[str, list[float]] = {}
    groups: dict[str, str] = {}
    for ask in asks:
        number += 1
        did_count = ask.fate == "counted"
        counted[ask.device] += did_count
        outcomes[ask.group, ask.kind if did_count else ask.fate] += 1
        kinds[ask.kind] += did_count
        groups[ask.device] = ask.group
        if ask.fate != "sat out":
            so_far = spent.setdefault(ask.device, [0, 0.0])
            so_far[0] += 1
            so_far[1] += ask.download_s + ask.compute_s + ask.upload_s
    busy = {device: Busy(groups[device], int(n), seconds) for device, (n, seconds) in spent.items()}
    return Tally(number, dict(counted), dict(outcomes), dict(+kinds), busy)
