"""Scales the features before the head to about the same size, if the bundle has a tensor for it.

The loss is most curved along the weights of large features. If all features are about as large, one step
length suits all weights of the head, and no class mean is dominated by a few features (docs/zeroth-order.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors

FLOOR = 0.1
"""Share of the average mean square that is added to each feature's, for features that are nearly 0."""


def scale_in(manifest: Manifest, weights: Tensors) -> NDArray[np.float64]:
    """The current scale of the features, float64 (width,); 1 in a bundle without a scale."""
    if manifest.scale is None:
        return np.ones(manifest.head.features)
    return np.asarray(weights[manifest.scale], np.float64)


def scale_by(means: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """A new scale float32 (width,), from class means (classes, width) of unscaled features.

    It is 1 / the root mean square of each feature over the means, times a factor that keeps the size of the
    means as a whole.
    """
    squares = np.square(means, dtype=np.float64).mean(axis=0)
    if not squares.any():
        return np.ones(len(squares), np.float32)
    scale = 1 / np.sqrt(squares + FLOOR * squares.mean())
    scale *= np.sqrt(squares.sum() / (squares * scale**2).sum())
    return np.asarray(scale, np.float32)
