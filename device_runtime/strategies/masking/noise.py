"""Adds discrete Gaussian noise to a sum of masks, for central differential privacy.

The discrete Gaussian of parameter s takes each integer y with a probability proportional to exp(-y^2 / 2s^2)
(Canonne, Kamath, Steinke 2020). Unlike rounded floating-point noise it has no gaps that tell of the sum
(Mironov 2012). It is drawn by rejection from a discrete Laplace distribution (their algorithm 3), for many
values at a time.

Probabilities are computed in float64, and compared with 64 random bits. Each is then right to a factor of
1 +- 2^-45, and to 2^-62: for a million values that adds 3e-8 to epsilon and 3e-13 to delta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, ldexp, log2

import numpy as np
from numpy.typing import NDArray

from .layout import CHECKS
from .masks import MaskedVector

RandomBytes = Callable[[int], bytes]
"""Makes so many random bytes, as os.urandom does."""
CHUNK = 1 << 16
"""Values that are drawn at a time."""
LEAST = 0.05
"""With a smaller parameter all but 2^-280 of the draws are zero."""
MOST = 2.0**27
"""The largest parameter: eight deviations fill the half of a value's range that sums leave free."""
_STEPS = 44
"""The most that a geometric number of ratio 1/e is taken to be; 2^-63 of them are more."""
_AT_LEAST = np.exp(-np.arange(_STEPS, 0, -1, dtype=np.float64)) * 2.0**64
"""64 random bits below the k-th entry from the end mean a geometric number of at least k."""


def add_noise(
    vector: MaskedVector, exponents: Sequence[tuple[int, int]], deviation: float, source: RandomBytes
) -> None:
    """Adds noise of parameter deviation 2^exponent to each run of (count, exponent) values, modulo 2^32.

    The last CHECKS values and the sums get none. deviation: in the units of a weight's change, times the
    update's weight in parts of `most_weight`. With noise of `deviation` in a sum, each weight of the group's
    mean has a noise of deviation / share, where share is the sum of the devices' weights in those parts
    (`SummedGroup.share`). k helpers add deviation / sqrt(k) each.

    Raises ValueError for counts that are not all values but the checks, and for a deviation that is negative,
    or more than MOST after scaling.
    """
    expected, counted = len(vector.values) - CHECKS, sum(count for count, _ in exponents)
    if counted != expected or any(count < 0 for count, _ in exponents):
        raise ValueError(f"exponents are of {counted} values, expected {expected}, in counts of 0 or more")
    scaled = [_scaled(deviation, exponent) for _, exponent in exponents]
    at = 0
    for (count, _), parameter in zip(exponents, scaled, strict=True):
        for start in range(at, at + count, CHUNK):
            size = min(CHUNK, at + count - start)
            drawn = discrete_gaussian(parameter, size, source)
            vector.values[start : start + size] += drawn.astype(np.uint32)
        at += count


def deviation_of(noise_milli: int, clip_milli: int) -> float:
    """Deviation of the noise in a sum, in units of a weight's change: multiplier times clipping norm."""
    return noise_milli * clip_milli / 1e6


def _scaled(deviation: float, exponent: int) -> float:
    try:
        scaled = ldexp(deviation, exponent)
    except OverflowError:
        scaled = inf
    if not 0 <= scaled <= MOST:
        raise ValueError(f"noise of {deviation:g} times 2^{exponent}, expected 0 to {MOST:g}")
    return scaled


def discrete_gaussian(parameter: float, count: int, source: RandomBytes) -> NDArray[np.int64]:
    """Draws from the discrete Gaussian of this parameter, 0 to MOST. int64 (count,)."""
    if parameter < LEAST:
        return np.zeros(count, np.int64)
    draws = np.empty(count, np.int64)
    at = 0
    while at < count:
        drawn = _tried(parameter, 2 * (count - at) + 16, source)[: count - at]
        draws[at : at + len(drawn)] = drawn
        at += len(drawn)
    return draws


def _tried(parameter: float, tries: int, source: RandomBytes) -> NDArray[np.int64]:
    """The accepted ones of so many draws from a discrete Laplace distribution of about this scale.

    A draw of width t is y = U + t V, with U uniform below t and V geometric of ratio 1/e. Its probability is
    proportional to exp(-V), so that it is accepted with probability exp(V - y^2 / 2s^2 - most), where most is
    the largest that the exponent would be without it.
    """
    bits = max(0, round(log2(parameter)))  # U takes whole bits: t is the power of two next to s
    ratio = 2.0**bits / parameter
    peak = np.rint(ratio**-2)
    most = peak - (ratio * peak) ** 2 / 2
    low, geometric, accept = (_uniform(tries, source) for _ in range(3))
    v = _STEPS - np.searchsorted(_AT_LEAST, geometric.astype(np.float64), side="right")
    y = (low & np.uint64((1 << bits) - 1)).astype(np.int64) + (v << bits)
    with np.errstate(over="ignore"):  # far beyond a small parameter: the probability is 0
        chance = np.exp(v - (y / parameter) ** 2 / 2 - most)
    negative = low >> np.uint64(63) == 1
    mask = (accept.astype(np.float64) * 2.0**-64 < chance) & ~(negative & (y == 0))  # zero once, not twice
    signed: NDArray[np.int64] = np.where(negative, -y, y)[mask]
    return signed


def _uniform(count: int, source: RandomBytes) -> NDArray[np.uint64]:
    return np.frombuffer(source(8 * count), "<u8", count).astype(np.uint64, copy=False)
