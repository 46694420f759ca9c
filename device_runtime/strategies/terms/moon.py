"""MOON: a contrastive term that compares the features of a local model with those of earlier models.

Li et al. 2021, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Workload
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.training.local_training import TrainingPlan
from device_runtime.strategies.training.workload import Training

from .dp_sgd import DpSgd
from .local_term import LocalTerm


@dataclass(frozen=True)
class Moon(LocalTerm):
    """MOON's contrastive term with weight mu and temperature tau (equations 3 and 4).

    A device keeps what it trained for the next time. Needs the training graphs of objective moon.
    """

    name: ClassVar[str] = "moon"
    about: ClassVar[str] = "contrasts features with the device's last (MOON: Li et al. 2021)"
    keeps_model: ClassVar[bool] = True
    mu: Annotated[float, Setting("Weight of the term.", 5.0, more_than=0)] = 1.0
    tau: Annotated[float, Setting("Temperature.", 1.0, more_than=0)] = 0.5

    def __post_init__(self) -> None:
        ranges.check(self)

    def apply(self, plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        weights = model.weights  # what the device kept may be of another member of the family
        fits = all(n in weights and v.shape == weights[n].shape for n, v in run.memory.items())
        z_glob, z_prev = features(model, data, plan.indices, run.memory if fits else {})
        contrast = Contrast(z_glob, z_prev, plan.indices, self.mu, self.tau)
        return replace(plan, objective="moon", extras=contrast.extras)

    def work(self, training: Training, load: Workload, samples: int) -> Training:
        """Two passes of each sample for its features, which are kept, and the last model."""
        memory_bytes = 4 * (2 * samples * load.feature_width + load.values(training.tunable))
        more = training.more_bytes + memory_bytes
        return replace(training, objective="moon", scored=training.scored + 2 * samples, more_bytes=more)

    def refusal(self, trained: str, others: Iterable[LocalTerm]) -> str:
        if trained == "head":
            return "training the head alone changes no features"
        if any(isinstance(other, DpSgd) for other in others):
            return (
                "its features come from runs of many samples, which a graph can mix, and dp-sgd bounds what "
                "each sample alone adds"
            )
        return ""


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
