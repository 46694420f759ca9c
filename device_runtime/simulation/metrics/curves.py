"""Accuracy as a step function of rounds, time, energy or bytes: each model is served until the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.history.records import SimulatedRound

Axis = Literal["rounds", "time", "energy", "bytes"]


@dataclass(frozen=True)
class Curve:
    """A step function: `value[i]` holds from `at[i]` (ascending) until `at[i + 1]`; both float64 (n,)."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]

    def when(self, at: float, values: int = 1) -> float:
        """The value at this point of the axis, or the mean of the last `values` values; nan before any."""
        points = int(np.searchsorted(self.at, at, side="right"))
        return float(self.value[max(0, points - values) : points].mean()) if points else nan

    def reaches(self, target: float) -> float:
        """The first point with a value of at least `target`; nan if there is none."""
        reached = np.flatnonzero(self.value >= target)
        return float(self.at[reached[0]]) if reached.size else nan

    @property
    def final(self) -> float:
        return float(self.value[-1]) if self.value.size else nan

    @property
    def best(self) -> float:
        return float(self.value.max()) if self.value.size else nan

    def smoothed(self, values: int) -> Curve:
        """The curve of moving means: each value is the mean of the last `values` values."""
        ends = range(1, len(self.value) + 1)
        means = [self.value[max(0, end - values) : end].mean() for end in ends]
        return Curve(self.at, np.array(means, np.float64))

    def sampled(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values at ascending points, (len(grid),); nan before the first point and after the last."""
        points = np.searchsorted(self.at, grid, side="right")
        inside = (points > 0) & (grid <= self.at[-1] if self.at.size else False)
        return np.where(inside, self.value[np.maximum(points, 1) - 1] if self.value.size else nan, nan)


@dataclass(frozen=True)
class Model:
    """One of the models of a round: reads its accuracies from the round's record.

    `acc` is its accuracy on all test samples, `by_class` the recall of each class; nan and () where it was
    not evaluated.
    """

    acc: Callable[[SimulatedRound], float]
    by_class: Callable[[SimulatedRound], tuple[float, ...]]

    def recall(
        self, classes: Sequence[int], fold: Callable[[Iterable[float]], float] = mean
    ) -> Callable[[SimulatedRound], float]:
        """Reads the mean recall of these classes, with equal weights; classes without samples are ignored."""

        def value(line: SimulatedRound) -> float:
            every = self.by_class(line)
            recalls = [every[n] for n in classes if n < len(every) and not isnan(every[n])]
            return fold(recalls) if recalls else nan

        return value


SERVED = Model(lambda line: line.eval_acc, lambda line: line.eval_acc_by_class)
TRAINED_HEAD = Model(lambda line: line.base_eval_acc, lambda line: line.base_eval_acc_by_class)
"""The next base model."""
CLOSED_FORM_HEAD = Model(
    lambda line: line.closed_form_eval_acc, lambda line: line.closed_form_eval_acc_by_class
)
"""The model with the closed-form head, also in rounds that serve the trained head because it is better."""


def accuracy(
    rounds: Sequence[SimulatedRound],
    axis: Axis = "time",
    value: Callable[[SimulatedRound], float] = SERVED.acc,
) -> Curve:
    """The accuracy `value` over what was spent on `axis`, for each round that has it."""
    values = np.array([value(line) for line in rounds], np.float64)
    finite = ~np.isnan(values)
    return Curve(spent(rounds, axis)[finite], values[finite])


def spent(rounds: Sequence[SimulatedRound], axis: Axis) -> NDArray[np.float64]:
    """The axis at the end of each round, (rounds,): its number, virtual seconds, joules, or bytes both ways.

    Energy and bytes are totals since the start of the run.
    """
    if axis == "rounds":
        return np.array([line.round for line in rounds], np.float64)
    if axis == "time":
        return np.array([line.closed_s for line in rounds], np.float64)
    costs = [line.energy_j if axis == "energy" else line.bytes_up + line.bytes_down for line in rounds]
    return np.cumsum(np.array(costs, np.float64))


def accuracy_by_class(logits: NDArray[np.floating[Any]], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """The recall of each class, (classes,); nan for a class without samples.

    logits (n, classes), y (n,). Ties go to the lower class.
    """
    classes = logits.shape[1]
    right = np.bincount(y[logits.argmax(axis=1) == y], minlength=classes)
    samples = np.bincount(y, minlength=classes)
    recalls: NDArray[np.float64] = np.full(classes, np.nan)
    return np.divide(right, samples, out=recalls, where=samples > 0)
