"""How much each feature weighs before the head: as class means say, where the bundle has a place for it.

A loss is most curved along the weights of large features; where all are about as large, one length of step
suits all weights of the head, and no class mean is that of a few features alone (docs/zeroth-order.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors

FLOOR = 0.1
"""Of the average mean square: what a feature that is nearly 0 everywhere is taken for."""


def scale_in(manifest: Manifest, weights: Tensors) -> NDArray[np.float64]:
    """What features are multiplied by now, (width,); 1 in a bundle without such a scale."""
    if manifest.scale is None:
        return np.ones(manifest.head.features)
    return np.asarray(weights[manifest.scale], np.float64)


def scale_by(means: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """1 / the root mean square of each feature over class means (classes, width), as they are without a
    scale; by a factor by which the means as a whole stay as large as they are.
    """
    squares = np.square(means, dtype=np.float64).mean(axis=0)
    if not squares.any():
        return np.ones(len(squares), np.float32)
    scale = 1 / np.sqrt(squares + FLOOR * squares.mean())
    scale *= np.sqrt(squares.sum() / (squares * scale**2).sum())
    return np.asarray(scale, np.float32)
