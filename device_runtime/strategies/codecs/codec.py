"""What the parts of a codec are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

Parts = Mapping[str, NDArray[Any]]
"""The arrays that stand for one tensor on the wire: the main one by "", others by a short name."""

MAIN = ""


class CodecError(ValueError):
    """A word that names no codec. The message says what was expected."""


class Numbers(Protocol):
    """A shorter way to write float32 numbers, with a loss. Equal numbers give equal bits everywhere."""

    name: str
    beside: tuple[str, ...]
    """The parts beside the main one."""

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        """`values`, finite, at least one; None where they cannot be written, or nothing is gained by it."""

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """What was written, as near as it is kept; not finite where the parts are not what `write` makes.

        Raises TensorError for parts of other names, shapes or dtypes.
        """

    def size(self, values: int) -> float:
        """Bytes of so many numbers, in one tensor, before anything packs them."""


class Packing(Protocol):
    """Fewer bytes for the same bytes."""

    name: str

    def pack(self, data: bytes) -> bytes:
        """The same content in fewer bytes, if there is anything to gain."""

    def unpack(self, data: bytes, most: int) -> bytes:
        """What was packed. Raises TensorError for what was not, and as soon as over `most` bytes come."""

    def most(self, size: int) -> int:
        """How many bytes the packing of `size` bytes may have."""


# FROM deflate: Deflate (RFC 1951, in zlib's frame), from the standard library.
#
# Zstandard packs these updates no better (docs/wire.md has the figures), and its library is 24 MB.

LEVEL = 6


class Deflate:
    """Packs bytes. Versions of zlib may give other bytes for the same; all of them unpack to the same."""

    name = "deflate"

    def pack(self, data: bytes) -> bytes:
        return zlib.compress(data, LEVEL)

    def unpack(self, data: bytes, most: int) -> bytes:
        """Never more than `most` + 1 bytes are made, whatever `data` says."""
        stream = zlib.decompressobj()
        try:
            unpacked = stream.decompress(data, most + 1)
        except zlib.error as error:
            raise TensorError(f"{len(data)} bytes are not deflated: {error}") from None
        if len(unpacked) > most:
            raise TensorError(f"{len(data)} deflated bytes are more than {most}, the most that is expected")
        if not stream.eof or stream.unused_data:
            what = "are followed by others" if stream.eof else "end too early"
            raise TensorError(f"{len(data)} deflated bytes {what}")
        return unpacked

    def most(self, size: int) -> int:
        """zlib's compressBound, which holds for every level."""
        return size + (size >> 12) + (size >> 14) + (size >> 25) + 13


# FROM delta: Changes of the base in place of values.
#
# Before lossy numbers it is the difference: rounding loses as much less as it is smaller than the value.
# Alone
# it is exact: the distance of the two float32 numbers in steps from one representable number to the next of
# the
# same sign, whose high bytes are nearly all zero.

NAME = "delta"


def write(values: NDArray[np.float32], base: NDArray[np.float32]) -> Parts:
    """Exactly: the difference of the bit patterns, modulo 2**32, with its sign as the lowest bit."""
    with np.errstate(over="ignore"):
        steps = (_bits(values) - _bits(base)).view(np.int32)
    folded: NDArray[np.int32] = (steps << 1) ^ (steps >> 31)
    return {MAIN: split(folded.view(np.uint32).reshape(values.shape))}


def read(parts: Parts, base: NDArray[np.float32]) -> NDArray[np.float32]:
    """The very values. Raises TensorError for parts that `write` does not make."""
    folded = joined(parts[MAIN], "uint32", base.shape)
    with np.errstate(over="ignore"):
        steps = (folded >> np.uint32(1)) ^ (np.uint32(0) - (folded & np.uint32(1)))
        values: NDArray[np.float32] = (_bits(base) + steps.reshape(-1)).view(np.float32)
    return values.reshape(base.shape)


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """(size,): numpy 1 makes a shifted scalar an int64, and of an array without axes too."""
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return bits


# FROM half: Numbers of 16 bits: IEEE 754 binary16, rounded to the nearest, ties to even.


class Half:
    """11 bits of precision from 6e-5 to 65504. Smaller numbers lose bits, larger ones cannot be written."""

    name = "half"
    beside: tuple[str, ...] = ()

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        with np.errstate(over="ignore", under="ignore"):
            short = values.astype(np.float16)
        return {MAIN: split(short)} if np.isfinite(short).all() else None

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        short: NDArray[np.float16] = joined(parts[MAIN], "float16", shape)
        return short.astype(np.float32)

    def size(self, values: int) -> float:
        return 2.0 * values


# FROM int8: Numbers of 8 bits: -127 to 127 times a float32 scale that BLOCK neighbours share.

BLOCK = 256
"""Numbers with one scale: 1.6% more bytes."""
LEAST = 32
"""With fewer numbers the name of the scales takes more bytes than is gained."""
SCALES = "scales"
TINY = np.finfo(np.float32).tiny
"""A smaller scale could be flushed to zero by some processors, and not by others: all its numbers are 0."""


class Int8:
    """The largest number of a block becomes 127; none is off by more than half a scale. Ties go to even."""

    name = "int8"
    beside: tuple[str, ...] = (SCALES,)

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        if values.size < LEAST:
            return None
        rows = _rows(values)
        scales = np.abs(rows).max(axis=1) / np.float32(127)
        scales[scales < TINY] = 0
        codes = np.rint(rows / np.where(scales, scales, np.float32(np.inf))[:, None])
        flat = np.clip(codes, -127, 127).astype(np.int8).reshape(-1)[: values.size]
        return {MAIN: flat.reshape(values.shape), SCALES: scales}

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        codes, scales = parts[MAIN], parts.get(SCALES)
        if codes.dtype != np.int8 or codes.shape != shape:
            raise TensorError(f"is {codes.dtype} {codes.shape}, expected int8 {shape}")
        blocks = -(-codes.size // BLOCK)
        if scales is None or scales.dtype != np.float32 or scales.shape != (blocks,):
            had = "missing" if scales is None else f"{scales.dtype} {scales.shape}"
            raise TensorError(f"has scales that are {had}, expected float32 {(blocks,)}")
        with np.errstate(over="ignore", invalid="ignore"):
            values = _rows(codes.astype(np.float32)) * scales[:, None]
        whole: NDArray[np.float32] = values.reshape(-1)[: codes.size].reshape(shape)
        return whole

    def size(self, values: int) -> float:
        return values * (1 + 4 / BLOCK)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(blocks, BLOCK), the last one filled up with zeros."""
    rows = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    rows.reshape(-1)[: values.size] = values.reshape(-1)
    return rows


# FROM planes: Numbers byte by byte: first all lowest bytes, last all highest, which are alike and pack well.


def split(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Of shape (bytes of a number, *shape), the lowest first on every machine."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    width = values.dtype.itemsize
    return np.ascontiguousarray(little.reshape(-1).view(np.uint8).reshape(-1, width).T).reshape(
        width, *values.shape
    )


def joined(planes: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers, of a dtype of fixed width and this shape. Raises TensorError for other planes."""
    width = np.dtype(dtype).itemsize
    if planes.dtype != np.uint8 or planes.shape != (width, *shape):
        raise TensorError(f"is {planes.dtype} {planes.shape}, expected uint8 {(width, *shape)}")
    rows = np.ascontiguousarray(planes.reshape(width, -1).T)
    little = rows.reshape(-1).view(np.dtype(dtype).newbyteorder("<"))
    numbers: NDArray[Any] = little.astype(dtype).reshape(shape)
    return numbers
