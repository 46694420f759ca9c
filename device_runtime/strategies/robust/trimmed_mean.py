"""The coordinate-wise trimmed mean (Yin et al. 2018, Byzantine-robust distributed learning, definition 2).

Of each value the largest and the smallest are left out, a share `trim` at either end; the rest is averaged.
It stands as many liars as are left out at one end.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from device_runtime.models.bundles.tensors import Vector


def trimmed(devices: int, share: float) -> int:
    """How many values are left out at either end: at least this share, as long as one is left."""
    return min(ceil(share * devices - 1e-9), (devices - 1) // 2)


def trimmed_mean(values: Vector, share: float) -> Vector:
    """float32 (devices, values) -> (values,), averaged in float64 in the order of size."""
    cut = trimmed(len(values), share)
    ordered = np.sort(values, axis=0)
    mean: Vector = ordered[cut : len(values) - cut].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean
