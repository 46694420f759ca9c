"""Cuts long vectors into blocks that fit the processor's cache.

So one pass over memory serves several operations.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector

BLOCK = 32_768
"""Values in a block: 128 KiB; four (weights, gradients, momentum, scratch) fit a small device's L2 cache."""


def block_buffer(vector: Vector) -> Vector:
    """An uninitialised buffer for one block of `vector`; shape (at most BLOCK,)."""
    return np.empty(min(vector.size, BLOCK), np.float32)


def blocks(*vectors: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Views of the same block of every vector, block after block; all vectors have shape (size,)."""
    for start in range(0, vectors[0].size, BLOCK):
        yield tuple(vector[start : start + BLOCK] for vector in vectors)
