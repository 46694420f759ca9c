"""Who took part: pure functions of how often each device's update counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan


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
