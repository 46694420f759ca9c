"""Norm clipping (Sun et al. 2019, Can you really backdoor federated learning?, section 4.2).

An update whose change d of the base w is longer than a bound is shortened to w + d min(1, bound / |d|), so
that a lying device moves the mean no further than an honest one can. The direction of d is not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

from .spool import Spool


def norms(spool: Spool) -> NDArray[np.float64]:
    """The Euclidean length of each update's change from its start, float64 (devices,)."""
    squares = np.zeros(len(spool))
    for where, values in spool.blocks():
        start = spool.starts[where].astype(np.float64)
        for place, row in enumerate(values):
            change = row - start
            squares[place] += change @ change
    return np.sqrt(squares)


def bound_of(lengths: NDArray[np.float64] | Sequence[float], fixed: float | None, factor: float) -> float:
    """The fixed bound; if it is None, `factor` times the median length."""
    return float(np.median(lengths)) * factor if fixed is None else fixed


def clip_to_norm(values: Vector, start: Vector, length: float, bound: float) -> Vector:
    """Values float32 (values,) at most `bound` from `start`; `length` is how far they are now."""
    if length <= bound:
        return values
    change = values.astype(np.float64) - start
    change *= bound / length
    change += start
    return change.astype(np.float32)


def length_of(values: Vector) -> float:
    """The Euclidean norm."""
    return float(np.linalg.norm(values.astype(np.float64)))
