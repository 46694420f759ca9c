"""Pictures of another size: the largest part in the middle of the wanted proportions, bilinear.

Enlarged, each value is interpolated between its neighbours; reduced, it is the mean of all that it covers,
with weights that fall linearly (the filter of Pillow's BILINEAR, which prepares pictures of simulations).
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def resized(pixels: NDArray[Any], height: int, width: int) -> Floats:
    """pixels (h, w, channels) -> (height, width, channels)."""
    rows, columns, channels = pixels.shape
    if (rows, columns) == (height, width):
        return pixels.astype(np.float32)
    tall, wide = min(rows, columns * height / width), min(columns, rows * width / height)
    upright = _along(pixels.reshape(rows, -1), tall, height).reshape(height, columns, channels)
    across = upright.transpose(1, 0, 2).reshape(columns, -1)
    made: Floats = _along(across, wide, width).reshape(width, height, channels).transpose(1, 0, 2)
    return made


def _along(lines: NDArray[Any], length: float, size: int) -> Floats:
    """lines (n, values): the `length` of them in the middle as `size` lines."""
    count, step = len(lines), length / size
    begin, reach = (count - length) / 2, max(length / size, 1.0)
    made = np.empty((size, lines.shape[1]), np.float32)
    for number in range(size):
        centre = begin + (number + 0.5) * step
        low, high = max(0, floor(centre - reach + 0.5)), min(count, floor(centre + reach + 0.5))
        weights = np.maximum(0.0, 1 - np.abs(np.arange(low, high) + 0.5 - centre) / reach)
        made[number] = (weights / weights.sum()).astype(np.float32) @ lines[low:high].astype(np.float32)
    return made
