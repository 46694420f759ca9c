"""IID and Dirichlet: each device draws from a mixture of the classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .dealing import Ints, Parts, dealt, repaired
from .quantity import EQUAL, Sizes

Floats = NDArray[np.float64]

LAST_RESORT = 1e-9
"""Probability that every class has at least: drawn when nothing else is left."""


def iid(samples: int, devices: int, rng: np.random.Generator, wanted: Sizes = EQUAL) -> Parts:
    """A random division of `samples` samples. Raises DataSetError when they are too few."""
    sizes = wanted.draw(samples, devices, rng)
    return dealt(np.zeros(samples, np.int64), sizes[:, None], rng, wanted.reuse)


def dirichlet(
    y: NDArray[np.integer],
    devices: int,
    alpha: float,
    rng: np.random.Generator,
    wanted: Sizes = EQUAL,
) -> Parts:
    """Equally many for each device (or as `wanted`), classes mixed by a draw of Dirichlet(alpha).

    As in Hsu et al. 2019 (arXiv:1909.06335), section 3.1: each device draws its own class mixture and then
    its samples without replacement; a class that has run out is left out of the mixture. The remainder of
    len(y) / devices stays unused. Raises DataSetError when there are too few samples.
    """
    sizes = wanted.draw(len(y), devices, rng)
    codes = _codes(y)
    pools = np.bincount(codes)
    mixtures = rng.dirichlet(np.full(len(pools), alpha), devices) + LAST_RESORT
    counts = _drawn(mixtures / mixtures.sum(1, keepdims=True), sizes, pools, rng, wanted.reuse)
    return dealt(codes, counts, rng, wanted.reuse)


def dirichlet_by_class(
    y: NDArray[np.integer], devices: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> Parts:
    """Each class is divided among the devices by a draw of Dirichlet(alpha): sizes differ as well.

    Li et al. 2022 ("NIID-Bench", arXiv:2102.02079, section IV-B; Yurochkin et al. 2019). They draw again
    until every device has enough, which does not end for many devices; here a device with fewer than `least`
    is given single samples by those who have most. All samples are used; len(y) >= devices * least.
    """
    codes = _codes(y)
    pools = np.bincount(codes)
    shares = rng.dirichlet(np.full(devices, alpha), len(pools))  # (classes, devices)
    ends = np.rint(np.cumsum(shares, axis=1) * pools[:, None]).astype(np.int64)
    ends[:, -1] = pools
    counts = np.diff(ends, axis=1, prepend=0).T
    return dealt(codes, repaired(counts, least), rng)


def _codes(y: NDArray[np.integer]) -> Ints:
    codes: Ints = np.unique(y, return_inverse=True)[1].astype(np.int64)
    return codes


def _drawn(mixtures: Floats, sizes: Ints, pools: Ints, rng: np.random.Generator, reuse: bool) -> Ints:
    """Samples of each class for each device, (devices, classes), within the pools, (classes,).

    Draws of a class that has none left are made again among the others: the same distribution as drawing
    one by one. With `reuse` each device finds the pools full.
    """
    counts: Ints = rng.multinomial(sizes, mixtures)
    left = pools.copy()
    for device in range(len(counts)):
        taken = counts[device]
        if (taken > left).any():
            counts[device] = taken = _within(taken, left, mixtures[device], rng)
        if not reuse:
            left -= taken
    return counts


def _within(taken: Ints, left: Ints, mixture: Floats, rng: np.random.Generator) -> Ints:
    size = taken.sum()
    while (taken > left).any():
        taken = np.minimum(taken, left)
        open_ones = mixture * (taken < left)
        taken = taken + rng.multinomial(size - taken.sum(), open_ones / open_ones.sum())
    return taken
