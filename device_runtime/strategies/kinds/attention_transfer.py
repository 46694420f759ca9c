"""FedAT: attention transfer and feature maps from models of the devices' own size.

Thesis 002, algorithm 3.

The name FedAT elsewhere means asynchronous tiers (Chai et al. 2021); here it is attention transfer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np

from device_runtime.models.bundles.manifest import ABOVE, Manifest
from device_runtime.models.bundles.names import LEVELS
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, variant_named
from device_runtime.strategies.settings import (
    MOST,
    LearningRate,
    Level,
    LocalEpochs,
    ServerBatchSize,
    ServerEpochs,
    ServerLearningRate,
    Setting,
)
from device_runtime.strategies.training import teaching
from device_runtime.strategies.training.local_training import TrainingResult
from device_runtime.strategies.training.teaching import FamilyUpdate, Rows, ServerTraining, TeacherAttention

log = logging.getLogger(__name__)

MAPS, COUNTS = "metadata.maps", "metadata.counts"


@dataclass(frozen=True)
class AttentionTransferState:
    """The state of a round: the mean of copies of the global model, each taught by one device's update.

    `teachers` has the mean of the devices' own models, by member.
    """

    model: RoundModel
    copies: TensorMean = field(default_factory=TensorMean)
    teachers: Mapping[str, TensorMean] = field(default_factory=dict)
    clients: int = 0


@dataclass(frozen=True)
class AttentionTransfer(
    FamilyUpdate,
    own_round=True,
    generic=True,
    by_class=True,
    of_single_samples=True,
    reveals="weights; feature maps of single samples",
):
    """Devices train a smaller model, and send it with *metadata*: labelled feature maps at `level`.

    Metadata is from a random `metadata_share` of the samples, at most `max_metadata`, by the *updated* model.
    For each device in turn, the aggregator trains a copy of the *distributed* global model:
    (1) with cross-entropy and attention on the generic set (equation 5.13);
    (2) the part above `level`, on the metadata (5.15);
    (3) the part up to `level`, as in (1), with attention inside that part alone (5.16).
    The mean of the copies, weighted by samples, is the next global model (5.18), which then teaches the
    members their next bases (5.19). Among full updates of the round a copy counts as one of `share` times its
    samples (ours; without full updates `share` changes nothing). Devices of one size share a base: the mean
    of their updates, weighted by samples (ours; the thesis has a base for each device).

    distance: how attention maps are compared. "squared" takes the square of the distance, divided by places,
    as the code of Zagoruyko and Komodakis 2017 does, with `beta` for images of 32x32
    (`teaching.TeacherAttention`). "norm" takes the distance itself, as equations 5.6 and 5.14 have it, with
    the same `beta` at every level; it needs graphs of objective `attention-norm`.

    Defaults: 5.4.2, and table 4.1 for what it leaves open; the thesis sends all metadata (10% loses a point).
    """

    name: ClassVar[str] = "attention-transfer"
    about: ClassVar[KindInfo] = KindInfo(
        "a smaller network of its own",
        "its parameters, and feature maps of some samples",
        "FedAT (attention transfer): Shi 2025 (PhD thesis, Sheffield), section 5.3",
    )
    epochs: LocalEpochs = 5
    lr: LearningRate = 0.01
    level: Level = "low"
    metadata_share: Annotated[
        float,
        Setting("Share of the samples whose feature maps are sent.", 0.2, more_than=0, at_most=1),
    ] = 0.1
    max_metadata: Annotated[
        int, Setting("The most feature maps sent.", 128, unit="samples", at_least=1, at_most=MOST)
    ] = 256
    beta: Annotated[
        float, Setting("Weight of the attention term on the aggregator; 0: none.", 500.0, at_least=0)
    ] = 1000.0
    distance: Annotated[
        Literal["squared", "norm"],
        Setting("Distance of attention maps: squared and divided by places, or the norm itself.", "norm"),
    ] = "squared"
    server_epochs: ServerEpochs = 2
    server_lr: ServerLearningRate = 0.1
    metadata_epochs: Annotated[
        int,
        Setting("Epochs on the feature maps, on the aggregator.", 5, "epochs", at_least=1, at_most=MOST),
    ] = 2
    metadata_lr: Annotated[
        float, Setting("Learning rate on the feature maps, on the aggregator.", 0.05, more_than=0)
    ] = 0.1
    server_batch: ServerBatchSize = 64
    share: Annotated[
        float,
        Setting("How many times its samples a taught copy counts among full updates.", 0.5, more_than=0),
    ] = 1.0

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        rows = self._rows(workload.samples)
        return predict(profile, teaching.work(workload, self, self.level, rows, rows), self.name)

    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        chosen = run.rng().choice(len(data), self._rows(len(data)), replace=False)
        chosen = chosen[np.argsort(data.y[chosen], kind="stable")]
        with teaching.with_tensors(model, result.tensors):
            maps = model.level_features(data.x[chosen], self.level)
        counts = np.bincount(data.y[chosen], minlength=len(model.manifest.labels)).astype(np.int32)
        tensors = {**result.tensors, MAPS: maps, COUNTS: counts}
        return Update(self.name, tensors, len(data), result.loss, self.variant)

    def _rows(self, samples: int) -> int:
        return min(ceil(self.metadata_share * samples), self.max_metadata)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """The tensors of a contribution: feature maps are in the order of classes, counts are by class."""
        shape = (self.max_metadata, *teaching.map_shape(manifest, self.level))
        counts = TensorSpec(COUNTS, (len(manifest.labels),), "int32")
        return (*teaching.trained_specs(manifest), TensorSpec(MAPS, shape, variable=True), counts)

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        counts, rows = update[COUNTS].astype(np.int64), len(update[MAPS])
        if counts.min(initial=0) < 0 or int(counts.sum()) != rows:
            return f"metadata has {rows} maps, but the counts by class are {', '.join(map(str, counts))}"
        return f"metadata has {rows} maps, but only {num_examples} samples" if rows > num_examples else ""

    def check_bundles(self, manifests: Mapping[str, Manifest]) -> None:
        """Check that the bundles have the graphs that the aggregator needs; `manifests` is by member.

        The main model's is by "". Raises BundleError for what they lack, and KeyError for a missing member.
        """
        main, family = manifests[""], [manifests[name] for name in self.members]
        upper, objective = _above(self.level)
        teaching.need_graphs(main, (f"{objective}.{upper}",))
        teaching.need_one_shape((main, *family), self.level)
        for member in family:
            teaching.need_places(member, main, self._objective)
            teaching.need_places(main, member, self._objective)

    def start(self, model: RoundModel) -> AttentionTransferState:
        """Raises ValueError without a generic set, and as `check_bundles`."""
        tools, _ = teaching.tools_of(model, self.name)
        self.check_bundles({name: tools.manifest(name) for name in ("", *self.members)})
        return AttentionTransferState(model)

    def fold(self, state: AttentionTransferState, update: Update, weight: float) -> AttentionTransferState:
        """Train a copy of the global model; it is ignored if it diverges."""
        member = variant_named(self, update.variant).member
        sent = dict(update.tensors)
        maps, counts = sent.pop(MAPS), sent.pop(COUNTS)
        metadata = LocalData(maps, np.repeat(np.arange(len(counts)), counts))
        try:
            state.copies.add(self._taught(state, member, sent, metadata), self.share * weight)
        except teaching.Diverged as error:
            log.warning("the copy of client %d is ignored, because it diverges: %s", state.clients, error)
        mean = state.teachers.get(member, TensorMean()).add(sent, weight)
        return replace(state, teachers={**state.teachers, member: mean}, clients=state.clients + 1)

    def _taught(
        self, state: AttentionTransferState, member: str, sent: Tensors, metadata: LocalData
    ) -> Tensors:
        """A copy of the global model after the three steps: the tensors that they change."""
        tools, data = teaching.tools_of(state.model, self.name)
        main, rng = tools.model(), teaching.generator(state.model.seed, self.name, state.clients)
        levels = tuple(teaching.attention_places(main.manifest, self._objective))
        upper, objective = _above(self.level)
        teacher = {**teaching.base_of(state.model, member), **sent}
        maps = _attention(tools.model(member), teacher, data, levels)
        copy = teaching.teach(main, state.model.weights, data, self._training(maps, levels), rng)
        if len(metadata):
            zero = np.zeros((), main.manifest.input.dtype)
            x = np.broadcast_to(zero, (len(metadata), *main.manifest.input.shape))
            training = ServerTraining(
                Sgd(self.metadata_lr), self.metadata_epochs, self.server_batch, upper, objective,
                lambda batch: {"maps": metadata.x[batch]},
            )  # fmt: skip
            copy = teaching.teach(main, copy, LocalData(x, metadata.y), training, rng)
        inside = tuple(level for level in levels if LEVELS.index(level) <= LEVELS.index(self.level))
        training = replace(self._training(maps, inside), constants=main.manifest.names(upper))
        copy = teaching.teach(main, copy, data, training, rng)
        return {spec.name: copy[spec.name] for spec in teaching.trained_specs(main.manifest)}

    def _training(self, maps: Rows, levels: tuple[str, ...]) -> ServerTraining:
        """Training after a teacher with these attention maps, of which only those of `levels` count."""
        if self.distance == "norm":
            attention = TeacherAttention(maps, {level: self.beta * (level in levels) for level in maps})
        else:
            attention = TeacherAttention.of(maps, self.beta, levels)
        sgd, objective = Sgd(self.server_lr), self._objective
        return ServerTraining(
            sgd, self.server_epochs, self.server_batch, objective=objective, extras=attention
        )

    @property
    def _objective(self) -> str:
        return "attention-norm" if self.distance == "norm" else "attention"

    def finish(self, state: AttentionTransferState, model: RoundModel) -> KindResult:
        if not state.clients:
            return KindResult()
        examples = max(state.copies.weights.values(), default=0.0)
        return KindResult(mean=state.copies, num_examples=examples, teach=partial(self._next_members, state))

    def _next_members(self, state: AttentionTransferState, base: Tensors) -> dict[str, Tensors]:
        """Each member's next base: its devices' mean, or its last base, taught by the new global model."""
        tools, data = teaching.tools_of(state.model, self.name)
        places = partial(teaching.attention_places, objective=self._objective)
        own = {name: tuple(places(tools.manifest(name))) for name in self.members}
        every = tuple(dict.fromkeys(level for levels in own.values() for level in levels))
        maps = _attention(tools.model(), base, data, every)
        taught: dict[str, Tensors] = {}
        for order, (name, levels) in enumerate(own.items()):
            mean = state.teachers[name].mean() if name in state.teachers else {}
            weights = {**state.model.family[name], **mean}
            rng = teaching.generator(state.model.seed, f"{self.name}:members", order)
            training = self._training({level: maps[level] for level in levels}, levels)
            taught[name] = teaching.teach_or_keep(tools.model(name), weights, data, training, rng)
        return taught


def _above(level: str) -> tuple[str, str]:
    """The tunable set above a level, and the objective that trains it on maps of the level."""
    return ABOVE[f"above-{level}"], f"above-{level}"


def _attention(model: DeviceModel, weights: Tensors, data: LocalData, levels: tuple[str, ...]) -> Rows:
    model.load(weights)
    return teaching.attention_maps(model, data.x, levels)
