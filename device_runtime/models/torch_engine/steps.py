"""The steps of copies that are trained together: which samples of which copies, with which weights."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from device_runtime.models.bundles.tensors import NO_TENSORS, Tensors
from device_runtime.models.engines.base import Inputs
from device_runtime.models.training.optimizer import Privacy

from .copy_steps import Anchor
from .place import TorchProcessor

Rows = NDArray[np.integer[Any]]
SampleArray: TypeAlias = Inputs | Tensor
"""Prepared inputs or targets: an array, or a tensor on the processor that trains."""


@dataclass(frozen=True)
class CopySamples:
    """Samples and steps of one copy: prepared x (n, *input), y (n, ..), and the indices of each step's batch.

    Copies whose x and y are the same objects share their memory. `counted`: the first step whose loss counts.
    `batch`: samples of most steps, as a `trainer` is told them. `extras`: the objective's other inputs, those
    by sample for all n samples, which the copy shares with no other then. `anchors`: of proximal terms.
    `privacy`: each sample's gradient is clipped, and noise is added to their sum over the batch, which is
    divided by `lot`.
    """

    x: SampleArray
    y: SampleArray
    batches: Sequence[Rows]
    counted: int = 0
    batch: int = 0
    extras: Tensors = field(default_factory=lambda: NO_TENSORS)
    anchors: Sequence[Anchor] = ()
    privacy: Privacy | None = None
    lot: int = 1


@dataclass(frozen=True)
class MicroBatch:
    """Samples of k copies, the same number of rows of each; a row of share 0 is padding.

    at: the places of the copies, (k,), or the first k. rows (k, rows): int32 indices of samples. shares
    (k, rows): the weight of a row in the mean loss of its step. counts (k, rows): 1 where its loss counts,
    else 0. padded: whether any row is padding.
    """

    at: slice | Tensor
    rows: Tensor
    shares: Tensor
    counts: Tensor
    padded: bool


Step = tuple[MicroBatch, ...]
"""The micro-batches of a step: the first of each copy, then the second of each that has one, .."""


def planned_steps(
    copies: Sequence[CopySamples],
    starts: Sequence[int],
    sizes: Sequence[int],
    place: TorchProcessor,
    even: bool = False,
) -> list[Step]:
    """The steps of copies, those with most steps first, sent to the processor in one transfer.

    starts: the number of the first sample of each copy. sizes: rows of a micro-batch, by copy. even: all
    micro-batches are padded to the same number of rows. A row of
    padding is a sample of its copy's own batch: what is not finite in it is not finite in the copy either.
    """
    most = max(
        min(size, len(batch)) for copy, size in zip(copies, sizes, strict=True) for batch in copy.batches
    )
    sheet = _Sheet(copies, starts, most if even else 0)
    for step in range(len(copies[0].batches)):
        batches = [copy.batches[step] for copy in copies if len(copy.batches) > step]
        for number, (places, parts) in enumerate(_micro_batches(batches, sizes)):
            sheet.add(step, number, places, parts)
    return sheet.sent(place)


class _Sheet:
    """The numbers of all micro-batches, one after another."""

    def __init__(self, copies: Sequence[CopySamples], starts: Sequence[int], least: int) -> None:
        """least: rows that a micro-batch has at least."""
        self._copies, self._starts, self._least = copies, starts, least
        self._parts: list[Rows] = []
        self._runs: list[tuple[int, int, float, float]] = []
        """For the rows of one part: how many, their start, share and count."""
        self._places: list[int] = []
        self._shapes: list[tuple[int, int, int, bool]] = []
        """For each micro-batch: its number in the step, copies, rows of each, and whether it is padded."""

    def add(self, step: int, number: int, places: Sequence[int], parts: Sequence[Rows]) -> None:
        """Adds a micro-batch of the copies at these places; a part is the rows of one of them."""
        rows = max(1, self._least, *map(len, parts))
        for place, part in zip(places, parts, strict=True):
            copy, start = self._copies[place], self._starts[place]
            counted = float(step >= copy.counted)
            self._parts.append(part)
            self._runs.append((len(part), start, 1 / max(1, len(copy.batches[step])), counted))
            if padding := rows - len(part):
                own = part[:1] if len(part) else np.zeros(1, np.int64)
                self._parts.append(own.repeat(padding))
                self._runs.append((padding, start, 0.0, 0.0))
        padded = self._least > 0 or any(len(part) < rows for part in parts)
        self._shapes.append((number, len(places), rows, padded))
        if number:
            self._places += places

    def sent(self, place: TorchProcessor) -> list[Step]:
        lengths, starts, shares, counts = (np.array(each) for each in zip(*self._runs, strict=True))
        index = (np.concatenate(self._parts) + np.repeat(starts, lengths)).astype(np.int32)
        weights = (np.repeat(each.astype(np.float32), lengths) for each in (shares, counts))
        *flat, places = place.sent([index, *weights, np.array(self._places, np.int32)])
        sizes = [k * rows for _, k, rows, _ in self._shapes]
        columns = zip(*(each.split(sizes) for each in flat), strict=True)
        later = iter(places.split([k for number, k, _, _ in self._shapes if number]))
        steps: list[list[MicroBatch]] = []
        for (number, k, rows, padded), parts in zip(self._shapes, columns, strict=True):
            if not number:
                steps.append([])
            at = next(later) if number else slice(0, k)
            numbers, shares, counts = (part.view(k, rows) for part in parts)
            steps[-1].append(MicroBatch(at, numbers, shares, counts, padded))
        return [tuple(step) for step in steps]


def _micro_batches(batches: Sequence[Rows], sizes: Sequence[int]) -> Iterator[tuple[list[int], list[Rows]]]:
    """The micro-batches of a step: the first of each copy, then the second of each copy that has one, ..

    Each time the places of these copies, and their rows. `sizes`: rows of a micro-batch, by copy.
    """
    yield list(range(len(batches))), [batch[:size] for batch, size in zip(batches, sizes, strict=False)]
    for number in count(1):
        starts = [number * size for size in sizes]
        places = [i for i, batch in enumerate(batches) if starts[i] < len(batch)]
        if not places:
            return
        yield places, [batches[i][starts[i] : starts[i] + sizes[i]] for i in places]
