"""Opens sums of masked updates with the answers of mask helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.storage.sums import StoredAnswer, SumRecord
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.sums import OpenedSum

from .groups import TOO_FEW, SumGroup

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
