"""A fixed random projection of wide features, drawn by the words of `directions`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .directions import RADEMACHER, direction, words

Number = TypeVar("Number", bound=np.floating[Any])


@dataclass(frozen=True)
class Projection:
    """A fixed random projection R of `width` features onto at most `most`: feature hashing.

    Each feature is added, with a random sign, to one of `size` sums; of d features and k sums, every sum has
    d / k features, rounded up or down. Inner products keep their value in the mean (Weinberger et al. 2009),
    and it costs one addition a feature. Order and signs are drawn from `seed` by the words of `directions`,
    which are the same bits everywhere. `most` features or fewer are left as they are.
    """

    width: int
    most: int
    seed: int

    @property
    def size(self) -> int:
        """How many features there are after projecting."""
        return min(self.width, self.most)

    @property
    def changes(self) -> bool:
        """Whether there are more than `most` features."""
        return self.width > self.most

    def project(self, features: NDArray[Number]) -> NDArray[Number]:
        """f R: (n, width) -> (n, size), linear."""
        if not self.changes:
            return features
        sums = np.zeros((len(features), self.size), features.dtype)
        for part, signs in self._parts():
            sums[:, : len(part)] += features[:, part] * signs
        return sums

    def back(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """W R': weights (n, size) for projected features -> (n, width), for the features themselves."""
        if not self.changes:
            return weights
        whole = np.empty((len(weights), self.width))
        for part, signs in self._parts():
            whole[:, part] = weights[:, : len(part)] * signs
        return whole

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Groups of up to `size` features, of which the i-th goes to sum i, and their signs."""
        order, signs = self._drawn
        for begin in range(0, self.width, self.size):
            part = order[begin : begin + self.size]
            yield part, signs[part]

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        order = np.argsort(words(self.seed, 0, self.width), kind="stable")
        return order, direction(self.seed, 1, 0, self.width, RADEMACHER)


@lru_cache(maxsize=16)
def projection(width: int, most: int, seed: int) -> Projection:
    """A `Projection`, cached because drawing it takes longer than projecting."""
    return Projection(width, most, seed)
