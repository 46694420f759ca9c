"""Accuracy as a step function of virtual time, bytes or energy: a model is served until the next is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulation.records import RoundLine

Axis = Literal["time", "bytes", "energy"]


@dataclass(frozen=True)
class Curve:
    """`value[i]` holds from `at[i]` (ascending) until `at[i + 1]`; float64 (n,) both."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]

    def when(self, at: float) -> float:
        """The value at this point of the axis; nan before the first."""
        known = int(np.searchsorted(self.at, at, side="right"))
        return float(self.value[known - 1]) if known else nan

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


def accuracy(rounds: Sequence[RoundLine], axis: Axis = "time") -> Curve:
    """Of the served model, at the end of each round that was evaluated.

    `axis`: virtual seconds; bytes up and down since the run began; or joule.
    """
    spent = np.cumsum([_cost(line, axis) for line in rounds]) if axis != "time" else None
    at, value = [], []
    for number, line in enumerate(rounds):
        if not isnan(line.eval_acc):
            at.append(line.closed_s if spent is None else float(spent[number]))
            value.append(line.eval_acc)
    return Curve(np.array(at, np.float64), np.array(value, np.float64))


def _cost(line: RoundLine, axis: Axis) -> float:
    return line.energy_j if axis == "energy" else float(line.bytes_up + line.bytes_down)
