"""Long vectors in pieces that stay in the processor's cache, so that one pass over memory does many sums."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

BLOCK = 32_768
"""Values: 128 KiB; four such pieces (weights, gradients, momentum, scratch) fit a small device's L2 cache."""


def scratch_for(vector: Vector) -> Vector:
    """Room for one block of `vector`, not initialised; shape (at most BLOCK,)."""
    return np.empty(min(vector.size, BLOCK), np.float32)


def blocks(*vectors: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """The same piece of every vector, as views, from the first to the last; vectors: all of shape (size,)."""
    for start in range(0, vectors[0].size, BLOCK):
        yield tuple(vector[start : start + BLOCK] for vector in vectors)
