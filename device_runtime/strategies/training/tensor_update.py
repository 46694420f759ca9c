"""Base classes of kinds that train and send tensors: their settings, local training and mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, Work, Workload, predict
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.kind import StrategyDefaults, TakesCodec
from device_runtime.strategies.merging.aggregator_half import KindResult, RoundModel
from device_runtime.strategies.merging.tensor_mean import TensorMean
from device_runtime.strategies.settings import (
    BatchSize,
    LearningRate,
    LocalEpochs,
    Momentum,
    Setting,
    WeightDecay,
)
from device_runtime.strategies.terms import moon
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.terms.proximal import Proximal, fscprox

from . import local_training
from .device_half import LocalData, Run, TrainedUpdate
from .local_training import HeadTraining
from .workload import Training, head_specs, work_of_training

FEW_SHOT = "few-shot/"
"""Prefix of the names of a few-shot trained classifier's tensors, in updates that hold the model's too."""


ACCOUNTANT_BYTES = 75_000_000
"""Memory that the library for privacy accounting adds to a process (measured)."""


class Averaged(StrategyDefaults):
    """Base of kinds whose tensors are averaged, weighted by samples."""

    name: ClassVar[str]

    def start(self, model: RoundModel) -> TensorMean:
        return TensorMean()

    def fold(self, state: TensorMean, contribution: TrainedUpdate, weight: float) -> TensorMean:
        return state.add(contribution.tensors, weight)

    def finish(self, state: TensorMean, model: RoundModel) -> KindResult:
        """The mean over the updates that arrived, weighted by n_k (thesis 002, equation 2.4)."""
        return KindResult(mean=state, num_examples=state.most)


ProximalWeight = Annotated[
    float,
    Setting("FedProx: weight of the term that holds training near the base; 0: none.", 0.01, at_least=0),
]
ClipNorm = Annotated[
    float,
    Setting(
        "Largest norm of a step's gradient; 0: no limit.", example=1.0, unit="Euclidean norm", at_least=0
    ),
]


@dataclass(frozen=True)
class TrainingSettings(TakesCodec):
    """Settings of local SGD for `epochs` epochs, with optional terms; a term with weight 0 is off.

    mu: FedProx's term mu/2 * ||w - w_g||^2 (Li et al. 2020, equation 2).
    moon: weight of MOON's contrastive term, with temperature `moon_tau` (Li et al. 2021, equations 3 and 4);
    a device keeps what it trained for the next time. Needs graph moon.SET.
    mu_head: weight of the term mu_head * ||theta - anchor||^2 on the classifier alone (thesis 002, equation
    4.3). The anchor is the mean of the last few-shot trained classifiers (FSCProx; no term while there are
    none) or the classifier of the base (baseProx).
    clip_norm (ours): a bound on the norm of each step's gradient (Pascanu et al. 2013). Without it, local
    training of a network without normalisation diverges on some devices. Ignored with dp, which bounds each
    sample's gradient.
    dp: differential privacy in each step (`terms.dp_sgd`); the loss is then not sent. Not with moon, whose
    features come from runs of many samples.
    """

    epochs: LocalEpochs = 10
    lr: LearningRate = 0.1
    momentum: Momentum = 0.5
    weight_decay: WeightDecay = 1e-5
    batch: BatchSize = 64
    mu: ProximalWeight = 0.0
    clip_norm: ClipNorm = 2.0
    moon: Annotated[
        float, Setting("Weight of MOON's contrastive term; 0: none.", example=1.0, at_least=0)
    ] = 0.0
    moon_tau: Annotated[float, Setting("Temperature of MOON's term.", example=0.5, more_than=0)] = 0.5
    mu_head: Annotated[
        float,
        Setting("Weight of the term that holds the classifier to its anchor; 0: none.", 0.1, at_least=0),
    ] = 0.0
    head_anchor: Annotated[
        Literal["few-shot", "base"], Setting("The classifier that mu_head holds to.", example="base")
    ] = "few-shot"
    dp: Annotated[
        DpSgd | None, Setting("Differential privacy of local training; none: without.", {"epsilon": 5.0})
    ] = None

    def __post_init__(self) -> None:
        ranges.check(self)
        if self.moon and self.trained == "head":
            raise ValueError(f"moon is {self.moon:g}, but training the head alone changes no features")
        if self.moon and self.dp is not None:
            raise ValueError(
                f"moon is {self.moon:g} and dp is set: MOON's features come from runs of many samples, which "
                "a graph can mix, and dp bounds what each sample alone adds"
            )

    @property
    def trained(self) -> str:
        """The tunable set that is trained."""
        return "all"

    @property
    def rate(self) -> float:
        """The learning rate of local training."""
        return self.lr


@dataclass(frozen=True)
class TensorUpdate(TrainingSettings, Averaged):
    """Base of kinds that train a tunable set on all local samples, or some of them."""

    trains_extractor: ClassVar[bool] = True

    @property
    def plain(self) -> bool:
        """Whether training minimises cross-entropy alone: no proximal or contrastive term, no privacy."""
        return not (self.mu or self.moon or self.mu_head or self.dp is not None)

    def chosen(self, model: DeviceModel, data: LocalData, run: Run) -> NDArray[np.int64]:
        """Indices of the local samples to train on; `model` holds the base."""
        return np.arange(len(data))

    def ended(self, epochs: int) -> TensorUpdate:
        """The form that was done if training ended after `epochs` epochs."""
        return self

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        return predict(profile, self.work(workload), self.name)

    def work(self, workload: Workload) -> Work:
        """The work of training on all local samples."""
        return self.work_on(workload, workload.samples)

    def work_on(self, workload: Workload, samples: int, scored: int = 0) -> Work:
        """The work of training on `samples`, after a forward pass over `scored`.

        Includes MOON's features and the parameters that they are computed from, and the memory of the
        accountant of private training.
        """
        trained, objective = samples * self.epochs, "moon" if self.moon else "train"
        passed = scored + (2 * samples if self.moon else 0)
        private = self.dp is not None
        training = Training(
            self.trained, trained, passed, self.batch, objective, int(private), private, self.codec
        )
        work = work_of_training(workload, training)
        features = 4 * (2 * samples * workload.feature_width + workload.values(self.trained))
        more = (features if self.moon else 0) + (ACCOUNTANT_BYTES if private else 0)
        return replace(work, peak_bytes=work.peak_bytes + more) if more else work

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> TrainedUpdate:
        plan = self.plan(model, data, run)
        trained = local_training.train(model, data, plan, run)
        form, kept = self.ended(trained.epochs).form, trained.tensors if self.moon else None
        return TrainedUpdate(self.name, trained.tensors, len(plan.indices), trained.loss, form, kept)

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> local_training.TrainingPlan:
        plan = self._steps(self.chosen(model, data, run))
        plan = replace(plan, proximal=self._pulls(model, run), clip_norm=0.0 if self.dp else self.clip_norm)
        if self.dp is not None:
            privacy = self.dp.privacy(len(plan.indices), self.batch, self.epochs, run.noise())
            plan = replace(plan, privacy=privacy)
        if not self.moon:
            return plan
        z_glob, z_prev = moon.features(model, data, plan.indices, run.memory)
        contrast = moon.Contrast(z_glob, z_prev, plan.indices, self.moon, self.moon_tau)
        return replace(plan, objective="moon", extras=contrast.extras)

    def _steps(self, indices: NDArray[np.int64]) -> local_training.TrainingPlan:
        sgd = Sgd(self.rate, self.momentum, self.weight_decay)
        return local_training.TrainingPlan(sgd, self.epochs, self.batch, indices, self.trained)

    def _pulls(self, model: DeviceModel, run: Run) -> tuple[Proximal, ...]:
        weights, manifest = model.weights, model.manifest
        pulls: tuple[Proximal, ...] = ()
        if self.mu:
            pulls += (Proximal(self.mu, {name: weights[name] for name in manifest.names(self.trained)}),)
        if self.mu_head:
            names = [spec.name for spec in head_specs(manifest)]
            anchor = weights if self.head_anchor == "base" else few_shot_head(run.aside)
            pulls += (fscprox(self.mu_head, {name: anchor[name] for name in names if name in anchor}),)
        return pulls

    def trains_head(self, manifest: Manifest) -> bool:
        """See `TrainsHead`."""
        if not self.plain or self.trained not in manifest.sets:
            return False
        return manifest.specs(self.trained) == head_specs(manifest) and not manifest.statistics(self.trained)

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        """See `TrainsHead`."""
        plan = self._steps(np.arange(len(y)))
        batches, before = local_training.plan_batches(plan, run)
        sgd = Sgd(self.rate, self.momentum, self.weight_decay)
        return HeadTraining(batches, sgd, before, self.clip_norm)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return (*manifest.specs(self.trained), *manifest.statistics(self.trained))


def few_shot_head(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """The few-shot trained classifier among tensors, by the model's own names; empty if there is none."""
    found = {name: value for name, value in tensors.items() if name.startswith(FEW_SHOT)}
    return {name.removeprefix(FEW_SHOT): value for name, value in found.items()}
