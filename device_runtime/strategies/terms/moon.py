"""MOON: the features that the contrastive term compares a local model's with.

Li et al. 2021, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.strategies.training.device_half import LocalData


@dataclass(frozen=True)
class Contrast:
    """The fixed inputs of MOON's term: features of the samples at `indices`, float32 (len(indices), width).

    z_glob is by the base, z_prev by the model that this device trained last. Neither model changes while the
    device trains, so each sample passes through them once a round.
    """

    z_glob: NDArray[np.float32]
    z_prev: NDArray[np.float32]
    indices: NDArray[np.int64]
    mu: float
    tau: float

    def extras(self, batch: NDArray[np.int64]) -> Tensors:
        """The inputs of graph moon.SET for these samples, in addition to x and y (equations 3 and 4)."""
        rows = self._rows[batch]
        return {
            "z_glob": self.z_glob[rows],
            "z_prev": self.z_prev[rows],
            "mu": np.asarray(self.mu, np.float32),
            "tau": np.asarray(self.tau, np.float32),
        }

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """The row of each sample index in z_glob and z_prev."""
        rows = np.zeros(self.indices.max(initial=0) + 1, np.int64)
        rows[self.indices] = np.arange(len(self.indices))
        return rows


def features(
    model: DeviceModel, data: LocalData, indices: NDArray[np.int64], previous: Tensors
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """z_glob and z_prev (n, width) of the samples at `indices`; `model` holds the base, also afterwards.

    `previous` has the tensors that this device trained last; all others are the base's. If it is empty,
    z_prev is z_glob: the term is then constant, and the step is that of cross-entropy (the paper does not say
    what the first round compares with). Raises TensorError for tensors of another model.
    """
    x = data.x[indices]
    z_glob = model.features(x)
    if not previous:
        return z_glob, z_glob
    base = {name: model.weights[name] for name in previous}
    model.load(previous)
    try:
        return z_glob, model.features(x)
    finally:
        model.load(base)
