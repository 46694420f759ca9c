"""Numbers byte by byte: first all lowest bytes, last all highest, which are alike and pack well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError


def split(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Of shape (bytes of a number, *shape), the lowest first on every machine."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    width = values.dtype.itemsize
    return np.ascontiguousarray(little.reshape(-1).view(np.uint8).reshape(-1, width).T).reshape(
        width, *values.shape
    )


def joined(planes: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers, of a dtype of fixed width and this shape. Raises TensorError for other planes."""
    width = np.dtype(dtype).itemsize
    if planes.dtype != np.uint8 or planes.shape != (width, *shape):
        raise TensorError(f"is {planes.dtype} {planes.shape}, expected uint8 {(width, *shape)}")
    rows = np.ascontiguousarray(planes.reshape(width, -1).T)
    little = rows.reshape(-1).view(np.dtype(dtype).newbyteorder("<"))
    numbers: NDArray[Any] = little.astype(dtype).reshape(shape)
    return numbers
