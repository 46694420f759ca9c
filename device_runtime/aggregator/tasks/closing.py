"""When a round closes, besides its deadline, and when a run no longer improves. Pure; times in seconds.

Each way to close a round is a class, and a task has one of them. Files, flags and messages have flat keys
(`wait_for`, `buffer_size`, `deadline_quantile`, ..), which `Task.closing` reads. Deadlines are learnt from
the durations of devices in the rounds before. Durations are counted in classes that are a factor of STEP
wide: what is kept of a round does not grow with its devices, and their order changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, isnan, log
from typing import ClassVar, Literal


@dataclass(frozen=True)
class AllDevices:
    """When every device that was asked has answered."""

    counts_late: ClassVar[bool] = False


@dataclass(frozen=True)
class FastDevices:
    """When the fast devices are done (`pace.closing_s`); the others' updates count late."""

    counts_late: ClassVar[bool] = True


@dataclass(frozen=True)
class FullBuffer:
    """When `size` devices have contributed, to whatever round (FedBuff: Nguyen et al. 2022)."""

    size: int
    counts_late: ClassVar[bool] = True


@dataclass(frozen=True)
class LearntDeadline:
    """When every device has answered; deadlines are learnt from the last rounds.

    A deadline is the `quantile` of their durations times `margin`, for devices that get slower, and at least
    `least_s`. `quantile`: share of devices whose work is to fit.
    """

    quantile: float
    margin: float = 1.5
    least_s: float = 1.0
    counts_late: ClassVar[bool] = False


Closing = AllDevices | FastDevices | FullBuffer | LearntDeadline


STRAGGLERS = r"\s*(\d+(?:\.\d+)?)\s*% +stragglers?\s*"
"""A deadline by the share of the devices that miss it, in percent: "30% stragglers"."""


def straggler_share(deadline: object) -> float | None:
    """The share, 0 to 1, of a deadline such as "30% stragglers"; None for one of another form."""
    match = re.fullmatch(STRAGGLERS, deadline) if isinstance(deadline, str) else None
    return None if match is None else float(match[1]) / 100


def unknown_fleet(share: float) -> str:
    """Why a task that is served has no deadline by its share of stragglers, and what it can have."""
    ready = f"{1 - share:.3g}"
    return (
        "only a simulation knows its devices before they join: give seconds, or deadline_quantile = "
        f"{ready} (--deadline-quantile {ready}), the time in which {1 - share:.0%} of the devices that "
        "joined were ready in the last rounds"
    )


STEP = 1.05
"""Ratio of the longest duration of a class to its shortest."""
LEAST_S = 1e-3
"""Seconds; shorter durations count as this."""
WINDOW = 5
"""Number of past rounds that deadlines are learnt from."""

Durations = Mapping[int, int]
"""From a class of durations to the number of devices in it, or of their samples."""
Metric = Literal["accuracy", "loss"]


FAST = 4.0
"""A device is fast if it needs at most this many times the median duration.

The median is over samples: by then, devices with half of all samples are done.
"""


def class_of(seconds: float) -> int:
    """The class of a duration."""
    return ceil(log(max(seconds, LEAST_S)) / log(STEP) - 1e-9)


def longest_s(number: int) -> float:
    """The longest duration of a class, in seconds."""
    return float(STEP**number)


def deadline_s(learnt: LearntDeadline, rounds: Iterable[Durations], most_s: float) -> float:
    """The deadline of the round after `rounds`: at most `most_s`, which is also the default."""
    return min(most_s, max(learnt.least_s, learnt.margin * _quantile_s(_counted(rounds), learnt.quantile)))


def closing_s(rounds: Iterable[Durations], least_s: float = 0.0) -> float:
    """Seconds that the slowest of the fast devices needed in these rounds; at least `least_s`.

    Infinite where nothing is known.
    """
    counts = _counted(rounds)
    fast_s = FAST * _quantile_s(counts, 0.5)
    return max(least_s, max((s for s in map(longest_s, counts) if s <= fast_s), default=inf))


def _counted(rounds: Iterable[Durations]) -> Counter[int]:
    """The sum of the rounds' counts, by class."""
    counts: Counter[int] = Counter()
    for durations in rounds:
        counts.update(durations)
    return counts


def _quantile_s(counts: Counter[int], share: float) -> float:
    """Seconds in which this share was done; inf where nothing was."""
    wanted, done = share * counts.total(), 0
    for number in sorted(counts):
        done += counts[number]
        if done >= wanted - 1e-9:
            return longest_s(number)
    return inf


@dataclass(frozen=True)
class Progress:
    """Early stopping: the best score so far and the rounds since.

    `best` is the round with the highest score so far (0: none), `since` the round from which rounds without a
    gain are counted, `evaluated` the latest round that was evaluated.
    """

    best: int = 0
    score: float = -inf
    since: int = 0
    evaluated: int = 0

    def after(self, number: int, score: float, gain: float = 0.0, rolled_back: bool = False) -> Progress:
        """The progress after one more round; `score` is nan for a round that was not evaluated.

        A round is a gain only where its score exceeds the best by more than `gain`. `rolled_back`: in this
        round the run rolled back to the model that this progress belongs to; rounds without a gain count from
        this round.
        """
        if isnan(score):
            return Progress(self.best, self.score, number if rolled_back else self.since, self.evaluated)
        if score > self.score + gain:
            return Progress(number, score, number, number)
        return Progress(self.best, self.score, number if rolled_back else self.since, number)

    def stuck(self, number: int, rounds: int) -> bool:
        """Whether round `number`, the latest, was evaluated and ends `rounds` or more without a gain."""
        return 0 < rounds <= number - self.since and self.evaluated == number and self.best > 0


NO_PROGRESS = Progress()


def score_of(metric: Metric, accuracy: float, loss: float) -> float:
    """The score of a model, the higher the better; nan without evaluation.

    `accuracy` is the metric by which models are judged: accuracy, R2, or another one of at most 1.
    """
    return accuracy if metric == "accuracy" else -loss
