"""FedFSC: few-shot updates of the classifier on a frozen extractor (thesis 002, algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, GraphPass, Work, Workload, predict
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import Comparable, MergedAtSite, Summable, TakesCodec
from device_runtime.strategies.interface.device_half import FEW_SHOT, LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings, Strategy
from device_runtime.strategies.settings import (
    MOST,
    BatchSize,
    LearningRate,
    LocalEpochs,
    Momentum,
    Setting,
    WeightDecay,
)
from device_runtime.strategies.training.local_training import HeadTraining, follows_plan
from device_runtime.strategies.training.workload import forward_work, head_specs


@dataclass(frozen=True)
class HeadMeans:
    """The means of a round's classifiers: unweighted, and weighted by samples."""

    plain: TensorMean = field(default_factory=TensorMean)
    by_samples: TensorMean = field(default_factory=TensorMean)


@dataclass(frozen=True)
class FewShot(
    TakesCodec,
    Comparable,
    Summable,
    MergedAtSite,
    Strategy[HeadMeans],
    by_class=True,
    computes_features=True,
    reveals="a change of the classifier: which classes there are, their features",
):
    """Trains the classifier alone; each epoch draws `shots` new samples of each class (equation 4.1).

    The served model is {theta_fs, phi^t}: the plain mean of the classifiers (equation 4.2) on the extractor
    that was *distributed*; theta_fs never becomes the base. With `join_base` the classifiers are averaged
    into the base as well, weighted by samples, with those of other kinds, and the served model is the base
    (ours: for rounds in which only some devices send few-shot updates). With `send_mean` theta_fs is sent to
    the devices with the next base, for the term of FSCProx (`terms.proximal.FscProx`).
    The kind is unfit for a device with fewer than `least_samples` (ours): its class means teach as much.
    Defaults: table 4.1 (SGD lr 0.01, momentum 0.9, weight decay 1e-3, batch 4, E_fs = 10, shots = 10).
    """

    name: ClassVar[str] = "few-shot"
    about: ClassVar[KindInfo] = KindInfo(
        "the classifier, on a few samples of each class",
        "the classifier",
        "FedFSC: Shi 2025 (PhD thesis, Sheffield), chapter 4",
    )
    mixed_round_settings: ClassVar[Settings] = {"join_base": True, "least_samples": 40}
    shots: Annotated[
        int, Setting("Samples of each class drawn in each epoch.", 5, "samples", at_least=1, at_most=MOST)
    ] = 10
    epochs: LocalEpochs = 10
    lr: LearningRate = 0.01
    momentum: Momentum = 0.9
    weight_decay: WeightDecay = 1e-3
    batch: BatchSize = 4
    join_base: Annotated[
        bool, Setting("Whether classifiers are averaged into the base too, which is served then.", True)
    ] = False
    least_samples: Annotated[
        int,
        Setting(
            "Fewest samples that a device trains a head on; 0: any.", 40, "samples", at_least=0, at_most=MOST
        ),
    ] = 0
    send_mean: Annotated[
        bool, Setting("Whether devices get the mean classifier, for the term fscprox of other kinds.", True)
    ] = False

    def __post_init__(self) -> None:
        ranges.check(self)

    def infeasible_reason(self, workload: Workload) -> str:
        present = sum(count > 0 for count in workload.class_counts)
        if present < 2:
            return f"needs 2 classes to tell apart, here is {present}"
        if workload.samples < self.least_samples:
            return f"would train on {workload.samples} samples, expected {self.least_samples} or more"
        return ""

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        return predict(profile, self.work(workload), self.name)

    def work(self, workload: Workload) -> Work:
        """Work: features of every sample once, then forward and backward (twice as much) through the head."""
        values = (workload.feature_width + 1) * workload.labels
        work = forward_work(workload, workload.samples, values, self.codec)
        drawn = sum(min(self.shots, count) for count in workload.class_counts)
        batches = self.epochs * ceil(drawn / self.batch)
        steps = GraphPass("head", 3 * self.epochs * drawn, workload.head_flops, steps=batches)
        return replace(work, passes=(*work.passes, steps))

    @follows_plan
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        began = run.clock()
        features = model.features(data.x)
        run.pace(began, 1.0)
        head = SoftmaxHead(model.manifest, model.weights)
        sgd = Sgd(self.lr, self.momentum, self.weight_decay)
        loss = head.train(features, data.y, self._paced(data.y, run), sgd)
        return Update(self.name, head.params.tensors(), len(data), loss)

    def trains_head(self, manifest: Manifest) -> bool:
        return not manifest.target.class_weights

    def head_training(self, y: NDArray[np.int64], run: Run) -> HeadTraining:
        sgd = Sgd(self.lr, self.momentum, self.weight_decay)
        return HeadTraining(list(self.draws(y, run.rng())), sgd)

    def _paced(self, y: NDArray[np.int64], run: Run) -> Iterator[NDArray[Any]]:
        """`draws`, checked against the clock: the next batch is asked for when the one before it is done."""
        began, count = run.clock(), 0
        total = self.epochs * int(np.minimum(np.bincount(y), self.shots).sum())
        for batch in self.draws(y, run.rng()):
            yield batch
            count += len(batch)
            run.pace(began, count / total)

    def draws(self, y: NDArray[np.int64], rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        """Batches of indices: each epoch has `shots` of each class, or all samples of a class with fewer."""
        classes = [np.flatnonzero(y == label) for label in np.unique(y)]
        for _ in range(self.epochs):
            drawn = np.concatenate([rng.permutation(members)[: self.shots] for members in classes])
            drawn = rng.permutation(drawn)
            for start in range(0, len(drawn), self.batch):
                yield drawn[start : start + self.batch]

    def site_refusal(self) -> str:
        if self.join_base and not self.send_mean:
            return ""
        return "its classifiers are also used outside the base model"

    def unsummable_reason(self) -> str:
        if self.join_base and not self.send_mean:
            return ""
        return (
            "the mean of its classifiers counts each device alike, and masked updates count by their samples"
        )

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return head_specs(manifest)

    def start(self, model: RoundModel) -> HeadMeans:
        return HeadMeans()

    def fold(self, state: HeadMeans, update: Update, weight: float) -> HeadMeans:
        return HeadMeans(
            state.plain.add(update.tensors, 1.0),
            state.by_samples.add(update.tensors, weight),
        )

    def finish(self, state: HeadMeans, model: RoundModel) -> KindResult:
        examples = state.by_samples.most
        learnt = state.plain.mean()
        aside = {FEW_SHOT + name: value for name, value in learnt.items()} if self.send_mean else None
        if self.join_base:
            return KindResult(mean=state.by_samples, num_examples=examples, aside=aside or None)
        return KindResult(served_mean=state.plain, num_examples=examples, aside=aside or None)
