"""Scalars of a round as they are summed: by the round whose directions they are along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .device_half import Late

Scalars = NDArray[np.float64]


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
    """

    sums: Scalars
    weight: float = 0.0
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_z: int) -> MeanScalars:
        return cls(np.zeros(num_z))

    @property
    def whole(self) -> float:
        """The weight of all, those of earlier rounds too; `weight` is of what came in time."""
        return self.weight + sum(each.weight for each in self.late.values())

    def add(self, projected: Scalars, weight: float, late: Late | None) -> MeanScalars:
        if late is not None:
            theirs = self.late.get(late, MeanScalars.empty(len(self.sums))).add(projected, weight, None)
            return replace(self, late={**self.late, late: theirs})
        return replace(self, sums=self.sums + weight * projected, weight=self.weight + weight)

    def means(self, now: Late) -> Iterator[Mean]:
        """Of each round that has any, the earliest first and `now` last."""
        for of, mean in [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]:
            if mean.weight:
                yield Mean(of, mean.sums / mean.weight, mean.weight / self.whole)
