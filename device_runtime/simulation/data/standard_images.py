"""Images that many papers use: scikit-learn's digits, MNIST and Fashion-MNIST, CIFAR-10 and CIFAR-100.

MNIST and Fashion-MNIST are idx files, gzipped or not (LeCun's page; Xiao et al. 2017).

CIFAR is in binary batches (Krizhevsky 2009, "binary version" of the download page). A record is one label
byte (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels: red, green, blue, each row by row.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation import digits
from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet
from .files import existing, first, read
from .spec import DataSpec


def load_digits(spec: DataSpec, seed: int) -> DataSet:
    """Loads 1,437 + 360 images uint8 (n, 1, 8, 8) of 0 to 16, split as the demo does for this seed."""
    both = digits.load(np.random.default_rng(seed))
    labels = tuple(str(digit) for digit in range(10))
    return DataSet(both.train.x, both.train.y, both.test.x, both.test.y, labels)


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


def load_idx(spec: DataSpec, seed: int) -> DataSet:
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


SHAPE = (3, 32, 32)
PIXELS = 3072
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def load_cifar(spec: DataSpec, seed: int) -> DataSet:
    """Loads images uint8 (n, 3, 32, 32); `path` is the data's folder or its parent. Raises DataSetError."""
    return _ten(spec) if spec.source == "cifar10" else _hundred(spec)


def _ten(spec: DataSpec) -> DataSet:
    folder = _folder(spec, "cifar-10-batches-bin")
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        raise DataSetError(f"{folder} has no data_batch_1.bin to data_batch_5.bin (the binary version)")
    parts = [_records(file, 1) for file in files]
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([labels[:, 0] for _, labels in parts])
    test_x, test_labels = _records(folder / "test_batch.bin", 1)
    return DataSet(x, y, test_x, test_labels[:, 0], _names(folder / "batches.meta.txt", 10) or TEN)


def _hundred(spec: DataSpec) -> DataSet:
    folder = _folder(spec, "cifar-100-binary")
    (x, labels), (test_x, test_labels) = (_records(folder / f"{name}.bin", 2) for name in ("train", "test"))
    kind, column, count = ("coarse", 0, 20) if spec.coarse else ("fine", 1, 100)
    names = _names(folder / f"{kind}_label_names.txt", count) or tuple(str(label) for label in range(count))
    return DataSet(x, labels[:, column], test_x, test_labels[:, column], names)


def _folder(spec: DataSpec, usual: str) -> Path:
    path = existing(spec)
    return path / usual if (path / usual).is_dir() else path


def _records(file: Path, labels: int) -> tuple[Images, Labels]:
    """Reads a file's pixels (n, 3, 32, 32) and label bytes (n, labels)."""
    data = read(file)
    size = labels + PIXELS
    if not data or len(data) % size:
        raise DataSetError(f"{file} has {len(data)} bytes, expected a multiple of {size}, its records")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, labels:].reshape(-1, *SHAPE), records[:, :labels].astype(np.int64)


def _names(file: Path, count: int) -> tuple[str, ...]:
    """The names in a file, one a line; none where the file is missing."""
    if not file.is_file():
        return ()
    names = tuple(read(file).decode("utf-8", "replace").split("\n"))
    names = tuple(name.strip() for name in names if name.strip())
    if len(names) != count:
        raise DataSetError(f"{file} has {len(names)} names, expected {count}")
    return names
