"""Merges the contributions of a round into the next base and the served model.

A merge can be repeated at any time. Contributions are read from disk one at a time, ordered by kind and
device: the order of arrival changes nothing, and memory does not grow with their number. A contribution made
for an earlier round counts with its change of that round's base. Where updates are masked, the sums that mask
helpers open take the place of contributions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import nan

import numpy as np

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.intake.check import codec_of
from device_runtime.aggregator.masking.groups import SumGroup, SumGroups
from device_runtime.aggregator.masking.opening import note_of, open_sum, record_of
from device_runtime.aggregator.masking.suspects import faults_of
from device_runtime.aggregator.storage.bases import StepLine, base_weights, checkpoint, next_base
from device_runtime.aggregator.storage.contributions import StoredContribution
from device_runtime.aggregator.storage.mask_faults import MaskFault
from device_runtime.aggregator.storage.store import CarriedBlobs, MergeResult, RoundModels, Store
from device_runtime.aggregator.storage.sums import SumRecord
from device_runtime.aggregator.tasks.closing import FastDevices
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
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.interface.device_half import Late, LocalData, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.merge import rebased_update
from device_runtime.strategies.robust import Screen
from device_runtime.strategies.statistics import kind_statistics

BASES_HELD = 4
"""Bases of each model that stay in memory while late contributions are merged."""


log = logging.getLogger(__name__)

Seeds = Callable[[int], int]
"""From a round's number to the seed that all its devices share."""


def merge_round(
    store: Store, task: Task, tools: MergeTools, number: int, seed: Seeds, groups: SumGroups | None = None
) -> MergeResult:
    """Merges the contributions of a round. The result's blobs are durable; nothing is committed yet.

    `groups`: the sums to open where updates are masked.
    """
    manifest = tools.manifest()
    weights = base_weights(store, number, manifest)
    model = RoundModel(manifest, weights, number, seed(number), tools=tools)
    kinds = {kind.name: kind.strategy for kind in task.kinds}
    before = _carried(store, number, tools)
    folding = Folding(kinds, model, before, task.server)
    earlier, sums = _Earlier(store, task, model, seed), tuple[SumRecord, ...]()
    faults = tuple[MaskFault, ...]()
    if task.masks and groups:
        sums, faults = _fold_sums(groups.of_round(number), earlier, folding)
        notes = [note for record in sums if (note := note_of(record, number))]
        notes += [f"{device} is left out: {why}" for device, why in store.sums.faults.left_out(number)]
        notes += [f"{fault.device} is suspended: {fault.why}" for fault in faults if fault.fault == "named"]
        merged, odd = folding.merged()
    else:
        with Screen(folding, task.screening, store.folder, _sizes(store, kinds, number)) as screen:
            notes = _fold(earlier, screen)
            merged, odd = screen.merged()
    note = "; ".join([*notes, odd] if odd else notes)
    served = store.models.put(tensors.encode(merged.served))
    base = next_base(store, number, merged, StepLine(manifest, task.seed))
    carried = store_carried(merged.carried, store, tools)
    return MergeResult(RoundModels(base, carried, served), merged.steps, note, sums, faults)


def _sizes(store: Store, kinds: Mapping[str, AnyStrategy], number: int) -> list[float]:
    """The samples of the device of each contribution that counts in a round."""
    return [
        kind_statistics.most_samples(
            kinds[contribution.kind].variant_named(contribution.form), contribution.num_examples
        )
        for contribution in store.contributions.of_round(number)
    ]


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


def _fold(earlier: _Earlier, screen: Screen) -> list[str]:
    """Folds all contributions that count in the round; returns a note for each that is left out.

    That is where its content could not be read, or where an own kind of update fails at it: one device must
    not end the run.
    """
    notes, task, number = [], earlier.task, earlier.model.round
    first = max(1, number - task.max_staleness - 1)
    fast = isinstance(task.closing, FastDevices)
    since = earlier.store.contributions.since(number, first) if fast else {}
    for stored in earlier.store.contributions.of_round(earlier.model.round):
        times = task.stands_for(number - stored.round, since.get(stored.device, 1.0))
        again = partial(earlier.counted, stored, times)
        try:
            update = again()
        except (BlobError, TensorError) as error:
            notes.append(f"{stored.device} ({stored.kind}) is left out, damaged on disk: {error}")
            continue
        kind = earlier.kinds[stored.kind]
        try:
            screen.add(update, times * kind.weight_of(update), stored.device, again)
        except OwnCodeError as error:
            log.warning("%s fails at the update of %s: %s", stored.kind, stored.device, error)
            notes.append(f"{stored.device} ({stored.kind}) is left out: {error}")
    return notes


def _fold_sums(
    groups: Sequence[SumGroup], earlier: _Earlier, folding: Folding
) -> tuple[tuple[SumRecord, ...], tuple[MaskFault, ...]]:
    """Folds all sums that can be opened, in place of contributions.

    Returns a record of each group, and what spoilt sums say against their devices.
    """
    store, faults = earlier.store, list[MaskFault]()
    suspicions = store.sums.faults.suspicions(earlier.model.round)
    answers = store.sums.answers(earlier.model.round)
    records = []
    for group in groups:
        try:
            opened = open_sum(group, store, answers)
            update = earlier.rebased(opened.update, group.round, 1.0)
        except (MaskError, BlobError) as error:
            records.append(record_of(group, why=str(error)))
            if isinstance(error, SpoiltSum):
                faults += faults_of(group.updates, group.id, str(error), suspicions)
            continue
        kind = earlier.kinds[group.kind]
        try:
            folding.pool(opened.statistics, update.late, group.summed.devices)
            folding.add(update, kind.weight * group.share * group.masks.most_weight)
        except OwnCodeError as error:
            log.warning("%s fails at the sum of %d updates: %s", group.kind, len(group.updates), error)
            records.append(record_of(group, why=str(error)))
            continue
        records.append(record_of(group, opened.update.train_loss))
    return tuple(records), tuple(faults)


class _Earlier:
    """Reads contributions against the base of their own round; keeps a few bases in memory."""

    def __init__(self, store: Store, task: Task, model: RoundModel, seed: Seeds) -> None:
        self.store, self.model, self.task, self._seed = store, model, task, seed
        self.kinds = {kind.name: kind for kind in task.kinds}
        self._base_cache = lru_cache(BASES_HELD * (1 + len(task.family)))(
            lambda number, member: base_weights(store, number, model.manifest, member)
        )

    def counted(self, stored: StoredContribution, times: float) -> Update:
        """Reads a contribution as an update of the current round. Raises as `read` and `rebased`."""
        return self.rebased(self.read(stored), stored.round, times)

    def rebased(self, update: Update, number: int, times: float) -> Update:
        """Converts an update made for round `number` into one of the current round.

        `times`: the number of rounds that it stands for. Raises BlobError, RunFolderError.
        """
        now = self.model.round
        if number == now:
            return update
        member = self.kinds[update.kind].strategy.variant_named(update.variant).member
        late = Late(number, self._seed(number), self.task.late_share(now - number), times)
        return rebased_update(update, late, now, lambda n: self._base(n, member))

    def read(self, stored: StoredContribution) -> Update:
        """Reads a contribution from disk and decodes it against the base of its own round.

        Raises BlobError, RunFolderError, and TensorError where the disk no longer holds the checked content.
        """
        kind = self.kinds[stored.kind]
        variant, codec = kind.strategy.variant_named(stored.form), codec_of(kind)
        tools = self.model.tools
        manifest = tools.manifest(variant.member) if tools else self.model.manifest
        expected = kind_statistics.accepted(variant, manifest)
        base = self._base(stored.round, variant.member) if codec.word else {}
        content = codec.decode(self.store.contributions.content(stored), base, expected)
        loss = stored.metrics.train_loss
        train_loss = loss if np.isfinite(loss) else nan
        return Update(stored.kind, content, stored.num_examples, train_loss, variant.variant)

    def _base(self, number: int, member: str) -> Tensors:
        """The weights that round `number` distributed for this member, or for the main model ("")."""
        if number == self.model.round and not member:
            return self.model.weights
        return self._base_cache(number, member)


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


def open_family(paths: tuple[str, ...], main: Manifest) -> dict[str, Bundle]:
    """The smaller models of a task, by the names in their manifests.

    Raises ModelError, and TaskError for a model without a name, a name that is used twice, or inputs or
    labels other than the main model's.
    """
    family: dict[str, Bundle] = {}
    for path in paths:
        bundle = Bundle.open(bundles.find_bundle(path))
        member = bundle.manifest
        if member.name in ("", main.name, *family):
            raise TaskError(
                f"two models of the family are called {member.name!r}: export one by another name"
                if member.name
                else f"{path} has no name: export it by one"
            )
        if differences := _differences(member, main):
            raise TaskError(
                f"{member.name} has other inputs or labels or another loss than {main.name}: {differences}"
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
