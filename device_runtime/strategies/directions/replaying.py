"""Perturbs weights along directions, and replays the steps of a step log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, Vector
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
