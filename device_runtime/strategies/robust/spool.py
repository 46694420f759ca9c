"""Keeps a group's updates in a temporary file, to read the values of all devices piece by piece.

Devices send all values of one device; a rule needs one value of all devices. Memory is bounded by BUDGET for
any number of devices and size of model. The file has as many bytes as the updates; it has no name, and
disappears with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors, Vector
from device_runtime.strategies.interface.capabilities import ComparedAs
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update

BUDGET = 32 * 1024 * 1024
"""Bytes of values that are in memory at one time."""

Start = Callable[[str, NDArray[Any]], NDArray[Any] | None]
"""Gives the tensor, of the same shape, from which a tensor's change is measured: the base's, or zeros.

None: the tensor is not compared.
"""


@dataclass(frozen=True)
class SpooledUpdate:
    """One update in the file.

    metadata: the update without tensors.
    at: byte offset of its values.
    rest_at, rest_size: byte offset and size of the rest, the tensors that are not compared.
    """

    device: str
    weight: float
    metadata: Update
    at: int
    rest_at: int
    rest_size: int


class Spool:
    """Updates whose compared tensors have the same names and shapes.

    rows: the updates in order, only the latest of each device.
    earlier: the number of updates that a later one of the device replaced.
    compared_as: as the kind of these updates says.
    starts: float32 (values,), subtracted from updates to compare them; in the same layout as their values.
    """

    def __init__(
        self, first: Tensors, start: Start, scratch: Path | None, compared_as: ComparedAs | None = "change"
    ) -> None:
        """`first` is any update of the group. Raises OSError if `scratch` cannot be written."""
        self.compared_as = compared_as
        starts = {name: start(name, first[name]) for name in sorted(first)}
        self._starts = {name: value for name, value in starts.items() if value is not None}
        flat = [np.asarray(value, np.float32).reshape(-1) for value in self._starts.values()]
        self.starts: Vector = np.concatenate(flat) if flat else np.empty(0, np.float32)
        self.rows: list[SpooledUpdate] = []
        self.earlier = 0
        self._file = tempfile.TemporaryFile(dir=scratch, prefix="merge-")  # noqa: SIM115 - closed in `close`
        self._end = 0

    def close(self) -> None:
        """Delete the file. May be called twice."""
        self._file.close()

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, update: Update, weight: float, device: str) -> bool:
        """Keep one more update, unless its values are not finite and so cannot be compared.

        Updates of a device must come one after another: only its latest is kept, also if late updates count.
        Returns whether the update was kept.
        """
        values = [np.asarray(update.tensors[name], np.float32).reshape(-1) for name in self._starts]
        if not all(bool(np.isfinite(value).all()) for value in values):
            return False
        rest = {name: value for name, value in update.tensors.items() if name not in self._starts}
        packed = tensors.encode(rest) if rest else b""
        self._file.seek(self._end)
        for value in values:
            self._file.write(np.ascontiguousarray(value).data)
        self._file.write(packed)
        at, rest_at = self._end, self._end + 4 * self.starts.size
        metadata = replace(update, tensors=NO_TENSORS, memory=None)
        if self.rows and self.rows[-1].device == device:
            self.rows.pop()
            self.earlier += 1
        self.rows.append(SpooledUpdate(device, weight, metadata, at, rest_at, len(packed)))
        self._end = rest_at + len(packed)
        return True

    def values(self, row: SpooledUpdate, begin: int = 0, end: int | None = None) -> Vector:
        """Values `begin` to `end` of one update, float32, as a new array."""
        end = self.starts.size if end is None else end
        piece: Vector = np.empty(end - begin, np.float32)
        self._file.seek(row.at + 4 * begin)
        self._file.readinto(piece.data)
        return piece

    def put(self, row: SpooledUpdate, values: Vector, begin: int = 0) -> None:
        """Replace the values of one update from `begin` on."""
        self._file.seek(row.at + 4 * begin)
        self._file.write(np.ascontiguousarray(values, np.float32).data)

    def blocks(
        self,
        rows: Sequence[SpooledUpdate] | None = None,
        within: slice | None = None,
        width: int | None = None,
    ) -> Iterator[tuple[slice, Vector]]:
        """The values `within` (None: all) of these updates (None: all), in pieces of at most `width` values.

        Yields each piece's place and values float32 (rows, piece). The array is reused for the next piece.
        """
        chosen = self.rows if rows is None else rows
        first, last, _ = (within or slice(None)).indices(self.starts.size)
        width = width or max(1, BUDGET // (4 * max(1, len(chosen))))
        block: Vector = np.empty((len(chosen), min(width, last - first)), np.float32)
        for begin in range(first, last, width):
            end = min(begin + width, last)
            part = block[:, : end - begin]
            for place, row in enumerate(chosen):
                part[place] = self.values(row, begin, end)
            yield slice(begin, end), part

    def rest(self, row: SpooledUpdate) -> dict[str, NDArray[Any]]:
        """The tensors of an update that are not compared, as they came."""
        self._file.seek(row.rest_at)
        return tensors.decode(self._file.read(row.rest_size)) if row.rest_size else {}

    def update(self, row: SpooledUpdate, values: Vector) -> Update:
        """The update of a row with `values` in place of its own; other tensors are unchanged."""
        content, begin = self.rest(row), 0
        for name, start in self._starts.items():
            content[name] = values[begin : begin + start.size].reshape(start.shape)
            begin += start.size
        return replace(row.metadata, tensors=content)


def signature(content: Tensors, start: Start) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The names and shapes of compared tensors: equal for updates that can be compared with each other."""
    return tuple(
        (name, value.shape) for name, value in sorted(content.items()) if start(name, value) is not None
    )


def start_in(base: Mapping[str, NDArray[Any]], aside: str, whole: frozenset[str]) -> Start:
    """A Start that compares float32 tensors with those of the base, and those named in `whole` with 0.

    A name may have the prefix `aside` before that of the base's tensor.
    """

    def start(name: str, value: NDArray[Any]) -> NDArray[Any] | None:
        if value.dtype != np.float32:  # counts, indices
            return None
        if name in whole:
            return np.zeros(value.shape, np.float32)
        own = base.get(name.removeprefix(aside))
        return own if own is not None and own.shape == value.shape else None

    return start
