"""Which samples each of the demo's devices holds: the slow ones every sample of digits of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation import partition
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.digits import Split

from .fleet import Member, holders

ALPHA = 0.3


def divided(
    y: NDArray[np.int64], fleet: tuple[Member, ...], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Indices into the training samples for each member, sorted: all of its own digits, or a part of those
    that are nobody's alone, by Dirichlet(ALPHA) in equal numbers.
    """
    shared, *_ = holders(fleet)
    common = np.flatnonzero(np.isin(y, shared.digits))
    dealt = iter(partition.dirichlet(y[common], len(shared.members), ALPHA, rng))
    return [np.flatnonzero(np.isin(y, one.digits)) if one.digits else common[next(dealt)] for one in fleet]


def data_set(split: Split) -> DataSet:
    """The same samples as the simulator takes them."""
    labels = tuple(str(digit) for digit in range(10))
    return DataSet(split.train.x, split.train.y, split.test.x, split.test.y, labels)
