"""Changes of the base in place of values.

Before lossy numbers it is the difference: rounding loses as much less as it is smaller than the value. Alone
it is exact: the distance of the two float32 numbers in steps from one representable number to the next of the
same sign, whose high bytes are nearly all zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import planes
from .codec import MAIN, Parts

NAME = "delta"


def write(values: NDArray[np.float32], base: NDArray[np.float32]) -> Parts:
    """Exactly: the difference of the bit patterns, modulo 2**32, with its sign as the lowest bit."""
    with np.errstate(over="ignore"):
        steps = (_bits(values) - _bits(base)).view(np.int32)
    folded: NDArray[np.int32] = (steps << 1) ^ (steps >> 31)
    return {MAIN: planes.split(folded.view(np.uint32).reshape(values.shape))}


def read(parts: Parts, base: NDArray[np.float32]) -> NDArray[np.float32]:
    """The very values. Raises TensorError for parts that `write` does not make."""
    folded = planes.joined(parts[MAIN], "uint32", base.shape)
    with np.errstate(over="ignore"):
        steps = (folded >> np.uint32(1)) ^ (np.uint32(0) - (folded & np.uint32(1)))
        values: NDArray[np.float32] = (_bits(base) + steps.reshape(-1)).view(np.float32)
    return values.reshape(base.shape)


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """(size,): numpy 1 makes a shifted scalar an int64, and of an array without axes too."""
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return bits
