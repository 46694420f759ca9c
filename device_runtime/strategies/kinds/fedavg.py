"""FedAvg: devices train the model on their own samples, and the aggregator averages it.

McMahan et al. 2017, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import with_others
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, Work, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import Comparable, MergedAtSite, Summable, TakesCodec
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import (
    BatchSize,
    ClipNormByBundle,
    LearningRate,
    Momentum,
    Setting,
    WeightDecay,
)
from device_runtime.strategies.terms.local_term import LocalTerm, applied, check_terms, priced
from device_runtime.strategies.training import local_training
from device_runtime.strategies.training.local_training import (
    HeadTraining,
    PartialEpochs,
    TrainingPlan,
    TrainingResult,
    follows_plan,
    train_by_plan,
)
from device_runtime.strategies.training.workload import Training, head_specs, work_of_training

CLIP_NORM = 2.0
CLIP_NORM_PRETRAINED = 0.5
"""Usual bounds on the norm of a step's gradient: in general, and to train all of a pre-trained network.

With the first, MobileNetV2 forgets in one round what it knew (`docs/kinds.md`).
"""


@dataclass(frozen=True)
class FedAvg(
    TakesCodec,
    Comparable,
    Summable,
    MergedAtSite,
    PartialEpochs,
    trains_extractor=True,
    reveals="a change of weights: few samples can be reconstructed",
):
    """Trains all parameters for `epochs` epochs of SGD; the base becomes the mean, weighted by samples.

    terms: what is added to the loss, as in FedProx, MOON and DP-SGD. clip_norm (ours): a bound on the
    norm of each step's gradient (Pascanu et al. 2013), see `clip_norm_for`. Without it, local training of a
    network without normalisation diverges on some devices. Defaults: thesis 002, table 4.1 (SGD lr 0.1,
    momentum 0.5, weight decay 1e-5, batch 64, E = 10).

    Kinds that train a part of the model, or on some samples, derive from this class and override `trained`
    and `chosen`.
    """

    name: ClassVar[str] = "full"
    about: ClassVar[KindInfo] = KindInfo("everything", "all parameters", "FedAvg: McMahan et al. 2017")
    mixed_round_settings: ClassVar[Settings] = {"graded": True, "weigh_epochs": True}
    lr: LearningRate = 0.1
    momentum: Momentum = 0.5
    weight_decay: WeightDecay = 1e-5
    batch: BatchSize = 64
    clip_norm: ClipNormByBundle = None
    terms: Annotated[
        tuple[LocalTerm, ...],
        Setting("Terms of the local objective, by name.", {"fedprox": {"mu": 0.1}}),
    ] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self)

    # The device's half

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        return predict(profile, self.work(workload), self.name)

    @follows_plan
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        return train_by_plan(self, model, data, run)

    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        memory = result.tensors if any(term.keeps_model for term in self.terms) else None
        sent = with_others(result.tensors, result.plan.beside)
        variant = self.ended(result.epochs).variant
        return Update(self.name, sent, len(result.plan.indices), result.loss, variant, memory)

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        steps = self._steps(self.chosen(model, data, run), self.clip_norm_for(model.manifest))
        return replace(applied(self.terms, steps, model, data, run), epochs=self.epochs_in(run))

    def clip_norm_for(self, manifest: Manifest) -> float:
        """`clip_norm`, or the usual one for this bundle if it is None."""
        if self.clip_norm is not None:
            return self.clip_norm
        whole = self.trained == "all" and not self.trains_head(manifest)
        return CLIP_NORM_PRETRAINED if manifest.pretrained and whole else CLIP_NORM

    def _steps(self, indices: NDArray[np.int64], clip_norm: float) -> TrainingPlan:
        """Training on the samples at these indices, without terms."""
        return TrainingPlan(
            self.sgd,
            self.epochs,
            self.batch,
            indices,
            self.trained,
            clip_norm=clip_norm,
            least=self.least,
        )

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (*manifest.specs(self.trained), *manifest.statistics(self.trained))

    # The aggregator's half

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, update: Update, weight: float) -> TensorMean:
        return state.add(update.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> KindResult:
        """The mean over the updates that arrived, weighted by n_k (thesis 002, equation 2.4)."""
        return KindResult(mean=state, num_examples=state.most)

    # What kinds that derive from this one change

    @property
    def trained(self) -> str:
        """The tunable set that is trained."""
        return "all"

    @property
    def sgd(self) -> Sgd:
        """The optimiser of local training."""
        return Sgd(self.lr, self.momentum, self.weight_decay)

    def chosen(self, model: DeviceModel, data: LocalData, run: Run) -> NDArray[np.int64]:
        """Indices of the local samples to train on; `model` holds the base."""
        return np.arange(len(data))

    def work(self, workload: Workload) -> Work:
        """The work of training on all local samples."""
        return self.work_on(workload, workload.samples)

    def work_on(self, workload: Workload, samples: int, scored: int = 0) -> Work:
        """The work of training on `samples`, after a forward pass over `scored`.

        With a copy of the parameters if training may end early.
        """
        copy_bytes = 4 * workload.values(self.trained) if self.least else 0
        training = Training(
            self.trained, samples * self.epochs, scored, self.batch, codec=self.codec, more_bytes=copy_bytes
        )
        return work_of_training(workload, priced(self.terms, training, workload, samples))

    @property
    def forwarded_as(self) -> Literal["update", "scalars", ""]:
        return "update" if type(self) is FedAvg else ""

    # Training of the classifier alone, which the simulation does for many devices at once

    def trains_head(self, manifest: Manifest) -> bool:
        """See `TrainsHead`."""
        plain = manifest.target.is_cross_entropy and not manifest.target.class_weights
        if self.terms or self.trained not in manifest.sets or not plain:
            return False
        return manifest.specs(self.trained) == head_specs(manifest) and not manifest.statistics(self.trained)

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        """See `TrainsHead`."""
        clip_norm = CLIP_NORM if self.clip_norm is None else self.clip_norm
        plan = replace(self._steps(np.arange(len(y)), clip_norm), epochs=self.epochs_in(run))
        batches, before = local_training.plan_batches(plan, run)
        return HeadTraining(batches, self.sgd, before, clip_norm)
