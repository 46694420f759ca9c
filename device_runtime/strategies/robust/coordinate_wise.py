"""The coordinate-wise median (Yin et al. 2018, Byzantine-robust distributed learning, definition 1).

Each value of the model becomes the median over the devices: with fewer liars than honest devices it lies
between the values of honest ones, however large a lie is. The weighted one lies between the values of honest
devices as long as the liars have less than half of the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

from .spool import Spool

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


# FROM trimmed_mean: The coordinate-wise trimmed mean (Yin et al. 2018, Byzantine-robust distributed
# learning, definition 2).
#
# Of each value the largest and the smallest are left out, a share `trim` at either end; the rest is averaged.
# It stands as many liars as are left out at one end.


def trimmed(devices: int, share: float) -> int:
    """How many values are left out at either end: at least this share, as long as one is left."""
    return min(ceil(share * devices - 1e-9), (devices - 1) // 2)


def trimmed_mean(values: Vector, share: float) -> Vector:
    """float32 (devices, values) -> (values,), averaged in float64 in the order of size."""
    cut = trimmed(len(values), share)
    ordered = np.sort(values, axis=0)
    mean: Vector = ordered[cut : len(values) - cut].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


# FROM value_clip: Clipping value by value: each is held within a bound of where the others are (Huber 1964,
# in one step).
#
# The middle of a value is its median over the devices, its spread the median distance from that, times
# 1.4826:
# a normal's standard deviation. Of values held within `factor` spreads the mean is nearly as exact as that of
# all where nobody lies, and a liar moves it by no more than `factor` spreads. With a bound that is stated,
# values are held within that of where they started.

NORMAL = 1.4826
"""A normal's standard deviation by its median absolute deviation."""


@dataclass(frozen=True)
class Bounds:
    """Values are held to `middle` +- `reach`; both float32 (values,)."""

    middle: Vector
    reach: Vector

    def hold(self, values: Vector) -> Vector:
        """float32 (values,), held."""
        held: Vector = np.clip(values, self.middle - self.reach, self.middle + self.reach)
        return held

    def is_far(self, values: Vector, times: float) -> bool:
        """Whether half of the values or more are further off than so many times the reach."""
        if not values.size:
            return False
        return bool(np.mean(np.abs(values - self.middle) > times * self.reach) >= 0.5)


def bounds_in(spool: Spool, fixed: float | None, factor: float) -> Bounds:
    """Of every value: `fixed` about its start, or `factor` spreads about its median."""
    if fixed is not None:
        return Bounds(spool.starts, np.full_like(spool.starts, fixed))
    middle, reach = np.empty_like(spool.starts), np.empty_like(spool.starts)
    for where, values in spool.blocks():
        about = bounds(values, factor)
        middle[where], reach[where] = about.middle, about.reach
    return Bounds(middle, reach)


def bounds(values: Vector, factor: float) -> Bounds:
    """`factor` spreads about the median of values (devices, values)."""
    middle = median(values)
    with np.errstate(over="ignore"):  # of lies that are further apart than a float32 can be
        reach: Vector = median(np.abs(values - middle)) * np.float32(factor * NORMAL)
    return Bounds(middle, reach)
