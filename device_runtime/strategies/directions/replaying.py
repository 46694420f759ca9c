"""Perturbs weights along directions, finds the length of a step, and replays the steps of a step log.

A step's length is absolute, or relative to the weights and to past scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from math import frexp, inf, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec, Vector
from device_runtime.models.errors import TensorError
from device_runtime.profiles.measure import usable_cores

from . import directions

WORTH_THREADS = 1 << 26
"""Fewest direction elements for which starting threads is worth its time."""


@dataclass(frozen=True)
class ScaledDirection:
    """`scale` times direction `index` under `seed`."""

    seed: int
    index: int
    scale: float
    generator: str = directions.GENERATOR

    def part(self, begin: int, size: int) -> directions.Elements:
        """The unscaled direction from element `begin` on, float32 (size,). Raises UnknownGenerator."""
        return directions.direction(self.seed, self.index, begin, size, self.generator)


def perturb(params: Flat, base: Tensors, along: ScaledDirection) -> None:
    """params <- base + scale * z in float32, always from the base, so that no perturbation is undone.

    `base` holds every tensor of `params`. If scale * z is exact, as for signs, a weight is rounded once.
    Works block by block, in one pass over memory. Raises UnknownGenerator.
    """
    scale = np.float32(along.scale)
    for begin in range(0, len(params.vector), directions.BLOCK):
        part = params.load_part(base, begin, directions.BLOCK)
        z = along.part(begin, len(part))
        z *= scale
        part += z


def move(vector: Vector, along: Sequence[ScaledDirection]) -> None:
    """vector <- vector + the sum of scale * z, in float64 and in that order, rounded to float32 once.

    Raises UnknownGenerator.
    """
    apply_moves(vector, [along], threads=1)


def replay(
    weights: Tensors, steps: Iterable[Step], manifest: Manifest, threads: int | None = None
) -> dict[str, NDArray[Any]]:
    """The weights after these steps, as the aggregator takes them and every device that catches up.

    Computed in float64, with one rounding to float32 for each weight and step, so that all get the same bits,
    with any number of threads (by default one for each core that this process may use). The tensors that
    moved are views of one new buffer. Raises UnknownGenerator, BundleError for an unknown tunable set, and
    TensorError for an invalid step.
    """
    current = dict(weights)
    for tunable, together in groupby(steps, key=lambda step: step.tunable):
        moves = [along_step(step) for step in together]
        flat = Flat(manifest.specs(tunable))
        flat.load(current)
        apply_moves(flat.vector, moves, threads)
        current.update(flat.views)
    return current


def along_step(step: Step) -> tuple[ScaledDirection, ...]:
    """The scaled directions of a step. Raises UnknownGenerator, and TensorError for an invalid step."""
    directions.check_generator(step.generator)
    if not step.scalars or not 0 <= step.seed < 2**64:
        raise TensorError(f"step of round {step.round}: {len(step.scalars)} scalars, seed {step.seed}")
    coefficient = -(step.lr * step.share / len(step.scalars))
    return tuple(
        ScaledDirection(step.seed, index, coefficient * scalar, step.generator)
        for index, scalar in enumerate(step.scalars)
    )


def apply_moves(vector: Vector, moves: Sequence[Sequence[ScaledDirection]], threads: int | None) -> None:
    """Apply every move in turn, each rounded once: all moves to one block, then the next block.

    threads: None for one on each core, if there is enough work for them. Raises UnknownGenerator.
    """
    begins = range(0, len(vector), directions.BLOCK)
    if len(vector) * sum(map(len, moves)) < WORTH_THREADS:
        threads = 1
    threads = min(threads or usable_cores(), len(begins))
    if threads < 2:
        for begin in begins:
            _take_block(vector, begin, moves)
        return
    with ThreadPoolExecutor(threads, "replay") as pool:
        for done in [pool.submit(_take_block, vector, begin, moves) for begin in begins]:
            done.result()


def _take_block(vector: Vector, begin: int, moves: Sequence[Sequence[ScaledDirection]]) -> None:
    part = vector[begin : begin + directions.BLOCK]
    moved, far = np.empty(len(part)), np.empty(len(part))
    for along in moves:
        np.copyto(moved, part)
        for each in along:
            z = each.part(begin, len(part))
            np.multiply(z, each.scale, out=far, dtype=np.float64)
            moved += far
        np.copyto(part, moved, casting="same_kind")


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
