"""Random directions that are the same bits everywhere: a protocol, not a library's random stream.

Generator "philox4x64-popcount/1". Element i of direction p under seed s is

    (popcount(w_i) - 32) / 4,   w_i = word i mod 4 of Philox4x64-10(counter = i // 4 + 1, key = (s, p))

with Philox as defined by Salmon et al. 2011 (Random123), 64-bit words, and the counter in its first word.
A popcount of 64 fair bits is binomial with mean 32 and variance 16, so that elements have mean 0 and
variance 1, are close to normal, and are multiples of 1/4: integers up to the last step, exact in float32.
Any other implementation must give the golden vectors of tests/strategies/test_directions.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

GENERATOR = "philox4x64-popcount/1"
BLOCK = 1 << 16
"""Elements generated at a time; a multiple of 4, so that blocks begin at whole counters."""


class UnknownGenerator(ValueError):
    """A log or an offer names a generator that this version does not have."""


def check_generator(name: str) -> None:
    """Raises UnknownGenerator unless it is the one that this version has."""
    if name != GENERATOR:
        raise UnknownGenerator(f"directions from {name!r}; this version has {GENERATOR!r}: update it")


def direction(seed: int, index: int, start: int, size: int) -> NDArray[np.float32]:
    """Elements start .. start + size of direction `index` under `seed`, float32 (size,).

    0 <= seed < 2**64; `start` is a multiple of 4.
    """
    if start % 4:
        raise ValueError(f"a direction can be entered at multiples of 4, not at {start}")
    key = np.array([seed, index], np.uint64)
    words = np.random.Philox(key=key, counter=start // 4).random_raw(size)
    ones: NDArray[np.float32] = _popcount(words).astype(np.float32)
    ones -= 32
    ones /= 4
    return ones


def blocks(seed: int, index: int, size: int) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """The whole direction of `size` elements, block by block."""
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        yield slice(start, end), direction(seed, index, start, end - start)


def _popcount_in_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Set bits of each word, where numpy has no bitwise_count (before 2.0)."""
    ones, twos, fours = (np.uint64(m) for m in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    x = words - ((words >> np.uint64(1)) & ones)
    x = (x & twos) + ((x >> np.uint64(2)) & twos)
    x = (x + (x >> np.uint64(4))) & fours
    bits: NDArray[np.uint64] = (x * np.uint64(0x0101010101010101)) >> np.uint64(56)
    return bits


_popcount = getattr(np, "bitwise_count", _popcount_in_words)
