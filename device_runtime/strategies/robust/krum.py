"""Krum and Multi-Krum (Blanchard et al. 2017, Machine learning with adversaries, sections 4 and 6).

Of n updates, of which f may be false, each is scored by the sum of its squared distances to the n - f - 2
nearest others. Krum takes the update with the smallest score, Multi-Krum the mean of the n - f with the
smallest scores. Both need n >= 2 f + 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .spool import BUDGET, Spool


def most_liars(devices: int) -> int:
    """The largest f that n = `devices` updates withstand; below 0 for fewer than three updates."""
    return (devices - 3) // 2


def selected(scores: NDArray[np.float64], many: int) -> list[int]:
    """The indices of the `many` smallest scores, in rising order; of equal scores the first."""
    return sorted(np.argsort(scores, kind="stable")[:many].tolist())


def scores(spool: Spool, liars: int) -> NDArray[np.float64]:
    """The score of each update, float64 (devices,); `liars` is f, and n at least f + 3.

    Distances are computed for as many devices at a time as fit BUDGET, from products of the changes, summed
    over pieces of the model. Memory grows with the number of devices, not with the model.
    """
    count = len(spool)
    nearest = count - liars - 2
    step = max(1, BUDGET // (8 * count))
    totals = np.empty(count)
    for begin in range(0, count, step):
        end = min(begin + step, count)
        distances = _distances(spool, slice(begin, end), step)
        distances[np.arange(end - begin), np.arange(begin, end)] = np.inf  # not to itself
        near = np.partition(distances, nearest - 1, axis=1)[:, :nearest]
        totals[begin:end] = np.sort(near, axis=1).sum(axis=1)
    return totals


def _distances(spool: Spool, some: slice, width: int) -> NDArray[np.float64]:
    """Squared distances of some updates to all, |a|^2 + |b|^2 - 2 a b of their changes: (some, devices)."""
    count = len(spool)
    products = np.zeros((some.stop - some.start, count))
    squares = np.zeros(count)
    for where, values in spool.blocks(width=width):
        changes = values.astype(np.float64) - spool.starts[where]
        products += changes[some] @ changes.T
        squares += np.einsum("ij,ij->i", changes, changes)
    distances: NDArray[np.float64] = np.maximum(squares[some, None] + squares - 2 * products, 0)
    return distances
