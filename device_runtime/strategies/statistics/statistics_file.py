"""Keeps the class statistics of a round's devices until all have come, in memory or in a temporary file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .class_statistics import Statistics
from .class_sums import ClassSums

IN_MEMORY = 32 * 1024 * 1024
"""Bytes that are held in memory; more go to a file without a name, which disappears with the process."""


@dataclass(frozen=True)
class StatisticsSource:
    """Of which devices statistics are.

    size: samples of a device, without the factor for the rounds that they stand for.
    late: by how many rounds they are late.
    stands_for: how many samples each sample stands for that the device measured.
    """

    size: float
    late: int = 0
    stands_for: float = 1.0


class StatisticsFile:
    """Statistics in the order in which they were added, each with its source, read back bit for bit."""

    def __init__(self, labels: int, width: int) -> None:
        self.labels, self.width = labels, width
        self.sources: list[StatisticsSource] = []
        self._scratch: str | None = None
        self._file: Any = None
        self._places: list[tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]] = []

    def keep_in(self, scratch: Path | None) -> None:
        """Use this folder for what does not fit in memory; None: the system's temporary folder."""
        self._scratch = None if scratch is None else str(scratch)

    def __len__(self) -> int:
        return len(self.sources)

    def add(self, sent: Statistics, source: StatisticsSource) -> None:
        """Add one device's statistics. Raises OSError."""
        if self._file is None:
            self._file = SpooledTemporaryFile(IN_MEMORY, dir=self._scratch, prefix="statistics-")  # noqa: SIM115 - closed with the last reference
        arrays = (*_rows(sent.sums), *_rows(sent.moment_sums), _upper(sent), sent.right)
        place = self._file.seek(0, 2) or self._file.tell()
        self._places.append((place, tuple((array.dtype.str, array.shape) for array in arrays)))
        self.sources.append(source)
        for array in arrays:
            self._file.write(array.tobytes())

    def __iter__(self) -> Iterator[Statistics]:
        return (self.read(place) for place in range(len(self)))

    def read(self, number: int) -> Statistics:
        """The statistics that were added as number `number`."""
        place, arrays = self._places[number]
        self._file.seek(place)
        read = [self._array(np.dtype(dtype), shape) for dtype, shape in arrays]
        upper, right = read[6:]
        moments = np.zeros((self.width, self.width))
        if upper.size:
            moments[np.triu_indices(self.width)] = upper
            moments += np.triu(moments, 1).T
        return Statistics(self._sums(*read[:3]), self._sums(*read[3:6]), moments, right)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        content = bytearray(self._file.read(dtype.itemsize * prod(shape)))
        return np.frombuffer(content, dtype).reshape(shape)

    def _sums(self, present: NDArray[np.int64], counts: NDArray[Any], sums: NDArray[np.float64]) -> ClassSums:
        whole = ClassSums(np.zeros((self.labels, self.width)), np.zeros(self.labels, counts.dtype))
        whole.counts[present], whole.sums[present] = counts, sums
        return whole


def _rows(sums: ClassSums) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
    present = sums.present
    return present, sums.counts[present], sums.sums[present]


def _upper(sent: Statistics) -> NDArray[np.float64]:
    """The upper triangle of the second moments; empty where there are none."""
    if not sent.moments.any():
        return np.empty(0)
    return sent.moments[np.triu_indices(len(sent.moments))]
