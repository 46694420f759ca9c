"""Norm clipping (Sun et al. 2019, Can you really backdoor federated learning?, section 4.2).

An update that changes the base by more than a bound is shortened to it, w + d min(1, bound / |d|): a liar
moves the mean by no more than an honest device may. Which way it moves it is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

from .spool import Spool


def norms(spool: Spool) -> NDArray[np.float64]:
    """How far each update is from what it is compared with, float64 (devices,)."""
    squares = np.zeros(len(spool))
    for where, values in spool.blocks():
        start = spool.starts[where].astype(np.float64)
        for place, row in enumerate(values):
            change = row - start
            squares[place] += change @ change
    return np.sqrt(squares)


def bound_of(lengths: NDArray[np.float64] | Sequence[float], fixed: float | None, factor: float) -> float:
    """The fixed bound, or `factor` times the median length."""
    return float(np.median(lengths)) * factor if fixed is None else fixed


def clipped(values: Vector, start: Vector, length: float, bound: float) -> Vector:
    """float32 (values,), not more than `bound` away from `start`; as they are where they are not now."""
    if length <= bound:
        return values
    change = values.astype(np.float64) - start
    change *= bound / length
    change += start
    return change.astype(np.float32)


def length_of(values: Vector) -> float:
    """Euclidean."""
    return float(np.linalg.norm(values.astype(np.float64)))
