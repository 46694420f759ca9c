"""From the contributions of a round to the next base and the served model; may be done again at any time.

Contributions are read from disk one at a time, by kind and device: the order in which they arrived changes
nothing, and memory does not grow with their number. One that was made for an earlier round counts with what
it changed of that round's base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan

import msgspec
import numpy as np

from broker.blobs import Blobs
from broker.errors import BlobError
from broker.messages import Base, Step
from models import tensors
from models.manifest import Manifest
from models.tensors import Tensors
from strategies.folding import Folding
from strategies.kind import Contribution, RoundModel
from strategies.merge import Merged, rebased
from strategies.zeroth_order import replay

from .contributions import Stored
from .errors import RunFolderError
from .store import MergeResult, Store
from .task import KindSettings, Task

TAIL = 4
"""Steps that stand in the offer itself."""
MAX_STEPS = 50
"""Steps after which there is a new checkpoint."""
BASES_HELD = 4
"""Earlier bases in memory, while late contributions are merged."""


def checkpoint(weights: Tensors, models: Blobs) -> Base:
    """A base that is all checkpoint, kept in `models`. Raises BlobError."""
    blob = models.put(tensors.encode(weights))
    return Base(checkpoint=blob, sha=blob.sha)


def base_weights(store: Store, number: int, manifest: Manifest) -> Tensors:
    """The weights that round `number` distributes: its checkpoint, and the steps since.

    Raises RunFolderError when they are not the ones that were distributed.
    """
    base = store.base(number)
    weights = tensors.decode(store.models.get(base.checkpoint))
    if base.steps:
        weights = replay(weights, store.steps(number), manifest)
    if hashlib.sha256(tensors.encode(weights)).digest() != base.sha:
        raise RunFolderError(f"run folder {store.folder}: the base of round {number} is not what it was")
    return weights


def merge_round(store: Store, task: Task, manifest: Manifest, number: int) -> MergeResult:
    """What the contributions of a round make; its blobs are durable, nothing is committed yet."""
    weights = base_weights(store, number, manifest)
    model = RoundModel(manifest, weights, number, task.round_seed(number))
    folding = Folding({kind.name: kind.strategy for kind in task.kinds}, model)
    lost = _fold(store, task, model, folding)
    merged, odd = folding.merged()
    notes = [f"content of {name} was damaged on disk and is left out" for name in lost]
    note = "; ".join([*notes, odd] if odd else notes)
    served = store.models.put(tensors.encode(merged.served))
    return MergeResult(next_base(store, number, merged), served, merged.steps, note)


def next_base(store: Store, number: int, merged: Merged) -> Base:
    """The base of the round after `number`: the same checkpoint and more steps, or a new checkpoint."""
    old = store.base(number)
    steps = (*store.steps(number), *merged.steps)
    if not merged.replayable or len(steps) > MAX_STEPS:
        return checkpoint(merged.base, store.models)
    if not merged.steps:
        return old
    return Base(
        checkpoint=old.checkpoint,
        sha=hashlib.sha256(tensors.encode(merged.base)).digest(),
        steps=len(steps),
        tail=steps[-TAIL:],
        log=store.models.put(encode_log(steps)) if len(steps) > TAIL else None,
    )


def encode_log(steps: Sequence[Step]) -> bytes:
    """All steps since the checkpoint, a MessagePack list."""
    return msgspec.msgpack.encode(list(steps))


def _fold(store: Store, task: Task, model: RoundModel, folding: Folding) -> list[str]:
    """Fold all that counts in the round; returns whose content could not be read."""
    kinds = {kind.name: kind for kind in task.kinds}
    earlier = _Earlier(store, task, model)
    lost = []
    for stored in store.contributions.of_round(model.round):
        try:
            update = earlier.rebased(_read(store, stored), stored.round)
        except BlobError:
            lost.append(f"{stored.device} ({stored.kind})")
            continue
        folding.add(update, _weight(stored, kinds[stored.kind]))
    return lost


class _Earlier:
    """The bases that late contributions were made for; the latest few are held."""

    def __init__(self, store: Store, task: Task, model: RoundModel) -> None:
        self._model, self._exponent = model, -task.staleness_weight
        self._base = lru_cache(BASES_HELD)(lambda number: base_weights(store, number, model.manifest))

    def rebased(self, update: Contribution, number: int) -> Contribution:
        """An update made for round `number` as one of the model's. Raises BlobError, RunFolderError."""
        late = self._model.round - number
        if not late:
            return update
        moved = rebased(update.tensors, self._base(number), self._model.weights, (1 + late) ** self._exponent)
        return replace(update, tensors=moved)


def _read(store: Store, stored: Stored) -> Contribution:
    content = tensors.decode(store.contributions.content(stored))
    loss = stored.metrics.train_loss
    return Contribution(stored.kind, content, stored.num_examples, loss if np.isfinite(loss) else nan)


def _weight(stored: Stored, kind: KindSettings) -> float:
    return stored.num_examples * kind.weight
