"""Clipping value by value: each is held within a bound of where the others are (Huber 1964, in one step).

The middle of a value is its median over the devices, its spread the median distance from that, times 1.4826:
a normal's standard deviation. Of values held within `factor` spreads the mean is nearly as exact as that of
all where nobody lies, and a liar moves it by no more than `factor` spreads. With a bound that is stated,
values are held within that of where they started.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from device_runtime.models.bundles.tensors import Vector

from .median import median
from .spool import Spool

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
