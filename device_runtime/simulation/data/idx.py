"""MNIST and Fashion-MNIST: idx files, gzipped or not (LeCun's page; Xiao et al. 2017)."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet
from .files import existing, first, read
from .spec import DataSpec

UNSIGNED_BYTES = 8  # the type code in the third byte
LABELS = {
    "mnist": tuple(str(digit) for digit in range(10)),
    "fashion-mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
}


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads images uint8 (n, 1, 28, 28) of 0 to 255. Raises DataSetError."""
    folder = existing(spec)
    x, y, test_x, test_y = (
        values(first(folder, _spellings(part, kind, axes)), axes)
        for part in ("train", "t10k")
        for kind, axes in (("images", 3), ("labels", 1))
    )
    labels = LABELS[spec.source]
    return DataSet(x[:, None], y.astype(np.int64), test_x[:, None], test_y.astype(np.int64), labels)


def values(file: Path, axes: int) -> NDArray[np.uint8]:
    """Reads an idx file of `axes` axes as uint8.

    The file is the bytes 0, 0, type, axes; each size as 4 bytes, the highest first; then the values.
    Raises DataSetError.
    """
    data = read(file)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataSetError(f"{file} cannot be unpacked: {error}") from None
    head = 4 + 4 * axes
    if data[:4] != bytes((0, 0, UNSIGNED_BYTES, axes)) or len(data) < head:
        raise DataSetError(
            f"{file} begins with {data[:4].hex(' ')}, expected 00 00 08 {axes:02x}: bytes in {axes} axes"
        )
    shape = np.frombuffer(data[4:head], ">u4").tolist()
    if len(data) - head != prod(shape):
        raise DataSetError(f"{file} has {len(data) - head} values, expected {prod(shape)} for {tuple(shape)}")
    array: NDArray[np.uint8] = np.frombuffer(data, np.uint8, offset=head).reshape(shape)
    return array


def _spellings(part: str, kind: str, axes: int) -> list[str]:
    return [f"{part}-{kind}{dot}idx{axes}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
