"""A data set in memory (or memory-mapped), and functions that split, limit and check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.data.cells import first_of
from device_runtime.models.data.labels import LabelMap
from device_runtime.models.data.sample_source import SampleSource
from device_runtime.models.data.units import Refused
from device_runtime.models.errors import DataError
from device_runtime.simulation.errors import DataSetError
from device_runtime.user_account import expanded

from .spec import DataSpec

PARTS = 10
"""The parts into which a column of targets is cut to divide samples by it."""
SPLIT, SUBSET, GENERIC, VALIDATION = 11, 12, 14, 16  # purposes of draws from a run's seed


@dataclass(frozen=True)
class DataSet:
    """Training and test samples: raw inputs (n, ...) of any real dtype, and their targets.

    Inputs may be memory-mapped.
    train_y, test_y: class numbers int64 (n,), or raw targets in columns, float64 (n, columns).
    labels: the names of the classes, or of the columns.
    groups: int64 (n,), the natural client (writer, speaker) of each training sample, -1 for none.
    vocabulary: of a text, the word of each token id.
    generic: samples that are held out of training.
    notes: how the files were read, as far as that was decided by default, and what was left out.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    labels: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    vocabulary: tuple[str, ...] = ()
    generic: Samples | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_columns(self) -> bool:
        """Whether targets are numbers in columns, and not classes."""
        return self.train_y.ndim > 1

    @property
    def keys(self) -> NDArray[np.int64]:
        """The class number by which partitions divide each training sample, (n,).

        Of targets in columns, the tenth of all values of the first column that the sample is in; of columns
        of 0 and 1, the number of the first that is 1.
        """
        y = self.train_y
        if y.ndim == 1 or (y.shape[1] > 1 and np.isin(y, (0, 1)).all()):
            numbers: NDArray[np.int64] = y if y.ndim == 1 else y.argmax(axis=1)
            return numbers
        edges = np.quantile(y[:, 0], np.arange(1, PARTS) / PARTS)
        tenths: NDArray[np.int64] = np.searchsorted(edges, y[:, 0], side="right")
        return tenths

    @property
    def in_tenths(self) -> bool:
        """Whether `keys` are tenths of the first column of targets."""
        return self.has_columns and self.key_names != self.labels[: len(self.key_names)]

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of `keys`, from 0."""
        if not self.has_columns:
            return self.labels
        count = int(self.keys.max(initial=0)) + 1
        tenths = tuple(f"{self.labels[0]}, tenth {number + 1}" for number in range(PARTS))
        return self.labels[:count] if len(self.labels) > 1 and count <= len(self.labels) else tenths


@dataclass(frozen=True)
class Samples:
    """Samples that are not split into training and test."""

    x: NDArray[Any]
    y: NDArray[Any]
    labels: tuple[str, ...]
    groups: NDArray[np.int64] | None = None


def split(samples: Samples, share: float, seed: int, in_place: bool = False) -> DataSet:
    """Splits off a random `share` of the samples, at least one, for evaluation.

    in_place: all samples stay in the memory of `samples.x` and `samples.y`, whose order is lost, unless they
    are read-only. Raises DataSetError for fewer than 2 samples.
    """
    count = len(samples.y)
    if count < 2:
        raise DataSetError(f"{count} samples, expected 2 or more to split")
    tests = min(max(1, round(share * count)), count - 1)
    test = np.zeros(count, bool)
    test[_shuffled(count, np.random.default_rng([seed, SPLIT]))[:tests]] = True
    groups = None if samples.groups is None else samples.groups[~test].astype(np.int64, copy=False)
    (train_x, test_x), (train_y, test_y) = (
        _parted(of, test) if in_place and of.flags.writeable else (of[~test], of[test])
        for of in (samples.x, samples.y)
    )
    return DataSet(train_x, train_y, test_x, test_y, samples.labels, groups)


def _shuffled(count: int, rng: np.random.Generator) -> NDArray[np.signedinteger[Any]]:
    """The numbers below `count` as `rng.permutation` draws them, in half of its memory."""
    order: NDArray[np.signedinteger[Any]] = np.arange(count, dtype=np.int32 if count < 1 << 31 else np.int64)
    rng.shuffle(order)
    return order


def _parted(x: NDArray[Any], last: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of x (n, ..) that are not `last` (n,), moved to its beginning, and those that are."""
    end, behind = 0, np.empty((int(last.sum()), *x.shape[1:]), x.dtype)
    for first in range(0, len(x), BLOCK):
        rows, goes = x[first : first + BLOCK], last[first : first + BLOCK]
        moved = first - end
        behind[moved : moved + int(goes.sum())] = rows[goes]
        stay = rows[~goes]
        x[end : end + len(stay)] = stay
        end += len(stay)
    x[end:] = behind
    return x[:end], x[end:]


def _rows(x: NDArray[Any], chosen: NDArray[np.integer]) -> NDArray[Any]:
    """These rows of x (n, ..), ascending: a copy or, of more than half of x, moved to its beginning."""
    if not x.flags.writeable or 2 * len(chosen) <= len(x):
        few: NDArray[Any] = x[chosen]
        return few
    for first in range(0, len(chosen), BLOCK):
        rows = chosen[first : first + BLOCK]
        x[first : first + len(rows)] = x[rows]
    return x[: len(chosen)]


# What follows takes over the arrays of its data set: inputs that it keeps may be moved within their memory.


def of_classes(data: DataSet, spec: DataSpec, where: str) -> DataSet:
    """Keeps only the samples of `spec.classes`, relabelled 0, 1, .. in that order.

    Raises DataSetError, naming `where`, for a class that the data does not have, or if no sample is left.
    """
    if spec.classes is None:
        return data
    if data.has_columns:
        raise DataSetError(f"{where}: classes is given, and the targets are columns, no classes")
    if (top := max(spec.classes)) >= len(data.labels):
        raise DataSetError(f"{where}: classes has {top}, expected 0 to {len(data.labels) - 1}")
    place = np.full(len(data.labels), -1, np.int64)
    place[list(spec.classes)] = np.arange(len(spec.classes))
    train, test = (np.flatnonzero(place[y] >= 0) for y in (data.train_y, data.test_y))
    subset = replace(
        data,
        train_x=_rows(data.train_x, train),
        train_y=place[data.train_y[train]],
        test_x=_rows(data.test_x, test),
        test_y=place[data.test_y[test]],
        labels=tuple(data.labels[index] for index in spec.classes),
        groups=None if data.groups is None else data.groups[train],
    )
    return check(subset, where)


def numbered_as(data: DataSet, manifest: Manifest, spec: DataSpec) -> DataSet:
    """Numbers the classes as the bundle does, by their names, as a device does (with its label map).

    Where only the data or only the bundle has names, and the other numbers, nothing changes. Raises
    DataSetError for a class with samples that the bundle does not have.
    """
    labels, compared = manifest.labels, manifest.target.compared
    if compared not in ("classes", "input") or data.has_columns or data.labels == labels:
        return data
    if all_numbers(labels) != all_numbers(data.labels):
        return data
    place = np.full(len(data.labels), -1, np.int64)
    try:
        path = expanded(spec.path)
        names = LabelMap.of(SampleSource(path), labels) if spec.path else LabelMap(labels)
        counts = sum(np.bincount(y, minlength=len(data.labels)) for y in (data.train_y, data.test_y))
        for number in np.flatnonzero(counts).tolist():
            place[number] = names.number(data.labels[number])
    except (Refused, DataError) as error:
        if compared == "input":  # then all classes may stand for normal samples
            return data
        where, expected = spec.path or spec.source, first_of(labels, 12)
        raise DataSetError(f"{where}: {error}; bundle {manifest.name} has the labels {expected}") from None
    return replace(data, train_y=place[data.train_y], test_y=place[data.test_y], labels=labels)


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in the order of the alphabet; if all are numbers, by their value."""
    names = sorted(set(labels))
    return tuple(sorted(names, key=int) if all_numbers(names) else names)


def all_numbers(labels: Sequence[str]) -> bool:
    return all(label.strip().isdecimal() for label in labels)


def limited(data: DataSet, spec: DataSpec, seed: int) -> DataSet:
    """Keeps at most max_train and max_test samples, drawn at random, in their old order."""
    rng = np.random.default_rng([seed, SUBSET])
    if spec.max_train is not None and spec.max_train < len(data.train_y):
        rows = np.sort(rng.choice(len(data.train_y), spec.max_train, replace=False))
        groups = None if data.groups is None else data.groups[rows]
        data = replace(data, train_x=_rows(data.train_x, rows), train_y=data.train_y[rows], groups=groups)
    if spec.max_test is not None and spec.max_test < len(data.test_y):
        rows = np.sort(rng.choice(len(data.test_y), spec.max_test, replace=False))
        data = replace(data, test_x=_rows(data.test_x, rows), test_y=data.test_y[rows])
    return data


def validated(data: DataSet, spec: DataSpec, seed: int) -> DataSet:
    """Replaces the test samples by a random `validation_share` of the training samples, at least one.

    Settings that are chosen by these samples have not seen the test samples.
    """
    if not spec.validation_share:
        return data
    order = np.random.default_rng([seed, VALIDATION]).permutation(len(data.train_y))
    count = min(max(1, round(spec.validation_share * len(order))), len(order) - 1)
    validation, left = np.sort(order[:count]), np.sort(order[count:])
    x, y = data.train_x, data.train_y
    groups = None if data.groups is None else data.groups[left]
    test_x = x[validation]  # before the others are moved
    return replace(
        data, train_x=_rows(x, left), train_y=y[left], test_x=test_x, test_y=y[validation], groups=groups
    )


def held_out(data: DataSet, spec: DataSpec, seed: int) -> DataSet:
    """Moves `generic_samples` training samples, of `generic_classes` drawn classes, to the generic set.

    Raises DataSetError where there are fewer classes or samples.
    """
    if not spec.generic_samples:
        return data
    if data.has_columns:
        raise DataSetError("generic_samples is given, and the targets are columns, no classes")
    rng = np.random.default_rng([seed, GENERIC])
    count, y = len(data.labels), data.train_y
    if spec.generic_classes > count:
        raise DataSetError(f"generic_classes is {spec.generic_classes}, the data has {count}")
    classes = np.sort(rng.permutation(count)[: spec.generic_classes or count])
    pool = np.flatnonzero(np.isin(y, classes))
    if len(pool) < spec.generic_samples or len(y) == spec.generic_samples:
        raise DataSetError(
            f"generic_samples is {spec.generic_samples}: {len(classes)} classes have {len(pool)} training "
            f"samples, of {len(y)} in all"
        )
    rows = np.sort(rng.choice(pool, spec.generic_samples, replace=False))
    left = np.delete(np.arange(len(y)), rows)
    groups = None if data.groups is None else data.groups[left]
    generic = Samples(data.train_x[rows], y[rows], data.labels)
    return replace(data, train_x=_rows(data.train_x, left), train_y=y[left], groups=groups, generic=generic)


BLOCK = 1024
"""Samples that are looked at together, so that memory-mapped ones are not all read into memory."""


def finite_samples(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether all values of each sample are finite in float32, (n,)."""
    if x.dtype.kind != "f":
        return np.ones(len(x), bool)
    finite = np.empty(len(x), bool)
    for first in range(0, len(x), BLOCK):
        with np.errstate(over="ignore"):
            block = np.asarray(x[first : first + BLOCK], np.float32)
        finite[first : first + len(block)] = np.isfinite(block).reshape(len(block), -1).all(axis=1)
    return finite


def check_finite(x: NDArray[Any], where: str) -> None:
    """Raises DataSetError, naming `where`, if a sample has values that are not finite in float32."""
    wrong = np.flatnonzero(~finite_samples(x))
    if len(wrong):
        raise DataSetError(
            f"{where} has {len(wrong)} of {len(x)} samples that are not finite, the first is number "
            f"{wrong[0]} (from 0): expected finite values"
        )


def check(data: DataSet, where: str) -> DataSet:
    """Returns `data`. Raises DataSetError, naming `where`, unless its arrays and labels fit each other."""
    for name, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        if y.ndim not in (1, 2) or x.ndim < 1 or len(x) != len(y):
            raise DataSetError(f"{where}: {name} x is {x.shape} and y {y.shape}, expected one label for each")
        if not len(y):
            raise DataSetError(f"{where}: no {name} samples")
        if x.dtype.kind not in "buif":
            raise DataSetError(f"{where}: {name} x is {x.dtype}, expected numbers")
        check_finite(x, f"{where}: {name} x")
        if y.ndim > 1:
            if y.shape[1] != len(data.labels):
                raise DataSetError(f"{where}: {name} y is {y.shape}, expected {len(data.labels)} columns")
            if not np.isfinite(y).all():
                raise DataSetError(f"{where}: {name} y has {int((~np.isfinite(y)).sum())} values not finite")
            continue
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= len(data.labels):
            wrong = low if low < 0 else high
            raise DataSetError(f"{where}: {name} label {wrong}, expected 0 to {len(data.labels) - 1}")
    if data.train_x.shape[1:] != data.test_x.shape[1:]:
        raise DataSetError(
            f"{where}: train samples are {data.train_x.shape[1:]}, test samples {data.test_x.shape[1:]}"
        )
    if data.train_y.ndim != data.test_y.ndim:
        raise DataSetError(f"{where}: train y is {data.train_y.shape}, test y {data.test_y.shape}")
    if data.groups is not None and data.groups.shape != data.train_y.shape[:1]:
        raise DataSetError(f"{where}: {data.groups.shape} groups for {data.train_y.shape} training samples")
    return data
