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


def class_of(seconds: float) -> int:
    """The class of a duration."""
    return ceil(log(max(seconds, LEAST_S)) / log(STEP) - 1e-9)


def longest_s(number: int) -> float:
    """The longest duration of a class."""
    return float(STEP**number)


def deadline_s(pace: Pace, rounds: Iterable[Durations], most_s: float) -> float:
    """What the next round has, after these; `most_s` where nothing is known, and at most."""
    counts = _counted(rounds)
    wanted = pace.quantile * counts.total() if counts else 0.0
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= wanted - 1e-9:
            return min(most_s, max(pace.least_s, pace.margin * longest_s(number)))
    return most_s


def closing_s(rounds: Iterable[Durations], least_s: float = 0.0) -> float:
    """When a round closes that waits for the fast devices, after these rounds; inf where nothing is known.

    With n(t) samples done after t seconds, a round that closes at t brings n(t) / t samples a second; devices,
    counted instead, would close it when those with few samples are done. This is the latest t, at least
    `least_s`, with 1 / STEP of the best rate: a class of durations is the slack, so that a tie waits for more.
    """
    done, rates = 0, []
    counts = _counted(rounds)
    for number in sorted(counts):
        done += counts[number]
        seconds = max(least_s, longest_s(number))
        rates.append((done / seconds, seconds))
    best = max(rates, default=(0.0, inf))[0]
    return max((seconds for rate, seconds in rates if rate >= best / STEP), default=inf)


def _counted(rounds: Iterable[Durations]) -> Counter[int]:
    """The devices of all these rounds, by class."""
    counts: Counter[int] = Counter()
    for durations in rounds:
        counts.update(durations)
    return counts
