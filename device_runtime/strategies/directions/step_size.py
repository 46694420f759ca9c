"""The length of zeroth-order steps: absolute, or relative to the weights and to past scalars."""

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
"""The smallest unit, for weights that are nearly 0 (Adafactor's 1e-3, Shazeer and Stern 2018, section 8)."""
GRID, MOST = 32, 127
"""A relative scalar is an integer from -MOST to MOST: a past scalar's size is GRID; one byte in the log."""


def unit(weights: Tensors, specs: Iterable[TensorSpec], sizing: Sizing) -> float:
    """The unit of `eps` and `lr`: 1, or the root mean square of these tensors, rounded to a power of two.

    A power of two seldom changes from round to round, and is the same for devices that differ in a last bit.
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
class ScalarMoment:
    """The decaying mean square of all scalars so far: one number for the whole model.

    `total` is beta * total + (1 - beta) * mean(g^2), and `weight` the same of 1 (Adam's second moment, Kingma
    and Ba 2015, as a scalar). A sudden jump counts as at most MOST / GRID times that size, which is the
    longest step taken. In the first round the size is that of the median device, and the second
    round bounds the first in the same way: otherwise one false value would leave thousands of rounds without
    a step.
    """

    total: float = 0.0
    weight: float = 0.0

    @classmethod
    def of(cls, memory: Tensors) -> ScalarMoment:
        """The moment that `kept` wrote; the initial one if there is none."""
        return cls(*memory["moment"].tolist()) if "moment" in memory else cls()

    def after(self, square: float, beta: float, median: float = inf) -> ScalarMoment:
        """The moment after one more round with this mean square, bounded as a step is.

        median: the mean square of the round's median device, which bounds the first round.
        """
        jump, total = (MOST / GRID) ** 2, self.total
        square = min(square, (self.usual**2 or median) * jump)
        if self.weight <= 1 - beta:  # of one round
            total = min(total, self.weight * square * jump)
        return ScalarMoment(beta * total + (1 - beta) * square, beta * self.weight + (1 - beta))

    @property
    def usual(self) -> float:
        """The root mean square of scalars so far; 0 if there are none, or all were 0."""
        return sqrt(self.total / self.weight) if self.weight else 0.0

    def kept(self) -> dict[str, NDArray[np.float64]]:
        """As tensors, to keep until the next round; read by `of`."""
        return {"moment": np.array([self.total, self.weight])}


def relative(scalars: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
    """The scalars divided by their size so far, times GRID, rounded to integers and clipped to +-MOST."""
    if not usual:
        return np.zeros_like(scalars)
    return np.clip(np.rint(scalars / usual * GRID), -MOST, MOST) + 0.0  # turns -0.0 into 0.0
