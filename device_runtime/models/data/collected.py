"""Collects all samples of a table, as a device reads them, but raw and with their clients.

A number of 8 bytes takes more memory than a short row of the file: they are as narrow as their values allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .labels import NewLabels, SampleTargets
from .table import TABLE
from .units import EMPTY, Refused, Skip, SkippedSamples, SkippedTally, Unit, WantedSamples, file_stamp

LEAST = 64
"""Rows that get room at first."""
LARGEST = np.iinfo(np.uint32).max
"""The largest number kept unsigned: numpy turns uint64 and int64 together into floats."""


@dataclass(frozen=True)
class CollectedSamples:
    """The samples of a file.

    x: raw (n, *input). y: class numbers (n,) in the narrowest dtype, or raw targets float64 (n, columns).
    clients: the number of each sample's client in `client_names`, -1 for none, (n,), in the narrowest dtype;
    None if the file names none. skipped: what was left out. form: how they were stored. notes: what the
    reader decided by default.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[np.signedinteger[Any]] | None
    client_names: tuple[str, ...]
    skipped: tuple[SkippedSamples, ...]
    form: str
    notes: tuple[str, ...]


def collect(path: Path, request: WantedSamples, targets: SampleTargets) -> CollectedSamples:
    """Reads a table of samples with their labels. Raises Refused, also if no sample is left."""
    try:
        unit = Unit(path.name, path, file_stamp(path), TABLE)
    except OSError as error:
        raise Refused("cannot be read", error.strerror) from None
    x, y, whose = _Column(), _Column(), _Column()
    skipped, names = SkippedTally(), NewLabels()
    form = ""
    notes: tuple[str, ...] = ()
    for part in unit.read(request):
        if isinstance(part, Skip):
            skipped.add(part)
            continue
        answers, read = targets.of(part, None, unit.name, skipped)
        whole = bool(read.all())
        x.append(part.x if whole else part.x[read], part.expected)
        y.append(_narrow(answers if whole else answers[read]), part.expected)
        if part.clients is not None:
            numbers = np.array([names.number(name) if name else -1 for name in part.clients], np.int64)
            whose.append(_narrow(numbers if whole else numbers[read], signed=True), part.expected)
        form, notes = part.form, part.notes
    if x.rows is None or not len(x.rows) or y.rows is None:
        raise Refused("no readable samples", "; ".join(map(str, [*skipped][:3])) or EMPTY)
    return CollectedSamples(x.rows, y.rows, whose.rows, names.names, tuple(skipped), form, notes)


class _Column:
    """What each sample has of one thing, in one buffer; its dtype widens to that of new values."""

    def __init__(self) -> None:
        self._buffer: NDArray[Any] | None = None
        self._count = 0

    @property
    def rows(self) -> NDArray[Any] | None:
        """All values so far, (n, ..), a view; None before the first."""
        return None if self._buffer is None else self._buffer[: self._count]

    def append(self, values: NDArray[Any], expected: int) -> None:
        """Copies values (k, ..) to the end. expected: the most in all, which get room at once; 0: unknown."""
        end = self._count + len(values)
        rows = values[:0] if self.rows is None else self.rows
        dtype = np.result_type(rows, values)
        if self._buffer is None or end > len(self._buffer) or dtype != self._buffer.dtype:
            room = max(end if end <= expected else 2 * end, expected, LEAST)
            self._buffer = np.empty((room, *values.shape[1:]), dtype)  # free rows take no memory
            self._buffer[: self._count] = rows
        self._buffer[self._count : end] = values
        self._count = end


def _narrow(numbers: NDArray[Any], *, signed: bool = False) -> NDArray[Any]:
    """Whole numbers in the narrowest dtype that holds them; other numbers as they are."""
    if numbers.dtype.kind not in "iu" or not len(numbers):
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    dtype = np.min_scalar_type(min(low, -1 - high) if signed or low < 0 or high > LARGEST else high)
    return numbers.astype(dtype)
