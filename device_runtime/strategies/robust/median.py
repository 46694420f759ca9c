"""The coordinate-wise median (Yin et al. 2018, Byzantine-robust distributed learning, definition 1).

Each value of the model becomes the median over the devices: with fewer liars than honest devices it lies
between the values of honest ones, however large a lie is. The weighted one lies between the values of honest
devices as long as the liars have less than half of the weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

PIECE = 1 << 18
"""Values that are sorted at a time."""
ROUNDING = 1e-12
"""Relative: a sum of weights that is this near to half of all of it is half."""


def median(values: Vector) -> Vector:
    """float32 (devices, values) -> (values,); of an even number the mean of the two in the middle."""
    half, odd = divmod(len(values), 2)
    if odd:
        middle: Vector = np.partition(values, half, axis=0)[half]
        return middle
    parted = np.partition(values, (half - 1, half), axis=0)
    mean: Vector = ((parted[half - 1].astype(np.float64) + parted[half]) / 2).astype(np.float32)
    return mean


def weighted_median(values: Vector, weights: Sequence[float]) -> Vector:
    """float32 (devices, values) -> (values,): where half of the weight (devices,) lies below and half above.

    Where a value has exactly half of it at or below itself, the mean of that and the next. A piece of the
    values at a time: sorting holds 24 bytes beside each.
    """
    step = max(1, PIECE // len(values))
    parts = (values[:, begin : begin + step] for begin in range(0, values.shape[1], step))
    whole: Vector = np.concatenate([_weighted(part, np.asarray(weights, np.float64)) for part in parts])
    return whole


def _weighted(values: Vector, weights: NDArray[np.float64]) -> Vector:
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0)
    half = reached[-1] / 2
    low = (reached >= half * (1 - ROUNDING)).argmax(axis=0)
    high = (reached > half * (1 + ROUNDING)).argmax(axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    ends = (np.take_along_axis(ordered, place[None], axis=0)[0].astype(np.float64) for place in (low, high))
    mean: Vector = (sum(ends) / 2).astype(np.float32)
    return mean
