"""When a round ends, learnt from how long devices needed in the rounds before. Pure; seconds.

Durations are counted in classes that are STEP wide, so that what is kept of a round does not grow with its
devices, and their order changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log

STEP = 1.05
"""How many times as long as a class's shortest duration its longest is."""
LEAST_S = 1e-3
WINDOW = 5
"""Rounds that are looked back on."""

Durations = Mapping[int, int]
"""How many devices, or samples of theirs, needed how long: a number for each class."""


@dataclass(frozen=True)
class Pace:
    """Of the durations of the last rounds the `quantile`, times `margin`; at least `least_s`.

    quantile: the share of devices whose whole work is to fit. margin: what is left to those that are slower
    than they were.
    """

    quantile: float
    margin: float = 1.5
    least_s: float = 1.0


FAST = 4.0
"""A device is fast if it needs at most this many times the median duration. The median is over samples: by
then, devices with half of all samples are done.
"""


def class_of(seconds: float) -> int:
    """The class of a duration."""
    return ceil(log(max(seconds, LEAST_S)) / log(STEP) - 1e-9)


def longest_s(number: int) -> float:
    """The longest duration of a class."""
    return float(STEP**number)


def deadline_s(pace: Pace, rounds: Iterable[Durations], most_s: float) -> float:
    """What the next round has, after these; `most_s` where nothing is known, and at most."""
    return min(most_s, max(pace.least_s, pace.margin * _quantile_s(_counted(rounds), pace.quantile)))


def closing_s(rounds: Iterable[Durations], least_s: float = 0.0) -> float:
    """How many seconds the slowest of the fast devices needed in these rounds; at least `least_s`.

    Infinite where nothing is known.
    """
    counts = _counted(rounds)
    fast_s = FAST * _quantile_s(counts, 0.5)
    return max(least_s, max((s for s in map(longest_s, counts) if s <= fast_s), default=inf))


def _counted(rounds: Iterable[Durations]) -> Counter[int]:
    """What was done in all these rounds, by class."""
    counts: Counter[int] = Counter()
    for durations in rounds:
        counts.update(durations)
    return counts


def _quantile_s(counts: Counter[int], share: float) -> float:
    """In how many seconds this share was done; inf where nothing was."""
    wanted, done = share * counts.total(), 0
    for number in sorted(counts):
        done += counts[number]
        if done >= wanted - 1e-9:
            return longest_s(number)
    return inf
