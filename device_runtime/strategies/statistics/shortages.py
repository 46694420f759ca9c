"""Computes which classes the aggregator lacks, so that devices that would add little can rest (ours).

N_c are the pooled samples of class c (`closed_form`). T_c says how much of what trains the extractor was of
class c, where n_c of a device's n samples are of it; R counts updates of the richest kind:

    T_c <- 0.9 T_c + sum n_c / n        R <- 0.9 R + 1 for each
    shortage of c, in percent: 100 max(0, 1 - N_c / mean N), and the same of T

The means are over classes of which there is something; a class of which there is nothing lacks 100. Each
device adds 1 to T in total, whatever it says of its samples. Nobody rests while R is below 1: without full
updates all others are needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import MOST_SHORTAGES, Shortages
from device_runtime.models.bundles.tensors import Tensors

MEMORY = "shortages"
"""The key of T and R in `CarriedState.memory`, whose other keys are names of kinds."""
DECAY = 0.9


class TrainedClasses:
    """Adds up which classes a round's devices trained the extractor on."""

    def __init__(self, classes: int) -> None:
        """`classes`: or strata, where the loss is not of classes."""
        self._trained, self._richest = np.zeros(classes), 0

    def add(self, counts: NDArray[np.float64], devices: int, richest: bool) -> None:
        """Adds devices that trained on samples of these counts by class, (classes,)."""
        if (total := float(counts.sum())) > 0:
            self._trained += devices * counts / total
            self._richest += devices * richest

    def after(self, memory: Tensors) -> dict[str, NDArray[np.float64]]:
        """T float64 (classes,) and R float64 () after this round; `memory` is what the round before gave."""
        trained, richest = memory.get("trained", np.zeros(1)), memory.get("richest", np.zeros(()))
        return {
            "trained": DECAY * trained + self._trained,
            "richest": np.asarray(DECAY * richest + self._richest, np.float64),
        }


def class_shortages(pool: Tensors, trained: Tensors) -> Shortages | None:
    """What a round's offer says is wanted; None: all devices take part.

    `pool`: as `closed_form.StatisticsPool.kept` wrote it; `trained`: as `TrainedClasses.after`.
    """
    if not pool or not trained or trained["richest"] < 1 or len(pool["counts"]) > MOST_SHORTAGES:
        return None
    return Shortages(_shortage(pool["counts"]), _shortage(trained["trained"]))


def _shortage(amounts: NDArray[np.float64]) -> bytes:
    """The shortage of each class in percent, a byte each."""
    present = amounts > 0
    if not present.any():
        return bytes([100]) * len(amounts)
    short = 100 * np.clip(1 - amounts / amounts[present].mean(), 0, 1)
    return bytes(np.rint(short).astype(np.uint8).tolist())
