"""FedKAD: distillation from the devices' mean logits, with class prototypes as a second term.

Thesis 002, algorithm 4. With beta = 0 it is FedMD (Li and Wang 2019) as the thesis runs it, with a global
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, variant_named
from device_runtime.strategies.settings import (
    MOST,
    BatchSize,
    ServerBatchSize,
    ServerEpochs,
    ServerLearningRate,
    Setting,
    SmallestCount,
)
from device_runtime.strategies.training import teaching
from device_runtime.strategies.training.local_training import TrainingResult
from device_runtime.strategies.training.teaching import FamilyUpdate, ServerTraining
from device_runtime.strategies.training.workload import Training, work_of_training

LEVEL = "up"
"""The level of the last feature map before the classifier."""
PROTOTYPES, COUNTS = "prototypes", "counts"


@dataclass(frozen=True)
class PrototypesState:
    """The state of a round: sums over its devices.

    logits: on the `drawn` generic samples, float64 (n, classes).
    prototypes: float64 (classes, *map).
    present: the number of devices that have each class (classes,).
    updates: the mean of the updates by member.
    """

    model: RoundModel
    drawn: LocalData
    logits: NDArray[np.float64]
    prototypes: NDArray[np.float64]
    present: NDArray[np.int64]
    updates: Mapping[str, TensorMean]
    clients: int = 0


@dataclass(frozen=True)
class Prototypes(
    FamilyUpdate,
    own_round=True,
    generic=True,
    by_class=True,
    reveals="weights; mean feature map and number of samples of each class",
):
    """Devices train their own smaller model, and send it with its mean feature map of each class (prototype).

    The aggregator draws `generic_samples` samples; the plain mean of the devices' logits on them is the
    consensus (equation 5.23), and labels are not used. The global model and every member are trained with two
    terms: the mean of the absolute differences of their logits from the consensus, over samples and classes
    (5.24), and `beta` times the mean cross-entropy of the classifier on the global prototypes (5.27), each
    the plain mean over the devices that have the class (5.26, 5.29, 5.30). The thesis writes sums, in which
    beta 1 would weigh 1/64 of this; its table 5.9 (beta 0.01 at FedMD's level, 1 the best) fits means. With
    other kinds, the merged base is trained so, and the next base is `share` times the result plus (1 - share)
    times the merged base (ours), in mixed rounds less (`merge`). Devices of one size share a base: the mean
    of their updates, weighted by samples (ours; the thesis has one for each device, trained alone before the
    first round). Defaults: section 5.6 (CIFAR-10), and table 4.1 for what it leaves open.
    """

    name: ClassVar[str] = "prototypes"
    about: ClassVar[KindInfo] = KindInfo(
        "a smaller network of its own",
        "its parameters, and a mean feature map of each class",
        "FedKAD: Shi 2025 (PhD thesis, Sheffield), section 5.5; FedMD: Li and Wang 2019",
    )
    batch: BatchSize = 128
    beta: Annotated[
        float,
        Setting("Weight of the prototypes on the aggregator; 0: FedMD, and none are sent.", 0.5, at_least=0),
    ] = 1.0
    generic_samples: Annotated[
        int,
        Setting(
            "Samples of the task's `generic` set drawn a round.", 1000, "samples", at_least=1, at_most=MOST
        ),
    ] = 5000
    server_epochs: ServerEpochs = 5
    server_lr: ServerLearningRate = 0.1
    server_batch: ServerBatchSize = 64
    smallest_count: SmallestCount = 2
    share: Annotated[
        float,
        Setting("How far the next base goes to the taught model.", 0.5, more_than=0, at_most=1),
    ] = 1.0

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        if self.beta:
            work = teaching.work(workload, self, LEVEL, workload.samples, workload.labels)
        else:
            trained = workload.samples * self.epochs
            work = work_of_training(workload, Training("all", trained, batch=self.batch, codec=self.codec))
        return predict(profile, work, self.name)

    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        prototypes: Tensors = {}
        if self.beta:
            with teaching.with_tensors(model, result.tensors):
                prototypes = local_prototypes(model, data, self.smallest_count)
        return Update(self.name, {**result.tensors, **prototypes}, len(data), result.loss, self.variant)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        if not self.beta:
            return teaching.trained_specs(manifest)
        labels = len(manifest.labels)
        shape = (labels, *teaching.map_shape(manifest, LEVEL))
        maps = TensorSpec(PROTOTYPES, shape), TensorSpec(COUNTS, (labels,), "int32")
        return (*teaching.trained_specs(manifest), *maps)

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        if not self.beta:
            return ""
        counts = update[COUNTS].astype(np.int64)
        if counts.min(initial=0) < 0 or int(counts.sum()) > num_examples:
            return f"counts are {', '.join(map(str, counts))}, num_examples is {num_examples}"
        stray = np.flatnonzero(
            (counts == 0) & np.abs(update[PROTOTYPES]).reshape(len(counts), -1).any(axis=1)
        )
        return f"the prototype of class {int(stray[0])} is not 0, but its count is 0" if len(stray) else ""

    def check_bundles(self, manifests: Mapping[str, Manifest]) -> None:
        """Check that the bundles have the graphs that the aggregator needs; `manifests` is by member.

        The main model's is by "". Raises BundleError for what they lack, and KeyError for a missing member.
        """
        students = [manifests[name] for name in ("", *self.members)]
        for student in students:
            teaching.need_graphs(student, (f"{self._objective}.all",))
        if self.beta:
            teaching.need_one_shape(students, LEVEL)

    @property
    def _objective(self) -> str:
        return "prototype" if self.beta else "distil"

    def start(self, model: RoundModel) -> PrototypesState:
        """Raises ValueError without a generic set, and as `check_bundles`."""
        tools, data = teaching.tools_of(model, self.name)
        self.check_bundles({name: tools.manifest(name) for name in ("", *self.members)})
        rng, most = teaching.generator(model.seed, self.name, 0), min(len(data), self.generic_samples)
        chosen = rng.choice(len(data), most, replace=False)
        labels = len(model.manifest.labels)
        shape = teaching.map_shape(model.manifest, LEVEL) if self.beta else ()
        return PrototypesState(
            model,
            LocalData(data.x[chosen], data.y[chosen]),
            np.zeros((most, labels)),
            np.zeros((labels, *shape)),
            np.zeros(labels, np.int64),
            {},
        )

    def fold(self, state: PrototypesState, update: Update, weight: float) -> PrototypesState:
        """Add to the plain sums of logits and prototypes, and to the mean of updates with `weight`."""
        tools, _ = teaching.tools_of(state.model, self.name)
        member = variant_named(self, update.variant).member
        sent = dict(update.tensors)
        prototypes, present = state.prototypes, state.present
        if self.beta:
            prototypes = prototypes + sent.pop(PROTOTYPES)
            present = present + (sent.pop(COUNTS) > 0)
        model = tools.model(member)
        model.load({**teaching.base_of(state.model, member), **sent})
        mean = state.updates.get(member, TensorMean()).add(sent, weight)
        return replace(
            state,
            logits=state.logits + model.logits(state.drawn.x),
            prototypes=prototypes,
            present=present,
            updates={**state.updates, member: mean},
            clients=state.clients + 1,
        )

    def finish(self, state: PrototypesState, model: RoundModel) -> KindResult:
        if not state.clients:
            return KindResult()
        training, family = self._training(state), {}
        for name in self.members:
            mean = state.updates[name].mean() if name in state.updates else {}
            family[name] = self._taught(state, name, {**model.family[name], **mean}, training)
        return KindResult(
            num_examples=sum(mean.most for mean in state.updates.values()),
            refine=partial(self._refined, state, training),
            right=partial(self._right, state),
            family=family,
        )

    def _training(self, state: PrototypesState) -> ServerTraining:
        """Training on both terms; objective `prototype` takes the sum over the prototypes of its second."""
        target = (state.logits / state.clients).astype(np.float32)
        fixed: Tensors = {}
        if self.beta:
            having = np.maximum(state.present, 1).reshape(-1, *[1] * (state.prototypes.ndim - 1))
            maps = (state.prototypes / having).astype(np.float32)
            present = (state.present > 0).astype(np.float32)
            beta = np.array(self.beta / max(1.0, present.sum()), np.float32)
            fixed = {PROTOTYPES: maps, "present": present, "beta": beta}

        def extras(batch: NDArray[np.int64]) -> Tensors:
            return {"target": target[batch], **fixed}

        return ServerTraining(
            Sgd(self.server_lr), self.server_epochs, self.server_batch, "all", self._objective, extras
        )  # fmt: skip

    def _taught(
        self, state: PrototypesState, member: str, weights: Tensors, training: ServerTraining
    ) -> Tensors:
        """The weights after training; unchanged if training diverges."""
        tools, _ = teaching.tools_of(state.model, self.name)
        rng = teaching.generator(state.model.seed, f"{self.name}:{member}", 1)
        return teaching.teach_or_keep(tools.model(member), weights, state.drawn, training, rng)

    def _refined(self, state: PrototypesState, training: ServerTraining, base: Tensors) -> Tensors:
        """The next base: `share` times the merged base after training, the rest the merged base itself."""
        after = self._taught(state, "", base, training)
        share, names = (
            np.float32(self.share),
            [spec.name for spec in teaching.trained_specs(state.model.manifest)],
        )
        return {name: after[name] * share + base[name] * (1 - share) for name in names}

    def _right(self, state: PrototypesState, weights: Tensors) -> int:
        """How many of the drawn samples a model classifies correctly: no teaching used their labels."""
        model = teaching.tools_of(state.model, self.name)[0].model()
        model.load(weights)
        return int(np.sum(model.logits(state.drawn.x).argmax(axis=1) == state.drawn.y))


def local_prototypes(
    model: DeviceModel, data: LocalData, smallest: int = 1
) -> dict[str, NDArray[np.generic]]:
    """The mean feature map of each class at level `up`, and the counts of samples (equation 5.21).

    Maps are float32 (classes, *map), 0 for a class without samples; counts are int32 (classes,). A class with
    fewer than `smallest` samples counts as one without samples.
    """
    labels = len(model.manifest.labels)
    sums = np.zeros((labels, *teaching.map_shape(model.manifest, LEVEL)))
    for start in range(0, len(data), teaching.BLOCK):
        part = slice(start, start + teaching.BLOCK)
        np.add.at(sums, data.y[part], model.level_features(data.x[part], LEVEL))
    counts = np.bincount(data.y, minlength=labels)
    enough = counts >= smallest
    each, counts = np.maximum(counts, 1), counts * enough
    sums *= enough.reshape(-1, *[1] * (sums.ndim - 1))
    each = each.reshape(-1, *[1] * (sums.ndim - 1))
    return {PROTOTYPES: (sums / each).astype(np.float32), COUNTS: counts.astype(np.int32)}
