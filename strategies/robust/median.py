"""The coordinate-wise median (Yin et al. 2018, Byzantine-robust distributed learning, definition 1).

Each value of the model becomes the median over the devices: with fewer liars than honest devices it lies
between the values of honest ones, however large a lie is.
"""

from __future__ import annotations

import numpy as np

from models.tensors import Vector


def median(values: Vector) -> Vector:
    """float32 (devices, values) -> (values,); of an even number the mean of the two in the middle."""
    half, odd = divmod(len(values), 2)
    if odd:
        middle: Vector = np.partition(values, half, axis=0)[half]
        return middle
    parted = np.partition(values, (half - 1, half), axis=0)
    mean: Vector = ((parted[half - 1].astype(np.float64) + parted[half]) / 2).astype(np.float32)
    return mean
