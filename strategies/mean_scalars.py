"""Scalars of a round as they are summed: by the directions that they are along."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .kind import Late

Scalars = NDArray[np.float64]


def group_of(device: str, groups: int) -> int:
    """Whose directions a device measures along: the same for the same name, 0 where there is one group."""
    digest = hashlib.sha256(device.encode()).digest()
    return int.from_bytes(digest[:8], "little") % groups


@dataclass(frozen=True)
class Mean:
    """Scalars float64 (n,) along the directions `indices` of a round, of which the step is the plain mean.

    `share` is their part of all the weight.
    """

    of: Late
    scalars: Scalars
    indices: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class MeanScalars:
    """Weighted sums float64 (num_z,) of the projected gradients by group, and their weights; beside them
    those of earlier rounds, which are along other directions.
    """

    num_z: int
    sums: Mapping[int, Scalars] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    late: Mapping[Late, MeanScalars] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """Of all that came in time."""
        return sum(self.weights.values())

    @property
    def whole(self) -> float:
        """Of all."""
        return self.weight + sum(each.weight for each in self.late.values())

    def add(self, projected: Scalars, weight: float, late: Late | None, group: int = 0) -> MeanScalars:
        if late is not None:
            theirs = self.late.get(late, MeanScalars(self.num_z)).add(projected, weight, None, group)
            return replace(self, late={**self.late, late: theirs})
        sums = {**self.sums, group: self.sums.get(group, 0.0) + weight * projected}
        return replace(
            self, sums=sums, weights={**self.weights, group: self.weights.get(group, 0.0) + weight}
        )

    def means(self, now: Late) -> Iterator[Mean]:
        """Of each round that has any, the earliest first and `now` last."""
        for of, mean in [*sorted(self.late.items(), key=lambda each: each[0].round), (now, self)]:
            if mean.weight:
                yield Mean(of, mean._together(), mean._indices(), mean.weight / self.whole)

    def _together(self) -> Scalars:
        """One after the other, each group's by its share of the weight: their plain mean is the step."""
        groups = sorted(self.sums)
        return np.concatenate([self.sums[group] * len(groups) / self.weight for group in groups])

    def _indices(self) -> tuple[int, ...]:
        return tuple(group * self.num_z + p for group in sorted(self.sums) for p in range(self.num_z))
