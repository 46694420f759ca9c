"""Full updates: FedAvg (McMahan et al. 2017, algorithm 1) and FedProx (Li et al. 2020, equation 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from models.engine import DeviceModel
from models.manifest import Manifest
from models.optimizer import Sgd
from models.proximal import Proximal
from models.tensors import TensorSpec
from profiles import Cost, DeviceProfile, Workload, predict

from . import local_training, ranges
from .head_training import HeadTraining
from .kind import Contribution, Effect, LocalData, RoundModel, Run, Usual
from .tensor_mean import TensorMean
from .workload import head_specs, training_work


@dataclass(frozen=True)
class Full(Usual):
    """Every parameter, trained for `epochs` local epochs. `mu > 0` adds FedProx's mu/2 * ||w - w_g||^2.

    `reduced_epochs > 0` lets a device that cannot afford `epochs` train that many: FedAvg+, FedProx+ (thesis
    002, section 4.4: stragglers run E_r = 1 epochs instead of being dropped).
    `clip_norm > 0` bounds the norm of each step's gradient, which recurrent networks need.
    Defaults: thesis 002, table 4.1 (SGD lr 0.1, momentum 0.5, weight decay 1e-5, batch 64, E = 10).
    """

    name: ClassVar[str] = "full"
    epochs: int = 10
    lr: float = 0.1
    momentum: float = 0.5
    weight_decay: float = 1e-5
    batch: int = 64
    mu: float = 0.0
    clip_norm: float = 0.0
    reduced_epochs: int = 0

    def __post_init__(self) -> None:
        ranges.counts(epochs=self.epochs, batch=self.batch)
        if self.reduced_epochs:
            ranges.counts(self.epochs, reduced_epochs=self.reduced_epochs)
        ranges.positive(lr=self.lr)
        ranges.not_negative(weight_decay=self.weight_decay, mu=self.mu, clip_norm=self.clip_norm)
        ranges.momentum(self.momentum)

    @property
    def form(self) -> str:
        return f"epochs={self.epochs}" if self.reduced_epochs == self.epochs else ""

    def variants(self) -> tuple[Full, ...]:
        if self.reduced_epochs in (0, self.epochs):
            return (self,)
        return replace(self, reduced_epochs=0), replace(self, epochs=self.reduced_epochs)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        trained = workload.samples * self.epochs
        return predict(profile, training_work(workload, "all", trained, batch=self.batch), self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        trained = local_training.train(model, data, self.plan(model, data), run)
        return Contribution(self.name, trained.tensors, len(data), trained.loss)

    def plan(self, model: DeviceModel, data: LocalData) -> local_training.Epochs:
        plan = self._plan(len(data))
        return replace(plan, proximal=self._proximal(model), clip_norm=self.clip_norm)

    def trains_head(self, manifest: Manifest) -> bool:
        alone = manifest.specs("all") == head_specs(manifest) and not manifest.statistics("all")
        return alone and not self.mu and not self.clip_norm

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        batches, before = local_training.steps(self._plan(len(y)), run)
        return HeadTraining(batches, self._sgd, counted=before)

    def _plan(self, samples: int) -> local_training.Epochs:
        return local_training.Epochs(self._sgd, self.epochs, self.batch, np.arange(samples))

    @property
    def _sgd(self) -> Sgd:
        return Sgd(self.lr, self.momentum, self.weight_decay)

    def _proximal(self, model: DeviceModel) -> tuple[Proximal, ...]:
        if not self.mu:
            return ()
        weights = model.weights
        return (Proximal(self.mu, {name: weights[name] for name in model.manifest.names("all")}),)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (*manifest.specs("all"), *manifest.statistics("all"))

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, contribution: Contribution, weight: float) -> TensorMean:
        return state.add(contribution.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> Effect:
        """The mean, weighted by n_k, over the updates that arrived (thesis 002, equation 2.4)."""
        return Effect(mean=state, num_examples=max(state.weights.values(), default=0.0))
