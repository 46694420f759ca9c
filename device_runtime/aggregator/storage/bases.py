"""Base models: stores their checkpoints, restores their weights, and makes the next base of a round.

A base is a checkpoint and the zeroth-order steps taken since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire import step_log as log
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Base, Blob, Step
from device_runtime.broker.wire.step_log import MOST_SEGMENTS, SEGMENT
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, encoded_parts
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.merging.merge import Merged

from .store import Latest, Store


@dataclass(frozen=True)
class StepLine:
    """The model that steps are taken on, and the seed of the task whose rounds take them (None: any)."""

    manifest: Manifest
    seed: int | None


def checkpoint(weights: Tensors, models: Blobs, manifest: Manifest) -> Base:
    """Stores weights as a base without steps, which begins a new line; in parts. Raises BlobError."""
    return Base(_parts(weights, models, manifest), hashlib.sha256(tensors.encode(weights)).digest())


def _parts(weights: Tensors, models: Blobs, manifest: Manifest) -> tuple[Blob, ...]:
    return tuple(models.put(part) for part in encoded_parts(weights, manifest.parts()))


def base_weights(store: Store, number: int, manifest: Manifest, member: str = "") -> Tensors:
    """The weights that round `number` distributes, from its checkpoint and the steps since.

    `manifest` is that of the family's member, or of the main model. Raises RunFolderError when the weights
    are not those that were distributed (by sha256).
    """
    base = store.rounds.start(number).carried.family[member] if member else store.rounds.start(number).base
    return _weights_of(store, base, number, manifest)


def made_weights(store: Store, number: int, manifest: Manifest) -> Tensors:
    """The weights of the main model that round `number` made. Raises RunFolderError as `base_weights`."""
    return _weights_of(store, store.rounds.made(number).base, number + 1, manifest)


def _weights_of(store: Store, base: Base, number: int, manifest: Manifest) -> Tensors:
    """The weights of a base that round `number` distributes or might have distributed.

    Replays steps from the weights in memory where that takes fewer steps than from the checkpoint.
    """
    latest = store.latest
    if latest is not None and latest.base.sha == base.sha:
        return latest.weights
    weights, count = None, base.steps
    if latest is not None and latest.base.line == base.line and 0 < base.at - latest.base.at < base.steps:
        weights, count = latest.weights, base.at - latest.base.at
    weights = replay(weights or _joined(store, base), store.step_history.last(number, count), manifest)
    if hashlib.sha256(tensors.encode(weights)).digest() != base.sha:
        raise RunFolderError(f"run folder {store.folder}: the base of round {number} is not what it was")
    return weights


def _joined(store: Store, base: Base) -> dict[str, NDArray[Any]]:
    """The weights of a base's checkpoint, from all its parts."""
    weights: dict[str, NDArray[Any]] = {}
    for part in base.checkpoint:
        weights |= tensors.decode(store.models.get(part))
    return weights


def next_base(store: Store, number: int, merged: Merged, line: StepLine) -> Base:
    """The base of the round after `number`: more steps on the same line, or the beginning of a new line.

    Raises BlobError.
    """
    old, new = store.rounds.start(number).base, tuple(merged.steps)
    if not merged.replayable:
        base = checkpoint(merged.base, store.models, line.manifest)
    elif not new:
        return old
    else:
        base = _further(store, number, merged, line)
    store.latest = Latest(base, merged.base)
    return base


def _further(store: Store, number: int, merged: Merged, line: StepLine) -> Base:
    """The next base on the same line.

    Whenever a segment of the log is full, a new checkpoint is made, so that no offered base is more than a
    segment of steps away from its checkpoint.
    """
    old, new = store.rounds.start(number).base, tuple(merged.steps)
    at = old.at + len(new)
    parts, since = old.checkpoint, old.steps + len(new)
    if at // SEGMENT > old.at // SEGMENT:
        parts, since = _parts(merged.base, store.models, line.manifest), 0
    begun = old.at % SEGMENT
    recent = (*store.step_history.last(number, max(begun, min(old.at, log.TAIL))), *new)
    whole = old.log[:-1] if begun else old.log
    unwritten = recent[len(recent) - begun - len(new) :]
    segments = [store.models.put(log.encode(part, line.seed)) for part in _segments(unwritten)]
    return Base(
        checkpoint=parts,
        sha=hashlib.sha256(tensors.encode(merged.base)).digest(),
        line=old.line,
        steps=since,
        at=at,
        tail=log.pack(log.tail_of(recent), line.seed),
        log=(*whole, *segments)[-MOST_SEGMENTS:],
    )


def _segments(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Splits steps, the first of which begins a segment, into segments."""
    for begin in range(0, len(steps), SEGMENT):
        yield steps[begin : begin + SEGMENT]
