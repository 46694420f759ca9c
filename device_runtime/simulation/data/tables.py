"""Tables of numbers, .csv, .tsv or .parquet: features, and labels or targets, as a device reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec
from device_runtime.models.data.cells import folded
from device_runtime.models.data.columns import TableColumns
from device_runtime.models.data.labels import LEAST_BITS, LabelMap, NewLabels, NewNumbers, SampleTargets
from device_runtime.models.data.local_samples import for_task
from device_runtime.models.data.sample_source import SampleSource
from device_runtime.models.data.single import not_read
from device_runtime.models.data.table import ENDINGS, CollectedSamples, collect, layout
from device_runtime.models.data.units import Refused, TokenIds, WantedSamples
from device_runtime.models.errors import DataError
from device_runtime.simulation.errors import DataSetError
from device_runtime.user_account import expanded

from . import files
from .dataset import DataSet, Samples, in_order, split
from .files import existing
from .spec import OF_TEXTS, DataSpec

FEWEST = 2
"""How often labels that are numbers recur at the mean, where no task says that they are classes."""


@dataclass(frozen=True)
class TableTask:
    """How the tables of a data set are read: as on a device of the bundle, or without one.

    labels: those of the bundle, or new ones, by the names in the data.
    """

    spec: DataSpec
    labels: LabelMap | NewLabels
    target: TargetSpec
    manifest: Manifest | None

    @classmethod
    def of(cls, spec: DataSpec, manifest: Manifest | None) -> TableTask:
        """Raises DataSetError for a label map that does not fit."""
        if manifest is not None:
            by_name = manifest.target.has_columns or spec.classes is None  # classes number those of the data
            try:
                labels = LabelMap.of(SampleSource(expanded(spec.path)), manifest.labels)
            except DataError as error:
                raise DataSetError(str(error)) from None
            return cls(spec, labels if by_name else NewLabels(), manifest.target, manifest)
        names = [name.strip() for name in spec.label_column.split(",")]
        target = TargetSpec("mse", "values", tuple(names)) if len(names) > 1 else CROSS_ENTROPY
        return cls(spec, NewNumbers() if spec.source == "table" else NewLabels(), target, None)

    def source(self, path: Path) -> SampleSource:
        """The file with the columns that are asked for, as the task reads it."""
        spec, labels = self.spec, self.labels
        source = SampleSource(
            path,
            label_column=spec.label_column,
            text_column=spec.text_column,
            feature_columns=spec.feature_columns,
            client_column=spec.client_column,
            named=path.parent == files.folder(),  # `dr.data.frame` writes it
        )
        label_map = labels if isinstance(labels, LabelMap) else None
        if self.manifest is not None and label_map is None:
            label_map = LabelMap(self.manifest.labels)
        return for_task(source, label_map, self.target, spec.source in OF_TEXTS)

    def read(self, path: Path, texts: TokenIds | None = None) -> tuple[CollectedSamples, TableColumns]:
        """All samples of a file, and its columns. Raises DataSetError."""
        with _refusing(path):
            source = self.source(path)
            columns = layout(path, source).columns
            return self._collected(source, self._input(columns, texts), texts), columns

    def windows(self, path: Path, window: InputSpec) -> CollectedSamples:
        """All windows of a table of recordings. Raises DataSetError."""
        with _refusing(path):
            return self._collected(self.source(path), window)

    def _collected(
        self, source: SampleSource, of_task: InputSpec, texts: TokenIds | None = None
    ) -> CollectedSamples:
        targets = SampleTargets(self.labels, self.target, source.unlabelled)
        return collect(source.path, WantedSamples(of_task, source, texts=texts), targets)

    def _input(self, columns: TableColumns, texts: TokenIds | None) -> InputSpec:
        if texts is not None:
            return InputSpec((1,), dtype="int64", vocabulary=1 << 31)
        if self.manifest is not None:
            return self.manifest.input
        return InputSpec((max(1, len(columns.features)),))

    def names(self, *ys: NDArray[Any], classes: bool = False) -> ClassNames:
        """The names of the classes or columns of all targets that were read; new classes are put in order.

        Without a task, numbers that rarely recur, or are no whole numbers from 0 on, are targets without a
        name, unless they are certainly `classes`.
        """
        if self.target.has_columns:
            return ClassNames(self.target.columns)
        if isinstance(self.labels, LabelMap):
            return ClassNames(() if self.manifest is None else self.manifest.labels)
        names = self.labels.names
        every = [np.empty(0, np.int64), *(y[_of_bits(y)] for y in ys if y.itemsize == 8)]
        fractions = (bits := np.unique(np.concatenate(every))).view(np.float64)
        unnamed = not classes and self.manifest is None
        values = _values(names, fractions, sum(map(len, ys))) if unnamed else None
        if values is not None:
            return ClassNames((), values[:, None], bits)
        names = (*names, *map(repr, fractions.tolist()))
        order = in_order(names)
        place = {name: number for number, name in enumerate(order)}
        return ClassNames(order, np.array([place[name] for name in names], np.int64), bits)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raises DataSetError for a path that is no table, and in place of Refused."""
    if not path.is_file():
        raise DataSetError(f"{path}: no such file, expected a .csv, .tsv or .parquet table")
    if (ending := path.suffix.lower()) not in ENDINGS:
        raise DataSetError(f"{path}: {not_read(ending)}; expected {', '.join(ENDINGS)}")
    try:
        yield
    except Refused as error:
        raise DataSetError(f"{path}: {error}") from None


@dataclass(frozen=True)
class ClassNames:
    """Names of classes or columns, none of unnamed values.

    of_number: what each number that was read is; behind them those of `bits`, see `NewNumbers`.
    """

    names: tuple[str, ...]
    of_number: NDArray[Any] | None = None
    bits: NDArray[Any] | None = None

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Class numbers int64 (n,), or targets float64 (n, columns), of those that were read."""
        if self.of_number is None:
            return y.astype(np.int64) if y.ndim == 1 else y
        if self.bits is not None and len(self.bits):
            far = _of_bits(y)
            numbers = np.where(far, 0, y).astype(np.int32)
            numbers[far] = len(self.of_number) - len(self.bits) + np.searchsorted(self.bits, y[far])
            y = numbers
        targets: NDArray[Any] = self.of_number[y]
        return targets


def _of_bits(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers of labels are the bits of one, (n,)."""
    far: NDArray[np.bool_] = (y < 0) | (y >= LEAST_BITS) if y.itemsize == 8 else np.zeros(len(y), bool)
    return far


def _values(names: tuple[str, ...], more: NDArray[np.float64], samples: int) -> NDArray[np.float64] | None:
    """The labels as numbers, and `more`, if they look like values and not like classes; else None."""
    try:
        values = np.concatenate([np.array([float(name) for name in names]), more])
    except ValueError:
        return None
    return None if look_like_classes(values, samples) else values


def look_like_classes(values: NDArray[Any], samples: int) -> bool:
    """Whether the different labels of so many samples, which are numbers, look like numbers of classes."""
    if not ((values == np.floor(values)).all() and (values >= 0).all()):
        return False
    from_0 = np.array_equal(np.sort(values), np.arange(len(values)))
    return (from_0 and len(values) < max(3, samples)) or FEWEST * len(values) <= samples


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads features float32 (n, *input), or (n, columns) without a bundle, as a device reads them.

    They are split by the seed unless `test_path` is given. Raises DataSetError.
    """
    path = existing(spec)
    task = TableTask.of(spec, None if bundle is None else bundle.manifest)
    train, columns = task.read(path)
    if not spec.test_path:
        classes = task.names(train.y)
        samples = Samples(train.x, train.y, classes.names or (_label(columns),), train.clients)
        data = split(samples, spec.test_share, seed, in_place=True)
    else:
        test_path = expanded(spec.test_path)
        test_x, test_y = _alike(task, test_path, columns, path)
        classes = task.names(train.y, test_y)
        whose = None if train.clients is None else train.clients.astype(np.int64)
        data = DataSet(train.x, train.y, test_x, test_y, classes.names or (_label(columns),), whose)
    return replace(
        data,
        train_y=classes.targets(data.train_y),
        test_y=classes.targets(data.test_y),
        notes=notes(train, columns, named=bool(classes.names)),
    )


def _label(columns: TableColumns) -> str:
    number = columns.label.number
    return columns.names[number] if columns.names else str(number)


def _alike(
    task: TableTask, path: Path, columns: TableColumns, trained: Path
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples of a second file, with the features in the order of the first. Raises DataSetError."""
    spec = task.spec
    if columns.names and not spec.label_column and not task.target.has_columns and columns.targets:
        task = replace(task, spec=msgspec.structs.replace(spec, label_column=_label(columns)))
    test, others = task.read(path)
    other_names, names = (
        [folded(table.names[i]) if table.names else "" for i in table.features] for table in (others, columns)
    )
    if sorted(other_names) != sorted(names):
        raise DataSetError(f"{path} has the features {others.listed}; {trained} has {columns.listed}")
    if other_names == names or len(set(names)) < len(names):
        return test.x, test.y
    order = [other_names.index(name) for name in names]
    x = test.x.reshape(len(test.x), -1)[:, order].reshape(test.x.shape)
    return x, test.y


def notes(samples: CollectedSamples, columns: TableColumns, *, named: bool) -> tuple[str, ...]:
    """What is to be said of how a table was read: its label, what was decided by default, and left out.

    named: whether the labels are names of classes or of targets, and not numbers that are taken for targets.
    """
    lines = []
    if columns.targets:
        kind = "" if named else ": numbers, as targets"
        word = "label" if columns.targets == (columns.label.number,) else "targets"
        lines.append(f"{word}: {columns.labelled}{kind}")
    else:
        lines.append("label: none")
    if samples.clients is not None:
        lines.append(
            f"clients: {len(samples.client_names)}, as {columns.name(columns.client or 0)} names them"
        )
    lines += [note for note in samples.notes if not note.startswith("client:")]
    return (*lines, *(f"left out: {skipped}" for skipped in samples.skipped))
