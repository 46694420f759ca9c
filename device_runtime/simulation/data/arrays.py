"""Arrays written by numpy: a .npz file, or a folder of .npy files that are memory-mapped."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, check_finite, split
from .files import existing
from .spec import DataSpec

Arrays = Mapping[str, NDArray[Any]]

WHOLE = ("x", "y")
DIVIDED = ("x_train", "y_train", "x_test", "y_test")
LABELS = ("labels", "class_names")


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads x and y, which are then split, or x_train, y_train, x_test, y_test.

    y are class numbers, or targets in columns.

    Optional arrays: groups, and labels or class_names.

    Raises DataSetError.
    """
    path = existing(spec)
    arrays = read(path)
    if all(name in arrays for name in DIVIDED):
        x, y, test_x, test_y = (arrays[name] for name in DIVIDED)
        train_y, evaluated = targets(y, path, "y_train"), targets(test_y, path, "y_test")
        return DataSet(
            x, train_y, test_x, evaluated, names(arrays, (train_y, evaluated)), _groups(arrays, path)
        )
    if not all(name in arrays for name in WHOLE):
        raise DataSetError(
            f"{path} has the arrays {', '.join(arrays) or 'none'}; expected x and y, or {', '.join(DIVIDED)}"
        )
    every = targets(arrays["y"], path, "y")
    if arrays["x"].shape[:1] != every.shape[:1]:
        raise DataSetError(
            f"{path}: x is {arrays['x'].shape} and y {every.shape}, expected one label for each"
        )
    check_finite(arrays["x"], f"{path}: x")
    groups = _groups(arrays, path)
    if groups is not None and groups.shape != every.shape[:1]:
        raise DataSetError(f"{path}: {groups.shape} groups for {every.shape} labels")
    return split(Samples(arrays["x"], every, names(arrays, (every,)), groups), spec.test_share, seed)


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads arrays by name; those of a folder are memory-mapped. Raises DataSetError."""
    try:
        if path.is_dir():
            return {
                file.stem: np.load(file, mmap_mode="r", allow_pickle=False)
                for file in sorted(path.glob("*.npy"))
            }
        if not zipfile.is_zipfile(path):
            raise DataSetError(f"{path} is not a .npz file or a folder of .npy files")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise DataSetError(
            f"{path} is not a .npz file or a folder of .npy files of numbers ({why})"
        ) from None


def targets(values: NDArray[Any], path: Path, name: str) -> NDArray[Any]:
    """Class numbers as int64 (n,), or numbers in columns as float64 (n, columns). Raises DataSetError."""
    if values.ndim == 2 and values.dtype.kind in "buif":
        return values.astype(np.float64)
    if values.ndim == 1 and values.dtype.kind == "f":
        return values.astype(np.float64)[:, None]
    return integers(values, path, name)


def integers(values: NDArray[Any], path: Path, name: str) -> NDArray[np.int64]:
    """Class numbers as int64 (n,). Raises DataSetError for other shapes or dtypes."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataSetError(f"{path}: {name} is {values.dtype} {values.shape}, expected integers (n,)")
    return values.astype(np.int64)


def names(arrays: Arrays, labels: tuple[NDArray[Any], ...]) -> tuple[str, ...]:
    """The names of the classes or columns: as stored, or else their numbers up to the largest."""
    for key in LABELS:
        if key in arrays:
            return tuple(str(name) for name in arrays[key].tolist())
    if labels[0].ndim > 1:
        return tuple(str(column) for column in range(labels[0].shape[1]))
    classes = 1 + max((int(y.max()) for y in labels if len(y)), default=-1)
    return tuple(str(label) for label in range(classes))


def _groups(arrays: Arrays, path: Path) -> NDArray[np.int64] | None:
    return integers(arrays["groups"], path, "groups") if "groups" in arrays else None
