"""Robust rules for each value of the model by itself: median, trimmed mean, value clipping.

Median (Yin et al. 2018, Byzantine-robust distributed learning, definition 1): with fewer lying devices than
honest ones it is between the values of honest devices, however large a false value is. The weighted median
does so as long as lying devices have less than half of the weight.

Trimmed mean (same paper, definition 2): the largest and the smallest values are ignored, a share `trim` at
either end; the rest is averaged. It withstands as many lying devices as are ignored at one end.

Value clipping (one step of Huber 1964): each value is held within a bound around the median. The spread of a
value is its median distance from the median over the devices, times 1.4826: a normal distribution's standard
deviation. The mean of values held within `factor` spreads is nearly as exact as the plain mean when all are
honest, and a lying device moves it by at most `factor` spreads. With a stated bound, values are held within
that bound of where they started.
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
"""Relative tolerance within which a sum of weights counts as half of their total."""
NORMAL = 1.4826
"""A normal's standard deviation by its median absolute deviation."""


def median(values: Vector) -> Vector:
    """The median: float32 (devices, values) -> (values,); for an even number, the mean of the middle two."""
    half, odd = divmod(len(values), 2)
    if odd:
        middle: Vector = np.partition(values, half, axis=0)[half]
        return middle
    parted = np.partition(values, (half - 1, half), axis=0)
    mean: Vector = ((parted[half - 1].astype(np.float64) + parted[half]) / 2).astype(np.float32)
    return mean


def weighted_median(values: Vector, weights: Sequence[float]) -> Vector:
    """The weighted median: float32 (devices, values) -> (values,); `weights` (devices,).

    Half of the weight is below it and half above. If exactly half of the weight is at or below a value, it is
    the mean of that value and the next. Works on PIECE values at a time: sorting takes 24 more bytes for each
    value.
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


def trim_count(devices: int, share: float) -> int:
    """The number of values ignored at either end: at least this share, but one value always remains."""
    return min(ceil(share * devices - 1e-9), (devices - 1) // 2)


def trimmed_mean(values: Vector, share: float) -> Vector:
    """The trimmed mean: float32 (devices, values) -> (values,), summed in float64, the smallest first."""
    cut = trim_count(len(values), share)
    ordered = np.sort(values, axis=0)
    mean: Vector = ordered[cut : len(values) - cut].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass(frozen=True)
class Bounds:
    """The range `middle` +- `reach` that values are clipped to; both float32 (values,)."""

    middle: Vector
    reach: Vector

    def hold(self, values: Vector) -> Vector:
        """The values clipped, float32 (values,)."""
        inside: Vector = np.clip(values, self.middle - self.reach, self.middle + self.reach)
        return inside

    def is_far(self, values: Vector, times: float) -> bool:
        """Whether half of the values or more are further from `middle` than `times` the reach."""
        if not values.size:
            return False
        return bool(np.mean(np.abs(values - self.middle) > times * self.reach) >= 0.5)


def bounds_in(spool: Spool, fixed: float | None, factor: float) -> Bounds:
    """The bounds of every value: `fixed` around its start, or `factor` spreads around its median."""
    if fixed is not None:
        return Bounds(spool.starts, np.full_like(spool.starts, fixed))
    middle, reach = np.empty_like(spool.starts), np.empty_like(spool.starts)
    for where, values in spool.blocks():
        about = bounds(values, factor)
        middle[where], reach[where] = about.middle, about.reach
    return Bounds(middle, reach)


def bounds(values: Vector, factor: float) -> Bounds:
    """The bounds `factor` spreads around the median of values (devices, values)."""
    middle = median(values)
    with np.errstate(over="ignore"):  # false values can be further apart than a float32 holds
        reach: Vector = median(np.abs(values - middle)) * np.float32(factor * NORMAL)
    return Bounds(middle, reach)
