"""The building blocks of codecs: deflate, changes of the base, 16-bit and 8-bit numbers, byte planes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

Parts = Mapping[str, NDArray[Any]]
"""The arrays that stand for one tensor on the wire: the main one is named "", others have a short name."""

MAIN = ""


class CodecError(ValueError):
    """Raised for a word that names no codec. The message says what was expected."""


class Numbers(Protocol):
    """A lossy, shorter encoding of float32 numbers. Equal numbers give equal bits on every machine."""

    name: str
    beside: tuple[str, ...]
    """The names of the parts other than the main one."""

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        """Encode `values`, finite, at least one; None if that is impossible or saves nothing."""

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The numbers of these parts, rounded; they may be not finite if `write` did not make the parts.

        Raises TensorError for parts of other names, shapes or dtypes.
        """

    def size(self, values: int) -> float:
        """Bytes of `values` numbers in one tensor, before packing."""


LEVEL = 6
"""zlib's compression level."""


class Deflate:
    """Deflate (RFC 1951, in zlib's frame), from the standard library.

    Versions of zlib may pack the same data into different bytes; all of these unpack to the same data.
    Zstandard packs these updates no better (docs/wire.md has the figures), and its library is 24 MB.
    """

    name = "deflate"

    def pack(self, data: bytes) -> bytes:
        return zlib.compress(data, LEVEL)

    def unpack(self, data: bytes, most: int) -> bytes:
        """The packed bytes. Raises TensorError for other data, and as soon as there are more than `most`."""
        stream = zlib.decompressobj()
        try:
            unpacked = stream.decompress(data, most + 1)
        except zlib.error as error:
            raise TensorError(f"{len(data)} bytes are not deflated: {error}") from None
        if len(unpacked) > most:
            expected = f"{most}, the most that is expected"
            raise TensorError(f"{len(data)} deflated bytes unpack to more than {expected}")
        if not stream.eof or stream.unused_data:
            what = "are followed by others" if stream.eof else "end too early"
            raise TensorError(f"{len(data)} deflated bytes {what}")
        return unpacked

    def most(self, size: int) -> int:
        """zlib's compressBound, which holds for every level."""
        return size + (size >> 12) + (size >> 14) + (size >> 25) + 13


# Delta sends changes of the base in place of values. Before lossy numbers the change is a plain difference
# (see `chain`): it is smaller than the value, so rounding loses less. Alone, `write` and `read` are exact.

DELTA = "delta"


def write_delta(values: NDArray[np.float32], base: NDArray[np.float32]) -> Parts:
    """Encode the change of `values` from `base` exactly.

    It is the difference of the bit patterns, modulo 2**32, with its sign as the lowest bit: for two numbers
    of the same sign, the number of representable float32 numbers between them. Its high bytes are nearly all
    zero.
    """
    with np.errstate(over="ignore"):
        steps = (_bits(values) - _bits(base)).view(np.int32)
    folded: NDArray[np.int32] = (steps << 1) ^ (steps >> 31)
    return {MAIN: split_planes(folded.view(np.uint32).reshape(values.shape))}


def read_delta(parts: Parts, base: NDArray[np.float32]) -> NDArray[np.float32]:
    """The exact values that `write_delta` encoded. Raises TensorError for parts that it does not make."""
    folded = join_planes(parts[MAIN], "uint32", base.shape)
    with np.errstate(over="ignore"):
        steps = (folded >> np.uint32(1)) ^ (np.uint32(0) - (folded & np.uint32(1)))
        values: NDArray[np.float32] = (_bits(base) + steps.reshape(-1)).view(np.float32)
    return values.reshape(base.shape)


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bit patterns, flat (size,), as numpy 1 turns a shifted scalar or array without axes into int64."""
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return bits


class Half:
    """16-bit numbers: IEEE 754 binary16, rounded to the nearest, ties to even.

    11 bits of precision from 6e-5 to 65504. Smaller numbers lose bits; larger ones cannot be written.
    """

    name = "half"
    beside: tuple[str, ...] = ()

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        with np.errstate(over="ignore", under="ignore"):
            short = values.astype(np.float16)
        return {MAIN: split_planes(short)} if np.isfinite(short).all() else None

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        short: NDArray[np.float16] = join_planes(parts[MAIN], "float16", shape)
        return short.astype(np.float32)

    def size(self, values: int) -> float:
        return 2.0 * values


BLOCK = 256
"""Numbers that share one scale, which adds 1.6% of bytes."""
LEAST = 32
"""Fewest numbers to encode: with fewer, the name of the scales takes more bytes than is saved."""
SCALES = "scales"
TINY = np.finfo(np.float32).tiny
"""The smallest scale; numbers of a smaller one become 0, because only some processors flush it to zero."""


class Int8:
    """8-bit numbers: -127 to 127 times a float32 scale that BLOCK neighbours share.

    The largest number of a block becomes 127; the error is at most half a scale. Ties go to even.
    """

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
    """The numbers in rows (blocks, BLOCK), the last one filled up with zeros."""
    rows = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    rows.reshape(-1)[: values.size] = values.reshape(-1)
    return rows


def split_planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The numbers as byte planes, uint8 (bytes of a number, *shape), the lowest bytes first on every machine.

    High bytes are alike, so they pack well side by side.
    """
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    width = values.dtype.itemsize
    return np.ascontiguousarray(little.reshape(-1).view(np.uint8).reshape(-1, width).T).reshape(
        width, *values.shape
    )


def join_planes(planes: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of byte planes, in this dtype and shape. Raises TensorError for other planes."""
    width = np.dtype(dtype).itemsize
    if planes.dtype != np.uint8 or planes.shape != (width, *shape):
        raise TensorError(f"is {planes.dtype} {planes.shape}, expected uint8 {(width, *shape)}")
    rows = np.ascontiguousarray(planes.reshape(width, -1).T)
    little = rows.reshape(-1).view(np.dtype(dtype).newbyteorder("<"))
    numbers: NDArray[Any] = little.astype(dtype).reshape(shape)
    return numbers
