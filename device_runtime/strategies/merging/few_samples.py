"""A round that brings few samples moves the base by less.

With n the weight behind a tensor in a round and nbar its running mean, over the last rounds that trained it:

    w <- w + min(1, n / nbar) (mean - w)

The mean alone makes as long a step from five stragglers of one class as from a whole cohort, and in mixed
rounds the weight varies much by which devices were drawn, and which are late: a base was spoilt by a round in
which no device had trained all of it. A mean by weights that do not add up to 1 in each round, but do so over
rounds, is that of Li et al. 2020 (On the convergence of FedAvg on non-IID data); that no step becomes longer
is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors

from .tensor_mean import TensorMean

MEMORY = "few-samples"
"""Whose memory the running means are, beside those of the kinds."""
WINDOW = 10
"""Rounds that the running mean looks back on, about."""


def stepped(
    base: Tensors, joined: TensorMean, memory: Tensors
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """What the mean makes of the base's tensors, and the memory for the next round.

    Memory: nbar and the rounds behind it, float64 (2,), by the name of the tensor.
    """
    means, kept = joined.mean(), dict(memory)
    for name, mean in means.items():
        weight, (usual, rounds) = joined.behind(name), memory.get(name, np.zeros(2)).tolist()
        rounds = min(rounds + 1, WINDOW)
        usual += (weight - usual) / rounds
        kept[name] = np.array([usual, rounds])
        if name in base and weight < usual:
            means[name] = base[name] + np.float32(weight / usual) * (mean - base[name])
    return means, kept
