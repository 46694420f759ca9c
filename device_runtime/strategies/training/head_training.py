"""How a kind trains the classifier alone, on features: said, so that many devices may be trained at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.training.optimizer import Sgd

from .device_half import Contribution, Run


@dataclass(frozen=True)
class HeadTraining:
    """One step for each batch of indices into the device's samples, by `optimizer`, from the base's head.

    `counted`: the first step whose loss is part of the contribution's. `clip_norm`: the largest norm of a
    step's gradient; 0: no limit.
    """

    batches: Sequence[NDArray[np.integer[Any]]]
    optimizer: Sgd
    counted: int = 0
    clip_norm: float = 0.0


@runtime_checkable
class TrainsHead(Protocol):
    """A kind whose `train` may be: features once, then a softmax head in these steps, then these tensors."""

    def trains_head(self, manifest: Manifest) -> bool:
        """Whether, for this bundle, `train` is that and nothing else."""

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        """The steps for a device with labels y (n,), which draw from `run` as `train` does."""


@runtime_checkable
class TakesFeatures(Protocol):
    """A kind whose `train` needs nothing of the model but the features of all samples."""

    def from_features(
        self, features: NDArray[np.float32], y: NDArray[np.int64], manifest: Manifest
    ) -> Contribution:
        """What `train` gives; features (n, width), y (n,)."""
