"""Accuracy as a step function of rounds, time, energy or bytes: a model is served until the next is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulation.records import RoundLine

Axis = Literal["rounds", "time", "energy", "bytes"]


@dataclass(frozen=True)
class Curve:
    """`value[i]` holds from `at[i]` (ascending) until `at[i + 1]`; float64 (n,) both."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]

    def when(self, at: float, values: int = 1) -> float:
        """The value at this point of the axis, or the mean of the latest `values`; nan before the first."""
        known = int(np.searchsorted(self.at, at, side="right"))
        return float(self.value[max(0, known - values) : known].mean()) if known else nan

    def reaches(self, target: float) -> float:
        """The first point at which the value is the target or more; nan when it never is."""
        reached = np.flatnonzero(self.value >= target)
        return float(self.at[reached[0]]) if reached.size else nan

    @property
    def final(self) -> float:
        return float(self.value[-1]) if self.value.size else nan

    @property
    def best(self) -> float:
        return float(self.value.max()) if self.value.size else nan

    def smoothed(self, values: int) -> Curve:
        """Each value is the mean of the latest so many."""
        ends = range(1, len(self.value) + 1)
        means = [self.value[max(0, end - values) : end].mean() for end in ends]
        return Curve(self.at, np.array(means, np.float64))

    def sampled(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values at ascending points, (len(grid),); nan before the first known and after the last."""
        known = np.searchsorted(self.at, grid, side="right")
        inside = (known > 0) & (grid <= self.at[-1] if self.at.size else False)
        return np.where(inside, self.value[np.maximum(known, 1) - 1] if self.value.size else nan, nan)


def served(line: RoundLine) -> float:
    """The share of all test samples that the served model recognises; nan where it was not evaluated."""
    return line.eval_acc


def accuracy(
    rounds: Sequence[RoundLine], axis: Axis = "time", value: Callable[[RoundLine], float] = served
) -> Curve:
    """Of the served model, at the end of each round where `value` is known: over what was spent on `axis`."""
    values = np.array([value(line) for line in rounds], np.float64)
    known = ~np.isnan(values)
    return Curve(spent(rounds, axis)[known], values[known])


def spent(rounds: Sequence[RoundLine], axis: Axis) -> NDArray[np.float64]:
    """At the end of each round, (rounds,): its number; virtual seconds; joule; or bytes up and down."""
    if axis == "rounds":
        return np.array([line.round for line in rounds], np.float64)
    if axis == "time":
        return np.array([line.closed_s for line in rounds], np.float64)
    costs = [line.energy_j if axis == "energy" else line.bytes_up + line.bytes_down for line in rounds]
    return np.cumsum(np.array(costs, np.float64))
