"""Scalars of a round as they are summed: by the round whose directions they are along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from device_runtime.strategies.training.device_half import Late

Scalars = NDArray[np.float64]
Chain: TypeAlias = "tuple[()] | tuple[float, Chain]"
"""Numbers, the latest first: adding one costs the same however many there are."""


@dataclass(frozen=True)
class Mean:
    """Scalars float64 (num_z,) along the directions of a round; `share` is their part of all the weight."""

    of: Late
    scalars: Scalars
    share: float


@dataclass(frozen=True)
class MeanScalars:
    """Weighted sum float64 (num_z,) of the projected gradients, and their weight; beside it those of earlier
    rounds, which are along other directions.

    `squares`: the mean square of each device's scalars, the latest first, each with those before it; None
    where nobody asks for their median.
    """

    sums: Scalars
    weight: float = 0.0
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)
    squares: Chain | None = None

    @classmethod
    def empty(cls, num_z: int, squares: bool = False) -> MeanScalars:
        """`squares`: whether `median` will be asked for."""
        return cls(np.zeros(num_z), squares=() if squares else None)

    @property
    def whole(self) -> float:
        """The weight of all, those of earlier rounds too; `weight` is of what came in time."""
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
        """The mean square of the median device's scalars, of two the smaller one; infinite where unknown."""
        found, rest = list[float](), self.squares
        while rest:
            square, rest = rest
            found.append(square)
        return sorted(found)[(len(found) - 1) // 2] if found else inf

    def means(self, now: Late) -> Iterator[Mean]:
        """Of each round that has any, the earliest first and `now` last."""
        for of, mean in [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]:
            if mean.weight:
                yield Mean(of, mean.sums / mean.weight, mean.weight / self.whole)
