"""The samples that a model is trained or judged on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LocalData:
    """Prepared inputs float32 (n, *input), labels int64 (n,)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def class_counts(self, labels: int) -> tuple[int, ...]:
        """Samples of each class, shape (labels,)."""
        return tuple(int(n) for n in np.bincount(self.y, minlength=labels))


# FROM rows: Prepared samples in one buffer that grows in place: what is there is neither read nor copied
# again.

LEAST = 64


class Rows:
    """x (n, *shape) float32 or int64, y (n,). Room that is not filled yet is address space, not memory."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._x: NDArray[Any] = np.empty((0, *shape), dtype)
        self._y = np.empty(0, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def data(self) -> LocalData:
        """All of them, without a copy; it is of use until the next `cut` or `keep`."""
        return LocalData(self._x[: self._count], self._y[: self._count])

    @property
    def room(self) -> int:
        """How many rows there can be before all move."""
        return len(self._y)

    @property
    def row_bytes(self) -> int:
        """Of one sample with its label."""
        return int(np.prod(self._x.shape[1:])) * self._x.itemsize + self._y.itemsize

    def append(self, x: NDArray[Any], y: NDArray[np.int64]) -> None:
        """Behind what is there; copied."""
        end = self._count + len(y)
        self.reserve(end)
        self._x[self._count : end], self._y[self._count : end] = x, y
        self._count = end

    def reserve(self, count: int) -> None:
        """Room for `count` rows in all, and as many again: what is there moves at most now."""
        if count > len(self._y):
            self._grow(max(LEAST, 2 * count))

    def cut(self, count: int) -> None:
        """Only the first `count` stay."""
        self._count = count

    def keep(self, stays: NDArray[np.bool_]) -> None:
        """Rows of which `stays` (n,) is true move up behind each other, in their order; the others go."""
        step = max(1, (1 << 20) // self.row_bytes)
        end = 0
        for start in range(0, self._count, step):
            chosen = start + np.flatnonzero(stays[start : start + step])
            stop = end + len(chosen)
            if len(chosen) and chosen[-1] >= stop:  # else they lie there already
                self._x[end:stop], self._y[end:stop] = self._x[chosen], self._y[chosen]
            end = stop
        self._count = end

    def _grow(self, room: int) -> None:
        x, y = np.empty((room, *self._x.shape[1:]), self._x.dtype), np.empty(room, np.int64)
        x[: self._count], y[: self._count] = self._x[: self._count], self._y[: self._count]
        self._x, self._y = x, y


# FROM held_out: Which samples are kept out of training, to be evaluated on: by their content alone.

WORDS = 1 << 64
SHARE, LEAST_HELD_OUT = 0.1, 10
"""Where no share is wished: of all samples, once so many of them are held out; fewer tell little of a model,
and are missed in its training.
"""


def is_held_out(x: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """For each of x (n, ..) whether it is one of about `share` that are held out, (n,).

    The same sample always is or never is, whatever comes or goes beside it; equal samples are together.
    """
    if not share:
        return np.zeros(len(x), bool)
    key = seed.to_bytes(8, "little")
    below = int(share * WORDS)
    found = np.empty(len(x), bool)
    for number, one in enumerate(np.ascontiguousarray(x)):
        digest = hashlib.blake2b(one.tobytes(), digest_size=8, key=key).digest()
        found[number] = int.from_bytes(digest, "little") < below
    return found
