"""Named tensors: safetensors bytes, checks of names, shapes and values, and one flat buffer."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError, one_line

Tensors = Mapping[str, NDArray[Any]]
Vector = NDArray[np.float32]

NO_TENSORS: Tensors = MappingProxyType({})

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and numpy dtype name of one tensor; `variable`: it may have fewer rows than shape[0]."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    variable: bool = False

    @property
    def size(self) -> int:
        """Number of elements, at most."""
        return prod(self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this shape."""
        if self.variable and len(shape) == len(self.shape):
            return shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]
        return shape == self.shape

    def __str__(self) -> str:
        return f"at most {self.shape}" if self.variable else f"{self.shape}"


def encode(tensors: Tensors) -> bytes:
    """The tensors as safetensors; equal tensors give equal bytes, whatever their order.

    Raises TensorError for a dtype that safetensors has no name for.
    """
    plain = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    try:
        return bytes(safetensors.numpy.save(plain))
    except Exception as error:
        raise TensorError(f"tensors cannot be encoded: {one_line(error)}") from error


def encoded_parts(tensors: Tensors, parts: Iterable[Sequence[TensorSpec]]) -> Iterator[bytes]:
    """The tensors of each part as safetensors."""
    for part in parts:
        yield encode({spec.name: tensors[spec.name] for spec in part})


def decode(data: bytes) -> dict[str, NDArray[Any]]:
    """The tensors in `data`, by name; the caller owns the arrays and may write to them.

    Raises TensorError, and nothing else, for bytes that are not safetensors of numpy dtypes.
    """
    try:
        return {
            name: np.require(value, requirements=["A", "W"])  # copied only where it must be
            for name, value in safetensors.numpy.load(data).items()
        }
    except Exception as error:  # a malformed header surfaces as any of half a dozen types
        raise TensorError(f"{len(data)} bytes are not safetensors: {one_line(error)}") from error


def to_float16(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """float32 tensors as float16 where that loses nothing; `to_float32` undoes it."""
    result = {}
    for name, value in tensors.items():
        with np.errstate(over="ignore"):
            half = value.astype(np.float16) if value.dtype == np.float32 else value
        result[name] = half if np.array_equal(half, value) else value
    return result


def to_float32(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """float16 tensors as float32."""
    return {n: v.astype(np.float32) if v.dtype == np.float16 else v for n, v in tensors.items()}


def all_finite(tensors: Tensors) -> bool:
    """Whether no value is infinite or NaN."""
    return all(bool(np.isfinite(value).all()) for value in tensors.values() if value.dtype.kind in "fc")


def check(tensors: Tensors, expected: Sequence[TensorSpec]) -> None:
    """Raises TensorError unless `tensors` are exactly `expected`: names, shapes, dtypes, all finite."""
    names = {spec.name for spec in expected}
    if names != tensors.keys():
        if missing := sorted(names - tensors.keys()):
            raise TensorError(f"{_listed(missing)} missing; got {_listed(sorted(tensors))}")
        extra = sorted(tensors.keys() - names)
        raise TensorError(f"{_listed(extra)} not expected; expected {_listed(sorted(names))}")
    for spec in expected:
        _check_one(spec, tensors[spec.name])


def _check_one(spec: TensorSpec, value: NDArray[Any]) -> None:
    if not spec.fits(value.shape):
        raise TensorError(f"{spec.name} is {value.shape}, expected {spec}")
    if value.dtype != np.dtype(spec.dtype):
        raise TensorError(f"{spec.name} is {value.dtype}, expected {spec.dtype}")
    if value.dtype.kind in "fc" and not np.isfinite(value).all():
        count = int(value.size - np.isfinite(value).sum())
        raise TensorError(f"{spec.name} has {count} non-finite value{'s' if count > 1 else ''}")


def _listed(names: Sequence[str], most: int = 4) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Flat:
    """Named float32 tensors in one contiguous, 64-byte-aligned buffer, in the order of `specs`.

    `vector` has shape (size,), without padding; `views[name]` has the shape of its spec and shares the
    memory of `vector`. Neither is ever reallocated, so an engine may bind the views once.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        """Starts with zeros. Raises TensorError for a dtype other than float32 or a name given twice."""
        if other := [spec for spec in specs if spec.dtype != "float32"]:
            raise TensorError(f"{other[0].name} is {other[0].dtype}, a flat buffer holds float32 only")
        if len({spec.name for spec in specs}) != len(specs):
            raise TensorError(f"a name occurs twice among {_listed([spec.name for spec in specs])}")
        self.specs = tuple(specs)
        self.vector: Vector = _aligned(sum(spec.size for spec in specs))
        self.views: dict[str, Vector] = {}
        self._starts: list[int] = []
        start = 0
        for spec in specs:
            self._starts.append(start)
            self.views[spec.name] = self.vector[start : start + spec.size].reshape(spec.shape)
            start += spec.size

    def load(self, tensors: Tensors) -> None:
        """Copies the tensors in, ignoring names that are not in `specs`.

        Raises TensorError for a tensor that is missing or does not fit.
        """
        subset = {name: tensors[name] for name in self.views if name in tensors}
        check(subset, self.specs)
        for name, view in self.views.items():
            view[...] = subset[name]

    def load_part(self, tensors: Tensors, begin: int, size: int) -> Vector:
        """Copies in only elements `begin` to `begin` + `size`, or to the end, and returns that slice.

        `tensors` must have the shapes of `specs`, in C order; that is not checked.
        """
        part = self.vector[begin : begin + size]
        end = begin + len(part)
        first = max(0, bisect_right(self._starts, begin) - 1)
        for spec, start in zip(self.specs[first:], self._starts[first:], strict=True):
            if start >= end:
                break
            low, high = max(begin, start), min(end, start + spec.size)
            self.vector[low:high] = tensors[spec.name].reshape(-1)[low - start : high - start]
        return part

    def tensors(self) -> dict[str, Vector]:
        """A copy of every tensor."""
        return {name: view.copy() for name, view in self.views.items()}


def _aligned(size: int) -> Vector:
    raw = np.zeros(size * 4 + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size * 4].view(np.float32)
