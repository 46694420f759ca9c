"""Reads `.csv` and `.tsv`: each row has a sample (numbers, a text or a file's name) and a label.

For a task of windows, a row is a time step; see `recording`.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import TensorError
from device_runtime.models.text.texts import Texts

from .cells import (
    FILE_COLUMNS,
    LABEL_COLUMNS,
    NO_LABEL_COLUMN,
    TEXT_COLUMNS,
    LabelColumn,
    folded,
    label_column,
    target_columns,
    text_cell,
    text_column,
)
from .recording import TimeStep, WindowCutter
from .sample_source import SampleSource
from .single import DECODERS, ending_of
from .units import EMPTY, RawSamples, Refused, SampleFormat, Skip, Unit, WantedSamples, one_stored

log = logging.getLogger(__name__)

ENDINGS = (".csv", ".tsv")
ROWS = 256
"""Rows of one batch."""
LONGEST_LINE = 1 << 24
"""Most characters of a line, so that a file without line ends is not read into memory as one."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table.

    names: None without a header. label: the column of labels, and why it was chosen; targets: the columns of
    targets, where the task's have some, else that of labels, if there is one. file: the column of file
    names; None if the rows hold the samples themselves.
    """

    names: tuple[str, ...] | None
    width: int
    label: LabelColumn
    targets: tuple[int, ...]
    file: int | None
    separator: str

    @property
    def labelled(self) -> str:
        """The column of labels, and why it was chosen; or the columns of targets."""
        number, why = self.label
        if self.targets != (number,):
            return ", ".join(self.names[i] if self.names else f"column {i}" for i in self.targets) or why
        name = f"column {self.names[number]!r}" if self.names else f"column {number}"
        return f"{name} ({why})"


def layout(path: Path, source: SampleSource, cutter: WindowCutter | None = None) -> TableLayout:
    """Finds the columns from the first rows, the source's settings and the task's labels.

    cutter: of a recording, whose channels are no labels. Raises Refused.
    """
    separator = "\t" if path.suffix.lower() == ".tsv" else _separator(path)
    with _rows(path, separator) as rows:
        first = next(rows, [])
        more = [row for row in islice(rows, ROWS) if row]
    if not first:
        raise Refused(EMPTY)
    wanted = source.label_column
    wished = (*wanted.split(","), source.text_column, *source.target_columns)
    asked = (folded(name) for name in wished if not name.strip().isdecimal())
    usual = {*LABEL_COLUMNS, *FILE_COLUMNS, *TEXT_COLUMNS, *asked} - {""}
    named = any(folded(cell) in usual for cell in first)
    header = named or (bool(more) and _count_numbers(first) < _count_numbers(more[0]))
    names, samples = (tuple(first), more) if header else (None, [first, *more])
    if source.target_columns:
        label, targets = LabelColumn(-1, "it has none"), target_columns(names, len(first), source)
    else:
        others = cutter.other_names(names) if cutter and names and not wanted else names
        label = label_column(others, samples, wanted, source.task_labels)
        targets = (label.number,) if label.number >= 0 else ()
    sample = samples[0] if samples else ()
    files = (i for i, cell in enumerate(sample) if i not in targets and ending_of(cell) in DECODERS)
    file = None if source.text_column else next(files, None)
    return TableLayout(names, len(first), label, targets, file, separator)


def labelled(source: SampleSource, path: Path, given: InputSpec, texts: Texts | None = None) -> SampleSource:
    """The source, marked as without labels if the table's rows hold only features. Raises Refused."""
    without, features = _unlabelled(source), 1 if texts else prod(given.shape)
    return without if not source.label_column and layout(path, without).width == features else source


def _unlabelled(source: SampleSource) -> SampleSource:
    return replace(source, label_column=NO_LABEL_COLUMN)


def listed(path: Path, form: TableLayout) -> Iterator[tuple[Path, str] | Skip]:
    """The files below the table's folder that it names, and their labels. Raises Refused."""
    if form.file is None:
        return
    for number, row in _samples(path, form):
        where = f"{path.name} row {number}"
        if len(row) != form.width:
            yield Skip("a row of another length", f"{where}: {len(row)} cells, expected {form.width}")
            continue
        name = PurePosixPath(row[form.file].strip().replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or "\0" in str(name):
            yield Skip("a file name that leads out of the folder", f"{where}: {name}")
            continue
        yield path.parent / name, _label(row, form)


def _label(row: Sequence[str], form: TableLayout) -> str:
    """A row's label, or its targets joined by commas."""
    return ",".join(row[column] for column in form.targets)


def _read(unit: Unit, wanted: WantedSamples) -> Iterator[RawSamples | Skip]:
    if cutter := WindowCutter.of(wanted.input):
        yield from _windows(unit, wanted, cutter)
        return
    if unit.label is not None:
        raise Refused("a table in a class folder is a recording, and the task takes no windows")
    source = wanted.source
    form = layout(unit.path, labelled(source, unit.path, wanted.input) if source.unlabelled else source)
    take = _row_reader(form, wanted)
    features: list[NDArray[Any]] = []
    labels: list[str] = []
    said = "text in a table" if wanted.texts else f"table of {form.width - len(form.targets)} columns"
    what = "targets" if source.target_columns else "labels"
    said += f", {what} in {form.labelled}" if form.targets else ", no labels"
    if not source.label_column and form.targets:
        log.info("%s: %s are taken from %s", unit.name, what, form.labelled)
    for number, row in _samples(unit.path, form):
        try:
            if len(row) != form.width:
                raise Refused("a row of another length", f"{len(row)} cells, expected {form.width}")
            values = take(row)
        except Refused as error:
            yield Skip.of(error, f"{unit.name} row {number}")
            continue
        features.append(values)
        labels.append(_label(row, form))
        if len(features) == ROWS:
            yield RawSamples(np.stack(features), labels if form.targets else None, said)
            features, labels = [], []
    if features:
        yield RawSamples(np.stack(features), labels if form.targets else None, said)


def _windows(unit: Unit, wanted: WantedSamples, cutter: WindowCutter) -> Iterator[RawSamples | Skip]:
    """The windows of a recording.

    Its label is that of its folder; else of its rows; without a column of labels, the file's name. Raises
    Refused.
    """
    form, columns = _recording_layout(unit, wanted.source, cutter)
    label, of_step = form.label.number, cutter.one_step
    whole = unit.path.stem if unit.label is None else unit.label

    def steps() -> Iterator[TimeStep | Skip]:
        for number, row in _samples(unit.path, form):
            try:
                if len(row) != form.width:
                    raise Refused("a row of another length", f"{len(row)} cells, expected {form.width}")
                values = values_of([row[column] for column in columns], of_step)
            except Refused as error:
                yield Skip.of(error, f"{unit.name} row {number}")
                continue
            yield TimeStep(row[label] if label >= 0 else whole, values)

    said = f", labels in {form.labelled}" if label >= 0 else "" if unit.label else f", all {whole!r}"
    named = label >= 0 or unit.label is not None or not wanted.source.unlabelled
    return cutter.cut(steps(), f"recording{said}" if named else "recording", unit.name, labelled=named)


def _recording_layout(
    unit: Unit, source: SampleSource, cutter: WindowCutter
) -> tuple[TableLayout, tuple[int, ...]]:
    """The layout of a recording, without labels if it has no such column, and the columns of its channels."""
    path = unit.path
    without = layout(path, _unlabelled(source))
    if unit.label is not None or (without.width == cutter.channels and not source.label_column):
        return without, cutter.columns(without.names, without.width, -1)
    form = layout(path, source, cutter)
    columns = cutter.columns(form.names, form.width, form.label.number)
    return without if form.label.number in columns else form, columns


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    form = layout(unit.path, source if unit.label is None else _unlabelled(source))
    for _, row in _samples(unit.path, form):
        cells = [cell for column, cell in enumerate(row) if column not in form.targets]
        yield one_stored("\x1f".join(cells).encode())


def values_of(cells: Sequence[Any], given: InputSpec) -> NDArray[Any]:
    """One row's features (*shape), float32 or token ids. Raises Refused."""
    if len(cells) != prod(given.shape):
        raise Refused(
            "another number of features than the task's input", f"{len(cells)}, expected {given.shape}"
        )
    try:
        if given.vocabulary is not None:
            ids = np.array([int(cell) for cell in cells], np.int64).reshape(given.shape)
            given.check_ids(ids)
            return ids
        with np.errstate(over="ignore"):
            values = np.array([float(cell) for cell in cells]).astype(np.float32)
    except TensorError as error:
        raise Refused("not what the task's input takes", error) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused("a feature that is no number", str(error)[:80]) from None
    if not np.isfinite(values).all():
        raise Refused("values are not finite")
    return values.reshape(given.shape)


def _row_reader(form: TableLayout, wanted: WantedSamples) -> Callable[[Sequence[str]], NDArray[Any]]:
    """A function that turns a row into a sample (*shape), or raises Refused. Raises Refused itself."""
    texts = wanted.texts
    if texts is None:
        return lambda row: values_of(
            [c for column, c in enumerate(row) if column not in form.targets], wanted.input
        )
    column = text_column(form.names, form.width, form.targets, wanted.source.text_column)
    return lambda row: text_cell(row[column]).ids(texts)[0]


def _samples(path: Path, form: TableLayout) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, without the header, by their number in the file from 1."""
    with _rows(path, form.separator) as rows:
        for number, row in enumerate(rows, 1):
            if row and not (form.names and number == 1):
                yield number, row


@contextmanager
def _rows(path: Path, separator: str) -> Iterator[Iterator[list[str]]]:
    """The rows of a table. Raises Refused if it is no text in UTF-8.

    In a .tsv a quote is an ordinary character, since no cell has tabs or line ends; only a cell that is
    quoted as a whole loses its quotes.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".tsv":
                plain = csv.reader(_lines(file), delimiter=separator, quoting=csv.QUOTE_NONE)
                yield ([_unquoted(cell) for cell in row] for row in plain)
            else:
                yield csv.reader(_lines(file), delimiter=separator)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise Refused("not a table of UTF-8 text", error) from None


def _unquoted(cell: str) -> str:
    quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if quoted else cell


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a file. Raises Refused for one that is too long."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise Refused("a line that is too long", f"{LONGEST_LINE} characters are the most")
        yield line


def _separator(path: Path) -> str:
    """Comma, semicolon or tab, whichever is most frequent in the first line."""
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 16)
    except OSError as error:
        raise Refused("cannot be read", error.strerror) from None
    return max(",;\t", key=lambda mark: line.count(mark.encode()))


def _count_numbers(row: Sequence[str]) -> int:
    found = 0
    for cell in row:
        try:
            float(cell)
            found += 1
        except ValueError:
            pass
    return found


TABLE = SampleFormat(_read, _stored, grows=True)
