"""Few classes for each device: shards of sorted samples, or exactly n classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

from .dealing import Ints, Parts, dealt


def shards(y: NDArray[np.integer], devices: int, each: int, rng: np.random.Generator) -> Parts:
    """`each` shards for every device, of samples sorted by class (McMahan et al. 2017, section 3).

    All shards are equally large; the remainder, drawn at random, stays unused. A shard across the border of
    two classes has both. Raises DataSetError when a shard would be empty.
    """
    size = len(y) // (devices * each)
    if not size:
        raise DataSetError(f"{devices} devices of {each} shards need as many samples, the data has {len(y)}")
    used = rng.permutation(len(y))[: devices * each * size]
    order = used[np.argsort(y[used], kind="stable")].astype(np.int64)
    given = rng.permutation(devices * each).reshape(devices, each)
    return list(np.sort(order.reshape(devices * each, size)[given].reshape(devices, -1), axis=1))


def classes(
    y: NDArray[np.integer], devices: int, each: int, rng: np.random.Generator, most: int | None = None
) -> Parts:
    """Exactly `each` classes for every device, every class with as many devices as any other (within one).

    As in Shi's thesis, table 6.3, and "#C = k" of Li et al. 2022 (arXiv:2102.02079, section IV-B): who has a
    class shares it equally; the remainder stays unused. With `most`, a device keeps no more than that, in
    equal parts of its classes. Raises DataSetError when a device would be without one of its classes.
    """
    codes = np.unique(y, return_inverse=True)[1].astype(np.int64)
    pools = np.bincount(codes)
    if not 1 <= each <= len(pools):
        raise DataSetError(f"classes_per_client is {each}, the training data has {len(pools)} classes")
    holds = _holdings(devices, len(pools), each, rng)
    share = pools // np.maximum(holds.sum(0), 1)
    if (share[holds.any(0)] == 0).any():
        label = int(np.flatnonzero((share == 0) & holds.any(0))[0])
        raise DataSetError(
            f"class {np.unique(y)[label]} has {pools[label]} samples for {holds[:, label].sum()} devices: "
            "fewer devices or classes_per_client"
        )
    if most is not None:
        share = np.minimum(share, max(1, most // each))
    return dealt(codes, holds * share, rng)


def _holdings(devices: int, labels: int, each: int, rng: np.random.Generator) -> Ints:
    """Which classes each device has, 0 or 1, (devices, labels): always those that were given out least."""
    holds = np.zeros((devices, labels), np.int64)
    given = np.zeros(labels)
    ties = rng.random((devices, labels))
    for device in range(devices):
        chosen = np.argpartition(given + ties[device], each - 1)[:each]
        given[chosen] += 1
        holds[device, chosen] = 1
    return holds
