"""Numbers of 8 bits: -127 to 127 times a float32 scale that BLOCK neighbours share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

from .codec import MAIN, Parts

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
