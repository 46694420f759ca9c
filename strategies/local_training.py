"""Local epochs of mini-batch SGD on a tunable set: what full and subset updates have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.engine import DeviceModel
from models.sgd import Sgd, SgdState
from models.tensors import Tensors

from .kind import LocalData, Run


@dataclass(frozen=True)
class Epochs:
    """E epochs of SGD over `indices`, shuffled anew in each, in batches of `batch` samples."""

    sgd: Sgd
    epochs: int
    batch: int
    indices: NDArray[np.int64]


@dataclass(frozen=True)
class Trained:
    """The tunable set after training, and the mean loss over the samples of the last epoch."""

    tensors: Tensors
    loss: float


def train(model: DeviceModel, tunable: str, data: LocalData, plan: Epochs, run: Run) -> Trained:
    """Train a tunable set from the distributed weights. Raises OutOfTime by the device's own clock."""
    trainer = model.trainer(tunable)
    state = SgdState(plan.sgd, trainer.params.vector)
    rng, began = run.rng(), run.clock()
    seen, total = 0, len(plan.indices) * plan.epochs
    loss = 0.0
    for _ in range(plan.epochs):
        loss = 0.0
        order = rng.permutation(plan.indices)
        for start in range(0, len(order), plan.batch):
            batch = order[start : start + plan.batch]
            loss += trainer.loss_and_grads(data.x[batch], data.y[batch]) * len(batch)
            state.step(trainer.params.vector, trainer.grads.vector)
            seen += len(batch)
            run.pace(began, seen / total)
        loss /= len(order)
    return Trained(trainer.params.tensors(), loss)
