"""MOON: the features that a local model's are compared with (Li et al. 2021, section 3.3)."""

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
    """Of the samples at `indices`, each once, in this order: float32 (len(indices), width).

    z_glob by the base, z_prev by what this device trained last. Both models stay as they are while a device
    trains, so that each sample passes through them once a round.
    """

    z_glob: NDArray[np.float32]
    z_prev: NDArray[np.float32]
    indices: NDArray[np.int64]
    mu: float
    tau: float

    def extras(self, batch: NDArray[np.int64]) -> Tensors:
        """What the graphs `moon.SET` take for these samples beside x and y (equations 3 and 4)."""
        rows = self._rows[batch]
        return {
            "z_glob": self.z_glob[rows],
            "z_prev": self.z_prev[rows],
            "mu": np.asarray(self.mu, np.float32),
            "tau": np.asarray(self.tau, np.float32),
        }

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """Where the sample of each index is."""
        rows = np.zeros(self.indices.max(initial=0) + 1, np.int64)
        rows[self.indices] = np.arange(len(self.indices))
        return rows


def features(
    model: DeviceModel, data: LocalData, indices: NDArray[np.int64], previous: Tensors
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """z_glob and z_prev (n, width) of the samples at `indices`; `model` holds the base, and does so again.

    `previous` has what this device trained last, of a model whose other tensors are the base's. Where there
    is nothing yet z_prev is z_glob: the term is then a constant, and the step that of cross-entropy (what the
    first round compares with is not in the paper). Raises TensorError for tensors of another model.
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
