"""Numbers of 16 bits: IEEE 754 binary16, rounded to the nearest, ties to even."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import planes
from .codec import MAIN, Parts


class Half:
    """11 bits of precision from 6e-5 to 65504. Smaller numbers lose bits, larger ones cannot be written."""

    name = "half"
    beside: tuple[str, ...] = ()

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        with np.errstate(over="ignore", under="ignore"):
            short = values.astype(np.float16)
        return {MAIN: planes.split(short)} if np.isfinite(short).all() else None

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        short: NDArray[np.float16] = planes.joined(parts[MAIN], "float16", shape)
        return short.astype(np.float32)

    def size(self, values: int) -> float:
        return 2.0 * values
