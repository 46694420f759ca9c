"""How far a zeroth-order step goes: by its rate alone, or by the size of the weights and of past scalars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import frexp, inf, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors, TensorSpec

Sizing = Literal["absolute", "relative"]
SMALLEST = 2.0**-10
"""The unit of weights that are all 0, or nearly (Adafactor's 1e-3, Shazeer and Stern 2018, section 8)."""
GRID, MOST = 32, 127
"""A relative scalar is an integer from -MOST to MOST, in parts of the usual scalar: one byte in the log."""


def unit(weights: Tensors, specs: Iterable[TensorSpec], sizing: Sizing) -> float:
    """What `eps` and `lr` are counted in: 1, or the root mean square of these tensors as a power of two.

    So that it seldom changes from round to round, and those who differ in a last bit have the same.
    """
    if sizing == "absolute":
        return 1.0
    total, count = 0.0, 0
    for spec in specs:
        values = np.asarray(weights[spec.name], np.float32).ravel()
        total += float(np.vdot(values, values))
        count += values.size
    mantissa, exponent = frexp(max(SMALLEST, sqrt(total / max(1, count))))
    return float(2.0 ** (exponent if mantissa > sqrt(0.5) else exponent - 1))


@dataclass(frozen=True)
class Moment:
    """The mean square of all scalars so far, the latest weighing most: one number for the whole model.

    `total` is beta * total + (1 - beta) * mean(g^2), `weight` the same of 1 (Adam's second moment, Kingma and
    Ba 2015, as a scalar). A jump counts as MOST / GRID times the usual, which is how far it is gone. In the
    first round the usual is that of the round's median device, and the second round bounds the first in the
    same way: one lie would else leave thousands of rounds without a step.
    """

    total: float = 0.0
    weight: float = 0.0

    @classmethod
    def of(cls, memory: Tensors) -> Moment:
        """What `kept` gave, or none yet."""
        return cls(*memory["moment"].tolist()) if "moment" in memory else cls()

    def after(self, square: float, beta: float, median: float = inf) -> Moment:
        """With the mean square of one more round; of a jump, no more than what the step goes by.

        `median`: the mean square of the round's median device, which counts as the usual where none is known.
        """
        jump, total = (MOST / GRID) ** 2, self.total
        square = min(square, (self.usual**2 or median) * jump)
        if self.weight <= 1 - beta:  # of one round
            total = min(total, self.weight * square * jump)
        return Moment(beta * total + (1 - beta) * square, beta * self.weight + (1 - beta))

    @property
    def usual(self) -> float:
        """The root of the mean square; 0 where every scalar was."""
        return sqrt(self.total / self.weight) if self.weight else 0.0

    def kept(self) -> dict[str, NDArray[np.float64]]:
        return {"moment": np.array([self.total, self.weight])}


def relative(scalars: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
    """The scalars in parts of the usual one, rounded to GRIDths and held within MOST of them."""
    if not usual:
        return np.zeros_like(scalars)
    return np.clip(np.rint(scalars / usual * GRID), -MOST, MOST) + 0.0  # no -0, which is no integer
