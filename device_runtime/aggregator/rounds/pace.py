"""When a round ends, learnt from how long devices needed in the rounds before. Pure; seconds.

Durations are counted in classes that are STEP wide, so that what is kept of a round does not grow with its
devices, and their order changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, isnan, log
from typing import Literal

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


# FROM progress: Whether a run still learns: rounds without a gain since the best one. Pure.

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Progress:
    """`best` is the round with the highest score so far (0: none), `since` the one that rounds without a
    gain are counted from, `evaluated` the latest that was evaluated.
    """

    best: int = 0
    score: float = -inf
    since: int = 0
    evaluated: int = 0

    def after(self, number: int, score: float, gain: float = 0.0, anew: bool = False) -> Progress:
        """With one more round; `score` is nan for one that was not evaluated.

        It is better only where it is above the best by more than `gain`. `anew`: the run was set back in this
        round, to the model of which this is the progress, and is given as many rounds again.
        """
        if isnan(score):
            return Progress(self.best, self.score, number if anew else self.since, self.evaluated)
        if score > self.score + gain:
            return Progress(number, score, number, number)
        return Progress(self.best, self.score, number if anew else self.since, number)

    def stuck(self, number: int, rounds: int) -> bool:
        """Whether round `number`, the latest, was evaluated, and is the last of so many without a gain."""
        return 0 < rounds <= number - self.since and self.evaluated == number and self.best > 0


NO_PROGRESS = Progress()


def score_of(metric: Metric, accuracy: float, loss: float) -> float:
    """The higher, the better; nan without evaluation."""
    return accuracy if metric == "accuracy" else -loss
