"""Sound at another rate: a windowed sinc, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ZEROS = 16
"""Zero crossings of the sinc on each side, under a Hann window."""
SHARE = 0.95
"""Of the lower one of the two bands that is kept."""
BLOCK = 2048


def resampled(samples: NDArray[np.float32], rate: int, wanted: int, count: int) -> NDArray[np.float32]:
    """The first `count` samples (n,) at rate `wanted`, or as many as there are; zeros lie around them."""
    count = min(count, -(-len(samples) * wanted // rate))
    if rate == wanted:
        return samples[:count]
    width = SHARE * min(1.0, wanted / rate)  # of the band, in the samples' own
    reach = int(np.ceil(ZEROS / width))
    padded = np.pad(samples.astype(np.float64), reach + 1)
    steps = np.arange(-reach, reach + 1)
    made = np.empty(count, np.float32)
    for begin in range(0, count, BLOCK):
        times = np.arange(begin, min(begin + BLOCK, count)) * rate  # in units of 1 / wanted
        nearest = (times + wanted // 2) // wanted
        phases, which = np.unique(times - nearest * wanted, return_inverse=True)  # as few as the ratio has
        away = (phases / wanted)[:, None] - steps
        window = np.cos(np.pi / 2 * np.clip(away / (reach + 1), -1, 1)) ** 2
        weights = width * np.sinc(width * away) * window
        taken = padded[np.minimum(nearest[:, None] + steps + reach + 1, len(padded) - 1)]
        made[begin : begin + BLOCK] = np.einsum("ij,ij->i", weights[which], taken)
    return made


def needed(count: int, rate: int, wanted: int) -> int:
    """How many samples at `rate` the first `count` at `wanted` depend on."""
    if rate == wanted:
        return count
    reach = int(np.ceil(ZEROS / (SHARE * min(1.0, wanted / rate))))
    return -(-count * rate // wanted) + reach + 2
