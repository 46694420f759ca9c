"""The running mean of a round's zeroth-order scalars, separately for late ones of each earlier round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from device_runtime.strategies.interface.device_half import Late

Scalars = NDArray[np.float64]
Chain: TypeAlias = "tuple[()] | tuple[float, Chain]"
"""A linked list of numbers, the latest first: adding one takes the same time however many there are."""


@dataclass(frozen=True)
class Mean:
    """Mean scalars float64 (num_z,) along the directions of round `of`, and their share of all weight."""

    of: Late
    scalars: Scalars
    share: float


@dataclass(frozen=True)
class MeanScalars:
    """The weighted sum float64 (num_z,) of projected gradients, and their weight.

    late: the same for earlier rounds, whose scalars are along other directions. squares: the mean square of
    each device's scalars, the latest first; None if `median` is not needed.
    """

    sums: Scalars
    weight: float = 0.0
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)
    squares: Chain | None = None

    @classmethod
    def empty(cls, num_z: int, squares: bool = False) -> MeanScalars:
        """The state without scalars; `squares`: whether `median` will be needed."""
        return cls(np.zeros(num_z), squares=() if squares else None)

    @property
    def whole(self) -> float:
        """The weight of all scalars, late ones included; `weight` is of those in time."""
        return self.weight + sum(each.weight for each in self.late.values())

    def add(self, projected: Scalars, weight: float, late: Late | None) -> MeanScalars:
        if late is not None:
            theirs = self.late.get(late, MeanScalars.empty(len(self.sums))).add(projected, weight, None)
            return replace(self, late={**self.late, late: theirs})
        squares = self.squares
        if squares is not None:
            squares = (float(np.square(projected).mean()), squares)
        return replace(
            self, sums=self.sums + weight * projected, weight=self.weight + weight, squares=squares
        )

    @property
    def median(self) -> float:
        """The median over devices of the mean square of their scalars, of two the smaller; inf if unknown."""
        squares, rest = list[float](), self.squares
        while rest:
            square, rest = rest
            squares.append(square)
        return sorted(squares)[(len(squares) - 1) // 2] if squares else inf

    def means(self, now: Late) -> Iterator[Mean]:
        """The mean of each round that has scalars, the earliest first and `now` last."""
        for of, mean in [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]:
            if mean.weight:
                yield Mean(of, mean.sums / mean.weight, mean.weight / self.whole)
