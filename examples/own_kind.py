"""An own kind of update: devices send only the largest changes of the model (top-k sparsification).

    device-runtime simulate digits --kind examples/own_kind.py:TopK --compare kinds=top-k,fedavg --rounds 10

What a device leaves out is added to what it trains the next time: Aji and Heafield 2017 (Sparse Communication
for Distributed Gradient Descent), algorithm 1. docs/own-kind.md explains each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, ClassVar

import numpy as np

from device_runtime.kinds import (
    FedAvg,
    KindInfo,
    KindResult,
    Manifest,
    RoundModel,
    Run,
    Setting,
    TensorMean,
    TensorSpec,
    Update,
    Work,
    Workload,
    upload_bytes,
)

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class State:
    """What the aggregator sums up: the mean of the models, and the base that changes are added to."""

    mean: TensorMean
    base: Tensors


@dataclass(frozen=True)
class TopK(FedAvg):
    """Trains as FedAvg does, and sends the `share` of the values that changed most."""

    name: ClassVar[str] = "top-k"
    about: ClassVar[KindInfo] = KindInfo("everything", "the largest changes", "Aji and Heafield 2017")
    share: Annotated[float, Setting("Share of the values that are sent.", 0.05, more_than=0, at_most=1)] = (
        0.01
    )

    def count(self, values: int) -> int:
        """How many of a model's `values` values are sent."""
        return ceil(self.share * values)

    # The device's half

    def work_on(self, workload: Workload, samples: int, scored: int = 0) -> Work:
        """The work of FedAvg with fewer bytes to send, and room for what is left out."""
        work, values = super().work_on(workload, samples, scored), workload.values("all")
        sent = upload_bytes(2 * self.count(values), 2)
        return replace(work, bytes_up=sent, peak_bytes=work.peak_bytes + 8 * values)

    def train(self, model: Any, data: Any, run: Run) -> Update:
        base = model.weights
        update = super().train(model, data, run)
        change = flat({**base, **update.tensors}) - flat(base)
        if "left" in run.memory:
            change += run.memory["left"]
        count = self.count(change.size)
        largest = np.sort(np.argpartition(-np.abs(change), count - 1)[:count])
        sent = {"indices": largest.astype(np.int32), "values": change[largest]}
        change[largest] = 0.0
        return replace(update, tensors=sent, memory={"left": change})

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        count = self.count(sum(spec.size for spec in manifest.stored() if spec.dtype == "float32"))
        return TensorSpec("indices", (count,), "int32"), TensorSpec("values", (count,))

    # The aggregator's half

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Reject indices that are not ascending. At those beyond the model `comparable` fails."""
        ascending = update["indices"][0] >= 0 and (np.diff(update["indices"]) > 0).all()
        return "" if ascending else "its indices are not ascending from 0"

    def start(self, model: RoundModel) -> State:
        return State(TensorMean(), model.weights)

    def fold(self, state: State, update: Update, weight: float) -> State:
        dense = self.comparable(update, state.base)
        return replace(state, mean=state.mean.add(dense.tensors, weight))

    def finish(self, state: State, model: RoundModel) -> KindResult:
        return KindResult(mean=state.mean, num_examples=state.mean.most)

    def comparable(self, update: Update, base: Tensors) -> Update:
        """The whole model, which robust rules compare; a late change counts by its share."""
        if "values" not in update.tensors:
            return update
        share = update.late.share if update.late else 1.0
        dense, sent = flat(base), update.tensors
        dense[sent["indices"]] += np.float32(share) * sent["values"]
        return replace(update, tensors=unflat(dense, base))


def flat(tensors: Tensors) -> np.ndarray:
    """All float32 values one after another, in the order of the tensors' names."""
    return np.concatenate([tensors[name].reshape(-1) for name in floats(tensors)])


def unflat(values: np.ndarray, like: Tensors) -> Tensors:
    """The inverse of `flat`, in the shapes of `like`."""
    parts, at = {}, 0
    for name in floats(like):
        parts[name] = values[at : at + like[name].size].reshape(like[name].shape)
        at += like[name].size
    return parts


def floats(tensors: Tensors) -> list[str]:
    return sorted(name for name, value in tensors.items() if value.dtype == np.float32)
