"""Random directions that are the same bits on every device, by a protocol that is defined here.

No library's random stream is part of the protocol. All directions are made of the 64-bit words of
Philox4x64-10 as defined by Salmon et al. 2011 (Random123), with the counter in its first word: word j of
direction p under seed s is

    word j mod 4 of Philox4x64-10(counter = j // 4 + 1, key = (s, p))

"philox4x64-popcount/1": element i is (popcount(word i) - 32) / 4. A popcount of 64 fair bits is binomial
with mean 32 and variance 16, so that elements have mean 0 and variance 1, are close to normal, and are
multiples of 1/4: integers up to the last step, exact in float32.

"philox4x64-rademacher/1": element i is 1 where bit i mod 64 of word i // 64 is set, the least significant
being bit 0, and -1 elsewhere. It takes a 64th of the words.

Any other implementation must give the golden vectors of tests/strategies/directions/test_directions.py.

The same words draw `Projection`, a fixed random projection of wide features.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.strategies.settings import Setting

Words = NDArray[np.uint64]
Elements = NDArray[np.float32]

GENERATOR = "philox4x64-popcount/1"
RADEMACHER = "philox4x64-rademacher/1"
BLOCK = 1 << 15
"""Elements generated at a time, which fit in the cache; a whole number of counters of any generator."""

_WORDS_OF_A_COUNTER = 4


class UnknownGenerator(ValueError):
    """Raised if a log or an offer names a generator that this version does not have."""


@dataclass(frozen=True)
class Generator:
    """How random words become elements: `elements` takes words uint64 (n,) and gives (n * per_word,)."""

    per_word: int
    elements: Callable[[Words], Elements]

    @property
    def per_counter(self) -> int:
        """Elements of one counter: generation can start at multiples of it."""
        return self.per_word * _WORDS_OF_A_COUNTER


def check_generator(name: str) -> None:
    """Raises UnknownGenerator unless this version has a generator of this name."""
    if name not in GENERATORS:
        names = ", ".join(map(repr, GENERATORS))
        raise UnknownGenerator(f"directions from {name!r}; this version has {names}: update it")


def direction(seed: int, index: int, start: int, size: int, generator: str = GENERATOR) -> Elements:
    """Elements start .. start + size of direction `index` under `seed`, float32 (size,).

    0 <= seed < 2**64. Raises UnknownGenerator, and ValueError unless `start` is at a whole counter.
    """
    check_generator(generator)
    recipe = GENERATORS[generator]
    if start % recipe.per_counter:
        raise ValueError(f"a direction can be entered at multiples of {recipe.per_counter}, not at {start}")
    words = _stream.words((seed, index), start // recipe.per_counter, -(-size // recipe.per_word))
    return recipe.elements(words)[:size]


def words(seed: int, index: int, size: int) -> Words:
    """The first words of direction `index` under `seed`, uint64 (size,)."""
    return _stream.words((seed, index), 0, size)


def blocks(seed: int, index: int, size: int, generator: str = GENERATOR) -> Iterator[tuple[slice, Elements]]:
    """The whole direction of `size` elements, block by block."""
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        yield slice(start, end), direction(seed, index, start, end - start, generator)


class _Stream(threading.local):
    """One bit generator for each thread, set to any place: a new one would ask the system for entropy."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(0)
        self._state: Any = dict(self._philox.state)

    def words(self, key: tuple[int, int], counter: int, size: int) -> Words:
        """`size` words under `key`, from `counter` on, uint64 (size,)."""
        place = {"counter": np.array([counter, 0, 0, 0], np.uint64), "key": np.array(key, np.uint64)}
        self._state |= {"state": place, "buffer_pos": _WORDS_OF_A_COUNTER}
        self._philox.state = self._state
        words: Words = self._philox.random_raw(size)
        return words


_stream = _Stream()


def _popcount_in_words(words: Words) -> Words:
    """The number of set bits in each word; for numpy before 2.0, which has no bitwise_count."""
    ones, twos, fours = (np.uint64(m) for m in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    high = words >> np.uint64(1)
    high &= ones
    bits: Words = words - high
    np.right_shift(bits, np.uint64(2), out=high)
    high &= twos
    bits &= twos
    bits += high
    np.right_shift(bits, np.uint64(4), out=high)
    bits += high
    bits &= fours
    bits *= np.uint64(0x0101010101010101)
    bits >>= np.uint64(56)
    return bits


_popcount = getattr(np, "bitwise_count", _popcount_in_words)


def _normal_like(words: Words) -> Elements:
    ones: Elements = _popcount(words).astype(np.float32)
    ones -= 32
    ones *= np.float32(0.25)
    return ones


_SIGNS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, 1, -1).astype(np.float32)
"""(256, 8): the elements of each byte."""


def _signs(words: Words) -> Elements:
    codes = words.astype("<u8", copy=False).view(np.uint8)
    return _SIGNS.take(codes, axis=0).reshape(-1)  # eight times as fast as _SIGNS[codes]


GENERATORS = {GENERATOR: Generator(1, _normal_like), RADEMACHER: Generator(64, _signs)}
RandomDirections = Annotated[
    str,
    Setting("How random directions are made: near normal, or signs.", RADEMACHER, choices=tuple(GENERATORS)),
]


Number = TypeVar("Number", bound=np.floating[Any])


@dataclass(frozen=True)
class Projection:
    """A fixed random projection R of `width` features onto at most `most`: feature hashing.

    Each feature is added, with a random sign, to one of `size` sums; of d features and k sums, every sum has
    d / k features, rounded up or down. Inner products keep their value in the mean (Weinberger et al. 2009),
    and it costs one addition a feature. Order and signs are drawn from `seed` by the words of `directions`,
    which are the same bits everywhere. `most` features or fewer are left as they are.
    """

    width: int
    most: int
    seed: int

    @property
    def size(self) -> int:
        """How many features there are after projecting."""
        return min(self.width, self.most)

    @property
    def changes(self) -> bool:
        """Whether there are more than `most` features."""
        return self.width > self.most

    def project(self, features: NDArray[Number]) -> NDArray[Number]:
        """f R: (n, width) -> (n, size), linear."""
        if not self.changes:
            return features
        sums = np.zeros((len(features), self.size), features.dtype)
        for part, signs in self._parts():
            sums[:, : len(part)] += features[:, part] * signs
        return sums

    def back(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """W R': weights (n, size) for projected features -> (n, width), for the features themselves."""
        if not self.changes:
            return weights
        whole = np.empty((len(weights), self.width))
        for part, signs in self._parts():
            whole[:, part] = weights[:, : len(part)] * signs
        return whole

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Groups of up to `size` features, of which the i-th goes to sum i, and their signs."""
        order, signs = self._drawn
        for begin in range(0, self.width, self.size):
            part = order[begin : begin + self.size]
            yield part, signs[part]

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        order = np.argsort(words(self.seed, 0, self.width), kind="stable")
        return order, direction(self.seed, 1, 0, self.width, RADEMACHER)


@lru_cache(maxsize=16)
def projection(width: int, most: int, seed: int) -> Projection:
    """A `Projection`, cached because drawing it takes longer than projecting."""
    return Projection(width, most, seed)
