"""Merges the updates of a round into the next base and the served model.

`RoundMerge` does so on the aggregator and in simulations. Updates come one at a time and in a fixed order, by
kind and device: the order of arrival changes nothing, and memory does not grow with their number. An update
made for an earlier round counts with its change of that round's base.

`merge_round` merges a round from the run's folder, and can be repeated at any time. Where updates are masked,
the sums that mask helpers open take the place of contributions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import nan
from pathlib import Path

import numpy as np

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.masking.groups import (
    SumGroup,
    SumGroups,
    faults_of,
    note_of,
    open_sum,
    record_of,
)
from device_runtime.aggregator.storage.bases import StepLine, base_weights, checkpoint, next_base
from device_runtime.aggregator.storage.contributions import StoredContribution
from device_runtime.aggregator.storage.store import CarriedBlobs, MergeResult, RoundModels, Store
from device_runtime.aggregator.storage.sums import MaskFault, SumRecord
from device_runtime.aggregator.tasks.closing import FastDevices
from device_runtime.aggregator.tasks.feasible import trained_parts
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.errors import BlobError
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data import open_samples
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError, TensorError
from device_runtime.strategies.errors import MaskError, OwnCodeError, SpoiltSum
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.interface.device_half import Late, LocalData, Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.merge import Merged, rebased_update
from device_runtime.strategies.robust import Screen
from device_runtime.strategies.statistics import kind_statistics

BASES_HELD = 4
"""Bases of each model that stay in memory while late contributions are merged."""

log = logging.getLogger(__name__)

Read = Callable[[], Update]
Seed = Callable[[int], int]
"""From a round's number to the seed that all its devices share."""


@dataclass(frozen=True)
class CountedUpdate:
    """A device's update that counts in a round; it was made for round `round`.

    read: gives it, with its device if it may be read again. Raises BlobError, TensorError where the disk
    no longer holds it.
    again: whether `read` may be called again later.
    since: the rounds since its device last counted.
    """

    device: str
    kind: str
    round: int
    read: Read
    again: bool = True
    since: float = 1.0


@dataclass(frozen=True)
class EarlierRounds:
    """The rounds that updates were made for: the seed of each, and its base by round and member."""

    seed: Seed
    base: Callable[[int, str], Tensors]


class RoundMerge:
    """Merges one round of a task, whose base is `model`; `carried` is from the round before.

    failures, norms: as in Screen, after `merged`.
    """

    def __init__(self, task: Task, model: RoundModel, carried: CarriedState, earlier: EarlierRounds) -> None:
        self.kinds = {kind.name: kind for kind in task.kinds}
        self.model, self._task, self._earlier = model, task, earlier
        strategies = {name: kind.strategy for name, kind in self.kinds.items()}
        self.folding = Folding(strategies, model, carried, task.server, task.rests)
        self.failures: dict[tuple[str, str], str] = {}
        self.norms: dict[tuple[str, str], float] = {}

    def merged(
        self,
        updates: Iterable[CountedUpdate],
        sizes: Sequence[float] | None,
        leave_out: Callable[[CountedUpdate, Exception], None],
        scratch: Path | None = None,
    ) -> tuple[Merged, str]:
        """Screens and folds all updates, and merges them; with a note about anything unusual.

        `leave_out` is called for each that cannot be read, or at which an own kind fails, with the error: one
        device must not end the run. `sizes` and `scratch` as in Screen.
        """
        with Screen(self.folding, self._task.screening, scratch, sizes) as screen:
            for counted in updates:
                times = self._task.stands_for(self.model.round - counted.round, counted.since)
                again = partial(self._read, counted, times)
                try:
                    update = again()
                except (BlobError, TensorError) as error:
                    leave_out(counted, error)
                    continue
                try:
                    weight = times * self.kinds[counted.kind].weight_of(update)
                    screen.add(update, weight, counted.device, again if counted.again else None)
                except OwnCodeError as error:
                    log.warning("%s fails at the update of %s: %s", counted.kind, counted.device, error)
                    leave_out(counted, error)
            self.failures, self.norms = screen.failures, screen.norms
            return screen.merged()

    def _read(self, counted: CountedUpdate, times: float) -> Update:
        return self.rebased(counted.read(), counted.round, times)

    def rebased(self, update: Update, number: int, times: float) -> Update:
        """Converts an update made for round `number` into one of this round.

        `times`: the number of rounds that it stands for. Raises as `EarlierRounds.base`.
        """
        now = self.model.round
        if number == now:
            return update
        member = variant_named(self.kinds[update.kind].strategy, update.variant).member
        late = Late(number, self._earlier.seed(number), self._task.late_share(now - number), times)
        return rebased_update(update, late, now, lambda at: self._earlier.base(at, member))


def merge_round(
    store: Store, task: Task, tools: MergeTools, number: int, seed: Seed, groups: SumGroups | None = None
) -> MergeResult:
    """Merges the contributions of a round. The result's blobs are durable; nothing is committed yet.

    `groups`: the sums to open where updates are masked.
    """
    manifest = tools.manifest()
    model = RoundModel(manifest, base_weights(store, number, manifest), number, seed(number), tools=tools)
    stored = StoredUpdates(store, task, model)
    merge = RoundMerge(task, model, _carried(store, number, tools), EarlierRounds(seed, stored.base))
    sums, faults = tuple[SumRecord, ...](), tuple[MaskFault, ...]()
    if task.masks and groups:
        sums, faults = _fold_sums(groups.of_round(number), store, merge)
        notes = [note for record in sums if (note := note_of(record, number))]
        notes += [f"{device} is left out: {why}" for device, why in store.sums.faults.left_out(number)]
        notes += [f"{fault.device} is suspended: {fault.why}" for fault in faults if fault.fault == "named"]
        merged, odd = merge.folding.merged()
    else:
        merged, odd = merge.merged(stored, stored.sizes(), stored.leave_out, store.folder)
        notes = stored.notes
    note = "; ".join([*notes, odd] if odd else notes)
    served = store.models.put(tensors.encode(merged.served))
    base = next_base(store, number, merged, StepLine(manifest, task.seed))
    carried = store_carried(merged.carried, store, tools)
    return MergeResult(RoundModels(base, carried, served), merged.steps, note, sums, faults)


def store_carried(carried: CarriedState, store: Store, tools: MergeTools) -> CarriedBlobs:
    """Stores what the next round takes over in addition to its base, as blobs. Raises BlobError."""
    models = store.models
    return CarriedBlobs(
        family={
            name: checkpoint(weights, models, tools.manifest(name))
            for name, weights in carried.family.items()
        },
        memory={name: models.put(tensors.encode(state)) for name, state in carried.memory.items()},
        aside=models.put(tensors.encode(carried.aside)) if carried.aside else None,
    )


def _carried(store: Store, number: int, tools: MergeTools) -> CarriedState:
    """Reads what round `number` took over in addition to its base."""
    blobs = store.rounds.start(number).carried
    return CarriedState(
        family={name: base_weights(store, number, tools.manifest(name), name) for name in blobs.family},
        memory={name: tensors.decode(store.models.get(blob)) for name, blob in blobs.memory.items()},
        aside=tensors.decode(store.models.get(blobs.aside)) if blobs.aside else {},
    )


def _fold_sums(
    groups: Sequence[SumGroup], store: Store, merge: RoundMerge
) -> tuple[tuple[SumRecord, ...], tuple[MaskFault, ...]]:
    """Folds all sums that can be opened, in place of contributions.

    Returns a record of each group, and what spoilt sums say against their devices.
    """
    folding, faults, records = merge.folding, list[MaskFault](), []
    suspicions = store.sums.faults.suspicions(merge.model.round)
    answers = store.sums.answers(merge.model.round)
    for group in groups:
        try:
            opened = open_sum(group, store, answers)
            update = merge.rebased(opened.update, group.round, 1.0)
        except (MaskError, BlobError) as error:
            records.append(record_of(group, why=str(error)))
            if isinstance(error, SpoiltSum):
                faults += faults_of(group.updates, group.id, str(error), suspicions)
            continue
        kind = merge.kinds[group.kind]
        try:
            folding.pool(opened.statistics, update.late, group.summed.devices)
            if opened.statistics is not None:
                folding.trained_on(update.kind, update.variant, opened.statistics, group.summed.devices)
            folding.add(update, kind.weight * group.share * group.masks.most_weight)
        except OwnCodeError as error:
            log.warning("%s fails at the sum of %d updates: %s", group.kind, len(group.updates), error)
            records.append(record_of(group, why=str(error)))
            continue
        records.append(record_of(group, opened.update.train_loss))
    return tuple(records), tuple(faults)


class StoredUpdates:
    """Reads the contributions that count in a round from the run's folder, by kind and device.

    notes: why contributions were left out.
    """

    def __init__(self, store: Store, task: Task, model: RoundModel) -> None:
        self._store, self._task, self._model = store, task, model
        self._kinds = {kind.name: kind for kind in task.kinds}
        self.notes: list[str] = []
        self._cached_base = lru_cache(BASES_HELD * (1 + len(model.family)))(
            lambda number, member: base_weights(store, number, model.manifest, member)
        )

    def __iter__(self) -> Iterator[CountedUpdate]:
        task, number, contributions = self._task, self._model.round, self._store.contributions
        first = max(1, number - task.max_staleness - 1)
        since = contributions.since(number, first) if isinstance(task.closing, FastDevices) else {}
        for stored in contributions.of_round(number):
            read = partial(self._decode, stored)
            yield CountedUpdate(
                stored.device, stored.kind, stored.round, read, since=since.get(stored.device, 1.0)
            )

    def leave_out(self, counted: CountedUpdate, error: Exception) -> None:
        why = f": {error}" if isinstance(error, OwnCodeError) else f", damaged on disk: {error}"
        self.notes.append(f"{counted.device} ({counted.kind}) is left out{why}")

    def sizes(self) -> list[float]:
        """The samples of the device of each contribution."""
        return [
            kind_statistics.most_samples(
                variant_named(self._kinds[stored.kind].strategy, stored.form), stored.num_examples
            )
            for stored in self._store.contributions.of_round(self._model.round)
        ]

    def _decode(self, stored: StoredContribution) -> Update:
        """Reads a contribution from disk and decodes it against the base of its own round.

        Raises BlobError, RunFolderError, TensorError.
        """
        kind = self._kinds[stored.kind]
        variant, codec = variant_named(kind.strategy, stored.form), capabilities.codec_of(kind.strategy)
        tools = self._model.tools
        manifest = tools.manifest(variant.member) if tools else self._model.manifest
        expected = kind_statistics.accepted(variant, manifest)
        base = self.base(stored.round, variant.member) if codec.word else {}
        content = codec.decode(self._store.contributions.content(stored), base, expected)
        loss = stored.metrics.train_loss
        train_loss = loss if np.isfinite(loss) else nan
        sent = stored.kind, content, stored.num_examples, train_loss, variant.variant
        return Update(*sent, device=stored.device)

    def base(self, number: int, member: str) -> Tensors:
        """The weights that round `number` distributed for this member, or for the main model ("")."""
        if number == self._model.round and not member:
            return self._model.weights
        return self._cached_base(number, member)


class MergeTools:
    """Gives kinds of update the task's models and generic samples on the aggregator.

    Implements `strategies.interface.aggregator_half.ServerTools`.
    """

    def __init__(
        self,
        models: Mapping[str, Bundle],
        generic: LocalData | None = None,
        engine: EngineSettings | None = None,
    ) -> None:
        """`models` by member, the main model by "". `generic`: samples that belong to no device."""
        self.generic = generic
        self.manifests = {name: bundle.manifest for name, bundle in models.items()}
        self._bundles, self._engine = models, engine or EngineSettings()
        self._opened: dict[str, DeviceModel] = {}

    def model(self, member: str = "") -> DeviceModel:
        """The model of a member, opened once; load weights before each use. Raises KeyError, ModelError."""
        if member not in self._opened:
            self._opened[member] = open_model(self._bundles[member], self._engine)
        return self._opened[member]

    def manifest(self, member: str = "") -> Manifest:
        """The manifest of a member. Raises KeyError."""
        return self.manifests[member]

    def unload(self) -> None:
        """Frees the memory of all sessions until the next use."""
        for model in self._opened.values():
            model.unload()


def open_family(task: Task, main: Bundle) -> dict[str, Bundle]:
    """The smaller models of a task, by the names in their manifests; without a family `trained_parts`.

    Raises ModelError, and TaskError for a model without a name, a name that is used twice, or inputs or
    labels other than the main model's.
    """
    if not task.family:
        return trained_parts(task, main)
    family: dict[str, Bundle] = {}
    for path in task.family:
        bundle = Bundle.open(bundles.find_bundle(path))
        member = bundle.manifest
        if member.name in ("", main.manifest.name, *family):
            raise TaskError(
                f"two models of the family are called {member.name!r}: export one by another name"
                if member.name
                else f"{path} has no name: export it by one"
            )
        if differences := _differences(member, main.manifest):
            raise TaskError(
                f"{member.name} has other inputs or labels or another loss than {main.manifest.name}: "
                f"{differences}"
            )
        family[member.name] = bundle
    return family


def _differences(member: Manifest, main: Manifest) -> str:
    """Differences in inputs and labels, as "mean is (0.0,), not (0.305,)"; empty for none."""
    pairs = [
        (name, getattr(member.input, name), getattr(main.input, name))
        for name in main.input.__struct_fields__
    ]
    pairs += [("labels", member.labels, main.labels), ("loss", member.target, main.target)]
    return "; ".join(f"{name} is {left}, not {right}" for name, left, right in pairs if left != right)


def samples(path: str, bundle: Bundle, what: str) -> LocalData:
    """All labelled samples at `path`, which is written as a device's `--data`. Raises TaskError."""
    try:
        return open_samples(path, bundle.manifest, texts=bundle.texts).everything
    except ModelError as error:
        raise TaskError(f"{what} {path}: {error}") from None
