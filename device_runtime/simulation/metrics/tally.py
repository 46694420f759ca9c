"""What the asks of a run add up to, in one pass over them: ten million lines need no memory of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan

from device_runtime.simulation.records import Ask


@dataclass(frozen=True)
class BusyDevice:
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
    busy: Mapping[str, BusyDevice]

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
    busy = {device: BusyDevice(groups[device], int(n), seconds) for device, (n, seconds) in spent.items()}
    return Tally(number, dict(counted), dict(outcomes), dict(+kinds), busy)


# FROM participation: Who took part: pure functions of how often each device's update counted.


@dataclass(frozen=True)
class Participation:
    """`devices`: the share of the fleet that ever counted. `asks`: the share of asks that counted.

    `fairness`: Jain's index of counted updates over the whole fleet, devices never asked too: 1 when all
    counted equally often, k/n when k of n did and the others never.
    """

    devices: float
    asks: float
    fairness: float


def participation(counts: Iterable[int], devices: int, asks: int) -> Participation:
    """`counts`: how often each device that was asked counted; `devices`: of the fleet; `asks`: in all."""
    counts = tuple(counts)
    return Participation(
        devices=sum(count > 0 for count in counts) / devices if devices else nan,
        asks=sum(counts) / asks if asks else nan,
        fairness=jain(counts, devices),
    )


def jain(counts: Iterable[float], among: int) -> float:
    """(sum x)^2 / (n * sum x^2) over n = `among`, of which those not in `counts` have 0 (Jain et al. 1984).

    nan when nobody has anything.
    """
    counts = tuple(counts)
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (among * squares) if squares else nan


# FROM efficiency: What learning cost, as the papers count it.


def learning_efficiency(best_accuracy: float, train_seconds: float) -> float:
    """Best test accuracy (0 to 1) by the seconds of local training of all participants together, per second.

    Thesis 002, section 6.5 (figures 6.12 and 6.15). nan when nobody trained.
    """
    return best_accuracy / train_seconds if train_seconds > 0 else nan


def analytic_bytes(params_sent: int, devices: int, rounds: int, participation: float) -> float:
    """Both ways, float32: 2 * params_sent * 4 * K * R * participation (thesis 000, A.1.1, equations 8 and 9).

    It takes what comes down to be as large as what goes up, and knows no headers, hashes or retries.
    """
    return 2.0 * params_sent * 4 * devices * rounds * participation
