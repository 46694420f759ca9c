"""Prepared samples in one buffer that grows in place: what is there is neither read nor copied again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.kind import LocalData

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
        """All of them, without a copy; it is of use until the next `cut` or `drop`."""
        return LocalData(self._x[: self._count], self._y[: self._count])

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

    def drop(self, begin: int, count: int) -> None:
        """Those from `begin` on go, those behind them move up."""
        step = max(1, (1 << 20) // self.row_bytes)
        for start in range(begin + count, self._count, step):
            stop = min(start + step, self._count)
            self._x[start - count : stop - count] = self._x[start:stop]
            self._y[start - count : stop - count] = self._y[start:stop]
        self._count -= count

    def _grow(self, room: int) -> None:
        x, y = np.empty((room, *self._x.shape[1:]), self._x.dtype), np.empty(room, np.int64)
        x[: self._count], y[: self._count] = self._x[: self._count], self._y[: self._count]
        self._x, self._y = x, y
