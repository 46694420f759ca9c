"""Tables of numbers: .csv or .tsv with a header, the features in columns, and labels or targets in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, split
from .files import existing
from .spec import DataSpec
from .text import table_rows


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads features float32 (n, columns), split by the seed unless `test_path` is given.

    `label_column` names the column of labels or of a target, or several columns of targets, separated by
    commas; the default is the last. Numbers of several columns, and of one that has others than 0, 1, 2, ..,
    are targets; anything else names classes. Raises DataSetError.
    """
    path = existing(spec)
    names, x, cells = _read(path, spec.label_column)
    if not spec.test_path:
        y, labels = _targets(names, cells, path)
        return split(Samples(x, y, labels), spec.test_share, seed)
    test = Path(spec.test_path).expanduser()
    _, test_x, test_cells = _read(test, spec.label_column)
    every, labels = _targets(names, np.concatenate([cells, test_cells]), path)
    return DataSet(x, every[: len(x)], test_x, every[len(x) :], labels)


def _read(file: Path, asked: str) -> tuple[tuple[str, ...], NDArray[np.float32], NDArray[np.str_]]:
    """The names of the columns of targets, the features, and the cells of the targets, (n, columns)."""
    if not file.is_file():
        raise DataSetError(f"{file}: no such file, expected a .csv or .tsv table")
    header, *rows = table_rows(file)
    called = [name.strip() for name in header]
    names = tuple(name.strip() for name in asked.split(",")) if asked else (called[-1],)
    if unknown := [name for name in names if name not in called]:
        raise DataSetError(f"{file} has no column {unknown[0]!r}; its header has {', '.join(called[:12])}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataSetError(f"{file}, row {number} has {len(row)} columns, expected {len(header)}")
    if not rows:
        raise DataSetError(f"{file} has a header and no rows")
    cells, targets = np.array(rows, np.str_), [called.index(name) for name in names]
    x = _numbers(np.delete(cells, targets, axis=1))
    if x is None:
        raise DataSetError(f"{file} has features that are no numbers, expected numbers in all other columns")
    return names, x.astype(np.float32), np.char.strip(cells[:, targets])


def _numbers(cells: NDArray[np.str_]) -> NDArray[np.float64] | None:
    """The cells as numbers; None if any is none."""
    try:
        return cells.astype(np.float64)
    except ValueError:
        return None


def _targets(
    names: tuple[str, ...], cells: NDArray[np.str_], file: Path
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Targets in columns with their names, or class numbers with the names of the classes."""
    numbers = _numbers(cells)
    if numbers is None:
        if len(names) > 1:
            raise DataSetError(f"{file} has targets that are no numbers in {', '.join(names)}")
        labels, y = np.unique(cells[:, 0], return_inverse=True)
        return y.astype(np.int64), tuple(labels.tolist())
    found = np.unique(numbers)
    if len(names) > 1 or not np.array_equal(found, np.arange(len(found))):
        return numbers, names
    return numbers[:, 0].astype(np.int64), tuple(str(number) for number in range(len(found)))
