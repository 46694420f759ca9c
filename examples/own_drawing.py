"""An own drawing policy: devices whose last loss was high are asked more often (Cho et al. 2020).

    device-runtime simulate mixed --plugin examples/own_drawing.py:HighLoss --draw high-loss \\
        --devices-per-round 5

The aggregator draws by the same class: `device-runtime serve` has the same options. docs/own-policy.md
explains each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import ClassVar

import numpy as np

from device_runtime.kinds import DrawCandidate, DrawingPolicy

TIMES = 3
"""Devices that are drawn uniformly first, for each that is wanted."""


@dataclass(frozen=True)
class HighLoss(DrawingPolicy):
    """Of TIMES as many devices, drawn uniformly, those with the highest loss; new devices come first."""

    name: ClassVar[str] = "high-loss"
    about: ClassVar[str] = "of three times as many devices, those whose last loss was highest"

    def draw(
        self, candidates: Sequence[DrawCandidate], count: int, number: int, rng: np.random.Generator
    ) -> Sequence[DrawCandidate]:
        some = rng.permutation(len(candidates))[: TIMES * count]
        return sorted((candidates[i] for i in some), key=_loss, reverse=True)[:count]


def _loss(device: DrawCandidate) -> float:
    loss = device.updates.train_loss
    return inf if isnan(loss) else loss
