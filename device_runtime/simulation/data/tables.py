"""Tables of numbers: .csv or .tsv with a header, the features in columns, and labels or targets in others."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
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
    names, columns, x, cells = _read(path, spec.label_column)
    if not spec.test_path:
        y, labels = _targets(names, cells)
        return split(Samples(x, y, labels), spec.test_share, seed)
    test = Path(spec.test_path).expanduser()
    _, test_columns, test_x, test_cells = _read(test, ",".join(names))
    if sorted(test_columns) != sorted(columns):
        expected, there = ", ".join(columns[:12]), ", ".join(test_columns[:12])
        raise DataSetError(f"{test} has the features {there}; {path} has {expected}")
    test_x = test_x[:, [test_columns.index(column) for column in columns]]
    every, labels = _targets(names, np.concatenate([cells, test_cells]))
    return DataSet(x, every[: len(x)], test_x, every[len(x) :], labels)


def _read(file: Path, asked: str) -> tuple[tuple[str, ...], list[str], NDArray[np.float32], NDArray[np.str_]]:
    """The names of targets and features, the features, and the cells of the targets, (n, columns)."""
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
    features = [column for column in range(len(called)) if column not in targets]
    feature_names = [called[column] for column in features]
    x = _numbers(cells[:, features], feature_names, file)
    answers = np.char.strip(cells[:, targets])
    if len(names) > 1:
        _numbers(answers, names, file)
    return names, feature_names, x, answers


def _numbers(cells: NDArray[np.str_], columns: Sequence[str], file: Path) -> NDArray[np.float32]:
    """The cells (rows, columns) as numbers. Raises DataSetError, naming the first that is none."""
    try:
        numbers = cells.astype(np.float64)
    except ValueError:
        numbers = np.array([[_number(cell) for cell in row] for row in cells.tolist()])
    with np.errstate(over="ignore"):
        values: NDArray[np.float32] = numbers.astype(np.float32)
    if len(wrong := np.argwhere(~np.isfinite(values))):
        row, column = wrong[0].tolist()
        where = f"row {row + 2}, column {columns[column]}"
        raise DataSetError(f"{file}, {where}: {str(cells[row, column])!r} is no finite number")
    return values


def _number(cell: str) -> float:
    """The cell as a number; nan if it is none."""
    try:
        return float(cell)
    except ValueError:
        return nan


def _targets(names: tuple[str, ...], cells: NDArray[np.str_]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Targets in columns with their names, or class numbers with the names of the classes."""
    try:
        numbers = cells.astype(np.float64)
    except ValueError:
        labels, y = np.unique(cells[:, 0], return_inverse=True)
        return y.astype(np.int64), tuple(labels.tolist())
    found = np.unique(numbers)
    if len(names) > 1 or not np.array_equal(found, np.arange(len(found))):
        return numbers, names
    return numbers[:, 0].astype(np.int64), tuple(str(number) for number in range(len(found)))
