"""Whether a run still learns: rounds without a gain since the best one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import Literal

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
