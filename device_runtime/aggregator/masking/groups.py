"""Sums of masked updates: which updates a sum has, opening it, who spoils sums, and the privacy budget.

A group has updates of one kind, made for one round and from one model, with the same tensors. The
division depends only on what is stored, so that it is the same after a crash: a mask helper answers for a
set of devices only once.

A sum that cannot be one of its devices' updates tells that one of them lied, not which, and none is
opened alone. So suspects are spread over as many sums as the round allows, differently in each round: the
liar's sum is spoilt each time, and other devices are in it by chance.

Where mask helpers add noise, the run keeps within a budget. A round counts as spent when it is opened:
its masks, with the noise, are in the run's database before any device is asked. So a round that a crash
interrupts, or that is rolled back, counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import nan

import msgspec

from device_runtime.aggregator.storage.bases import base_weights
from device_runtime.aggregator.storage.contributions import MaskedContribution
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.storage.sums import MaskFault, StoredAnswer, SumRecord
from device_runtime.aggregator.tasks.mask_settings import CentralNoise
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import INLINE_LIMIT, Masks
from device_runtime.broker.wire.sum_messages import SumRequest, SumSeed
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update
from device_runtime.strategies.interface.kind import AnyStrategy, inapplicable_reason, variant_named
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import SumLayout, layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.noise import deviation_of
from device_runtime.strategies.masking.sums import OpenedSum, SummedGroup, weight_share

LEAST_SUMS, AHEAD = 3, 2
"""A device is named that was in at least so many spoilt sums, and in so many more than others there."""


def spread(
    updates: Sequence[MaskedContribution], parts: int, suspicions: Mapping[str, int]
) -> tuple[tuple[MaskedContribution, ...], ...]:
    """The updates in so many parts of about equal size, with suspects spread over them.

    Devices with as many suspicions are spread as a hash of round and device says, and so in each round anew.
    """

    def place(update: MaskedContribution) -> tuple[int, bytes]:
        drawn = hashlib.sha256(f"{update.round} {update.device}".encode()).digest()
        return -suspicions.get(update.device, 0), drawn

    ordered = sorted(updates, key=place)
    return tuple(
        tuple(sorted(ordered[part::parts], key=lambda update: update.device)) for part in range(parts)
    )


def faults_of(
    updates: Sequence[MaskedContribution], sum_id: bytes, why: str, suspicions: Mapping[str, int]
) -> tuple[MaskFault, ...]:
    """What a spoilt sum says against its devices. `suspicions`: by device, without those of this sum."""
    ordered = sorted((suspicions.get(update.device, 0) + 1, update.device) for update in updates)
    most, device = ordered[-1]
    others = ordered[-2][0] if len(ordered) > 1 else most
    if most >= LEAST_SUMS and most - others >= AHEAD:
        common = f"{most} sums that cannot be had its updates in common"
        return (MaskFault(device, "named", common, sum_id),)
    return tuple(MaskFault(update.device, "sum", why, sum_id) for update in updates)


TOO_FEW = "too few devices"
"""Begins the reason that a group is too small."""
BASES_HELD = 4
"""Bases that stay in memory while a round's updates are divided."""


@dataclass(frozen=True)
class SumGroup:
    """Masked updates of one sum, by device.

    strategy: the kind's variant that reads the sum. share: the sum of the updates' weights, in parts of
    `masks.most_weight`.
    """

    strategy: AnyStrategy
    updates: tuple[MaskedContribution, ...]
    share: float
    layout: SumLayout
    masks: Masks
    task: str
    run: str

    @property
    def round(self) -> int:
        """The round that the updates were made for."""
        return self.updates[0].round

    @property
    def kind(self) -> str:
        return self.updates[0].kind

    @property
    def too_small(self) -> str:
        """Why there are too few updates to open the sum; empty if there are enough."""
        if len(self.updates) >= self.masks.min_group:
            return ""
        return f"{TOO_FEW}, a sum has at least {self.masks.min_group}"

    @property
    def summed(self) -> SummedGroup:
        """The figures of the devices, to read the sum."""
        return SummedGroup(
            devices=len(self.updates),
            share=self.share,
            num_examples=sum(update.num_examples for update in self.updates),
            most_weight=self.masks.most_weight,
            deviation=deviation_of(self.masks.noise_milli, self.masks.clip_milli),
            most_norm=self.masks.clip_milli / 1000,
        )

    @cached_property
    def seeds(self) -> bytes:
        """The masks of all devices as mask helpers get them."""
        seeds = (SumSeed(update.device, update.form, update.mask) for update in self.updates)
        return msgspec.msgpack.encode(tuple(seeds))

    @cached_property
    def id(self) -> bytes:
        """Names the sum, by all that mask helpers are told of it."""
        plain = msgspec.structs.replace(self._request(0), id=bytes(32), body=self.seeds)
        return hashlib.sha256(msgspec.msgpack.encode(plain)).digest()

    def request(self, at: int) -> SumRequest:
        """The request to the helper at this place, without the seeds where these are too large for it."""
        body = self.seeds if len(self.seeds) <= INLINE_LIMIT else b""
        return msgspec.structs.replace(self._request(at), id=self.id, body=body)

    def _request(self, at: int) -> SumRequest:
        return SumRequest(
            id=bytes(32),
            task=self.task,
            run=self.run,
            round=self.round,
            kind=self.kind,
            at=at,
            min_group=self.masks.min_group,
            values=self.layout.values,
            sums=self.layout.numbers,
            noise_milli=self.masks.noise_milli,
            clip_milli=self.masks.clip_milli,
            exponents=self.layout.exponents if self.masks.noise_milli else (),
        )


class SumGroups:
    """Divides the masked updates of a run's rounds; `manifests` by member, "" for the main model."""

    def __init__(self, store: Store, task: Task, run: str, manifests: Mapping[str, Manifest]) -> None:
        self._store, self._task, self._run, self._manifests = store, task, run, manifests

    def of_round(self, number: int) -> tuple[SumGroup, ...]:
        """The groups of the updates that count in a round, by kind and round made for.

        A group with more devices than its sum has room for is divided, and so is one with suspects (see
        `suspects`). Raises RunFolderError, BlobError.
        """
        suspicions = self._store.sums.faults.suspicions(number)
        forms, updates_by_key = (
            _Forms(self._store, self._task, self._manifests),
            dict[object, list[MaskedContribution]](),
        )
        for update in self._store.contributions.masked(number):
            form = forms.of(update.round, update.kind, update.form)
            key = (update.kind, update.round, form.strategy.member, form.layout.signature)
            updates_by_key.setdefault(key, []).append(update)
        return tuple(
            self._group(part, forms.of(part[0].round, part[0].kind, part[0].form))
            for updates in updates_by_key.values()
            for part in _divided(updates, forms.masks(updates[0].round), suspicions)
        )

    def _group(self, updates: tuple[MaskedContribution, ...], form: _Form) -> SumGroup:
        most = form.masks.most_weight
        share = sum(weight_share(form.kind.weight(_blank(update)), most) for update in updates)
        run = self._task.name, self._run
        return SumGroup(form.strategy, updates, share, form.layout, form.masks, *run)


@dataclass(frozen=True)
class _Form:
    """A form of a kind in one round: the kind, the variant, and how its updates are masked."""

    kind: AnyStrategy
    strategy: AnyStrategy
    layout: SumLayout
    masks: Masks


class _Forms:
    """The forms of the updates of one round; bases are held as long as this is."""

    def __init__(self, store: Store, task: Task, manifests: Mapping[str, Manifest]) -> None:
        self._store, self._manifests = store, manifests
        self._kinds = {kind.name: kind.strategy for kind in task.kinds}
        self._base = lru_cache(BASES_HELD)(self._read)
        self.of = lru_cache(None)(self._of)

    def masks(self, number: int) -> Masks:
        """How the updates of a round are masked. Raises MaskError where they were not."""
        masks = self._store.sums.masks(number)
        if masks is None:
            raise MaskError(f"updates for round {number} were not masked")
        return masks

    def _of(self, number: int, kind: str, form: str) -> _Form:
        strategy = variant_named(self._kinds[kind], form)
        base, masks = self._base(number, strategy.member), self.masks(number)
        layout = layout_of(strategy, self._manifests[strategy.member], base, masks)
        return _Form(self._kinds[kind], strategy, layout, masks)

    def _read(self, number: int, member: str) -> Tensors:
        return base_weights(self._store, number, self._manifests[member], member)


def _blank(update: MaskedContribution) -> Update:
    """A masked update as far as it is known: its weight depends on no more than that."""
    return Update(update.kind, NO_TENSORS, update.num_examples, nan, update.form)


def _divided(
    updates: Sequence[MaskedContribution], masks: Masks, suspicions: Mapping[str, int]
) -> Iterator[tuple[MaskedContribution, ...]]:
    """Parts of at most `capacity` updates, as equal as possible; as many as there can be with suspects."""
    parts = -(-len(updates) // masks.capacity)
    if any(update.device in suspicions for update in updates):
        parts = max(parts, len(updates) // masks.min_group)
        yield from spread(updates, parts, suspicions)
        return
    ends = [len(updates) * part // parts for part in range(parts + 1)]
    for start, end in pairwise(ends):
        yield tuple(updates[start:end])


Answers = Mapping[tuple[bytes, str], StoredAnswer]
"""By sum and mask helper."""


def open_sum(group: SumGroup, store: Store, answers: Answers) -> OpenedSum:
    """The mean of a group's updates: what came from its devices, less the sums of masks.

    No more than two vectors are in memory. Raises MaskError where the sum cannot be opened, BlobError where a
    content cannot be read.
    """
    if group.too_small:
        raise MaskError(group.too_small)
    by_helper = {helper.name: answers.get((group.id, helper.name)) for helper in group.masks.helpers}
    for name, answer in by_helper.items():
        if answer is not None and answer.refusal:
            raise MaskError(f"mask helper {name} refused it: {answer.refusal}")
    size = group.layout.values, group.layout.numbers
    total = MaskedVector.zeros(*size)
    for update in group.updates:
        total.add(MaskedVector.from_bytes(store.contributions.masked_content(update), *size))
    for name, answer in by_helper.items():
        if answer is None:
            raise MaskError(f"mask helper {name} has not answered")
        total.subtract(MaskedVector.from_bytes(store.sums.content(answer), *size))
    return sums.read(total, group.layout, group.summed, group.strategy)


def record_of(group: SumGroup, loss: float = nan, why: str = "") -> SumRecord:
    """The record of a sum: opened with this training loss, or not opened, and why."""
    summed = group.summed
    return SumRecord(group.id, group.round, group.kind, summed.devices, summed.num_examples, loss, why)


def note_of(record: SumRecord, number: int) -> str:
    """What a round's note says of a sum that was not opened; empty if it was. `number`: the round."""
    if not record.why:
        return ""
    updates = "1 update" if record.devices == 1 else f"{record.devices} updates"
    late = f" for round {record.round}" if record.round != number else ""
    return f"{updates} of {record.kind}{late} not opened: {record.why}"


def kinds_alone(records: Sequence[SumRecord], number: int) -> tuple[str, ...]:
    """Kinds of which round `number` opened no sum, because too few devices chose them."""
    own_records = [record for record in records if record.round == number]
    opened = {record.kind for record in own_records if not record.why}
    return tuple(sorted({record.kind for record in own_records if record.why.startswith(TOO_FEW)} - opened))


class NoiseBudget:
    """The noise of a run's sums, and what its rounds have spent. Raises RunFolderError."""

    def __init__(self, task: Task, store: Store, manifests: Mapping[str, Manifest]) -> None:
        """`manifests` by member, "" for the main model. Raises TaskError where there is no such noise."""
        self._task, self._store, self._manifests = task, store, manifests
        self._noise = CentralNoise.of(task.masks, task.rounds) if task.masks else None

    def noisy(self, masks: Masks) -> Masks:
        """The masks of an offer, with the noise of this run if it has any."""
        return masks if self._noise is None else self._noise.added_to(masks)

    def refusal(self, number: int) -> str:
        """Why round `number` must not be opened: it would exceed the budget; empty if it may be."""
        if self._noise is None:
            return ""
        return self._noise.refusal([noise for n, noise in self._opened().items() if n != number])

    def misfit(self, number: int, weights: Callable[[str], Tensors]) -> str:
        """Why devices must not be asked in the open round `number`; empty if they may be.

        It is that the fixed point of an update does not fit the noise. weights: gives those of a member that
        the round distributes, "" for the main model.
        """
        masks = self._store.sums.masks(number)
        if self._noise is None or masks is None:
            return ""
        for kind in self._task.offered(number):
            for form in kind.strategy.variants():
                manifest = self._manifests.get(form.member)
                if manifest is None or inapplicable_reason(form, manifest):
                    continue
                if why := self._noise.misfit(layout_of(form, manifest, weights(form.member), masks)):
                    return f"{kind.name}: {why}"
        return ""

    def spent(self, number: int) -> float:
        """Epsilon that all rounds up to `number` have spent; nan without noise."""
        if self._noise is None:
            return nan
        return self._noise.spent(noise for n, noise in self._opened().items() if n <= number)

    def _opened(self) -> dict[int, int]:
        """The noise multiplier, in thousandths, of each round that was opened with noise."""
        return self._store.sums.noise()
