"""Reads samples from numpy files: .npy (one or many), and .npz with labels."""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .cells import first_of
from .sample_source import SampleSource
from .units import RawSamples, Refused, SampleFormat, Unit, WantedSamples

DAMAGED = (
    OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, ArithmeticError, MemoryError,
    SyntaxError, RecursionError, tokenize.TokenError,
)  # fmt: skip
"""What numpy may raise for a damaged or foreign file, whose header it reads as Python."""


@dataclass(frozen=True)
class StoredArray:
    """An array of one sample of the input's shape, or of many (n, ..); a single channel may have no axis."""

    values: NDArray[Any]

    @property
    def form(self) -> str:
        return f"{self.values.dtype} {self.values.shape}"

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """The samples (n, *shape). Raises Refused for another shape, or values that are not numbers."""
        shapes = [given.shape, given.shape[1:]] if given.shape[:1] == (1,) else [given.shape]
        values = self.values
        if values.dtype.kind not in "buif":
            raise Refused("x is no array of numbers", f"{values.dtype}")
        if values.shape not in shapes and (values.ndim == 0 or values.shape[1:] not in shapes):
            raise Refused("another shape than the task's input", f"{values.shape}, expected {given.shape}")
        return values.reshape(-1, *given.shape)


def decode(data: bytes) -> StoredArray:
    """Reads a .npy file. Raises Refused if it is none, ends too early or holds objects."""
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGED as error:
        raise Refused("not a .npy file", str(error)[:200]) from None
    if not isinstance(values, np.ndarray):
        raise Refused("not a .npy file", "an archive of several")
    return StoredArray(values)


# .npz files hold x (n, *input) and y (n,), class numbers or names; class_names, if any, names the numbers.
# Where targets have columns, y is numbers (n, columns), or (n,) for one; where none are needed, it may be
# absent.

LARGEST_BYTES = 4 << 30
"""Most bytes of the unpacked arrays of a file that are read."""
NAMES = "class_names"


def _read(unit: Unit, wanted: WantedSamples) -> Iterator[RawSamples]:
    room = LARGEST_BYTES if wanted.room_bytes is None else min(LARGEST_BYTES, wanted.room_bytes)
    source = wanted.source
    arrays = _arrays(unit.path, ("x", "y", NAMES), room, needed=("x",) if source.unlabelled else ("x", "y"))
    x = arrays["x"]
    y = arrays.get("y")
    if source.target_columns or y is None:
        shaped = StoredArray(x).raw(wanted.input)
        if y is not None and y.shape[:1] != (len(shaped),):
            raise Refused(f"y is {y.dtype} {y.shape}, expected targets of each of the {len(shaped)} samples")
        yield RawSamples(shaped, y, f"{x.dtype} {x.shape[1:]}")
        return
    if x.ndim == 0 or y.shape != x.shape[:1] or y.dtype.kind not in "iuU":
        raise Refused(
            f"y is {y.dtype} {y.shape}, expected one integer for each of the {x.shape[:1]} samples, or a name"
        )
    labels: Any = y
    if y.dtype.kind == "U":
        labels = y.tolist()
    elif NAMES in arrays:
        labels = _named(y, arrays[NAMES])
    form = f"{x.dtype} {x.shape[1:]}"
    shaped = StoredArray(x).raw(wanted.input)
    if len(shaped) != len(y):
        raise Refused(
            "another shape than the task's input",
            f"{x.shape}, expected {('n', *wanted.input.shape)}".replace("'", ""),
        )
    yield RawSamples(shaped, labels, form)


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    yield _arrays(unit.path, ("x",))["x"]


def inputs(path: Path, given: InputSpec) -> NDArray[Any]:
    """x of a .npz file without its labels, (n, *shape), raw. Raises Refused."""
    return StoredArray(_arrays(path, ("x",))["x"]).raw(given)


def _named(y: NDArray[Any], names: NDArray[Any]) -> list[str]:
    if names.ndim != 1:
        raise Refused(f"{NAMES} is no list of names", f"{names.dtype} {names.shape}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names):
        raise Refused("a class number without a name", f"{int(y.min())} to {int(y.max())} of {len(names)}")
    listed = [str(name) for name in names.tolist()]
    return [listed[number] for number in y.tolist()]


def _arrays(
    path: Path,
    wanted: tuple[str, ...],
    most_bytes: int = LARGEST_BYTES,
    needed: tuple[str, ...] = ("x",),
) -> Mapping[str, NDArray[Any]]:
    """The wanted arrays that the file has; those that are needed must be there. Raises Refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        if missing := set(needed) - there.keys():
            raise Refused(f"has no array {sorted(missing)[0]!r}", f"it has {first_of(sorted(there), 5)}")
        size = sum(there[name] for name in wanted if name in there)
        if size > most_bytes:
            raise Refused("unpacks to too much", f"{size / 1e6:.1f} MB, at most {most_bytes / 1e6:.1f} here")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in wanted if name in there}
    except Refused:
        raise
    except MemoryError as error:
        raise Refused("unpacks to more than there is memory", error) from None
    except (*DAMAGED, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise Refused("not a .npz file", str(error)[:200]) from None


NPZ = SampleFormat(_read, _stored)
