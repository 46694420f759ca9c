"""What is applied along directions: weights are perturbed, and the steps of a log are taken again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.messages import Step
from models.errors import TensorError
from models.manifest import Manifest
from models.tensors import Flat, Tensors, Vector

from . import directions


@dataclass(frozen=True)
class Along:
    """`scale` times direction `index` under `seed`."""

    seed: int
    index: int
    scale: float
    generator: str = directions.GENERATOR


def move(vector: Vector, start: Vector, along: Sequence[Along]) -> None:
    """vector <- start + the sum of scale * z, in float64 and in that order, rounded to float32 once.

    Block by block; `start` may be `vector` itself. Raises UnknownGenerator.
    """
    for begin in range(0, len(vector), directions.BLOCK):
        part = slice(begin, begin + directions.BLOCK)
        moved = start[part].astype(np.float64)
        for each in along:
            z = directions.direction(each.seed, each.index, begin, len(moved), each.generator)
            moved += np.multiply(z, each.scale, dtype=np.float64)
        vector[part] = moved


def replay(weights: Tensors, steps: Iterable[Step], manifest: Manifest) -> dict[str, NDArray[Any]]:
    """The weights after these steps: what the aggregator does, and every device that catches up.

    In float64, one rounding to float32 a weight and step, so that all who replay hold the same bits.
    Raises UnknownGenerator, BundleError for an unknown tunable set, TensorError for a step that is none.
    """
    current = dict(weights)
    for step in steps:
        flat = Flat(manifest.specs(step.tunable))
        flat.load(current)
        move(flat.vector, flat.vector, along_step(step))
        current.update(flat.tensors())
    return current


def along_step(step: Step) -> tuple[Along, ...]:
    """What a step moves the weights along. Raises UnknownGenerator, TensorError for a step that is none."""
    directions.check_generator(step.generator)
    if not step.scalars or not 0 <= step.seed < 2**64:
        raise TensorError(f"step of round {step.round}: {len(step.scalars)} scalars, seed {step.seed}")
    indices = step.indices or range(len(step.scalars))
    if len(indices) != len(step.scalars) or not all(0 <= index < 2**64 for index in step.indices):
        raise TensorError(f"step of round {step.round}: {len(step.scalars)} scalars, indices {indices}")
    coefficient = -(step.lr * step.share / len(step.scalars))
    return tuple(
        Along(step.seed, index, coefficient * scalar, step.generator)
        for index, scalar in zip(indices, step.scalars, strict=True)
    )
