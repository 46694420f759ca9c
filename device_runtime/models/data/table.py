"""Reads `.csv`, `.tsv` and `.parquet`: each row has a sample (numbers, a text or a file's name) and a label.

For a task of windows, a row is a time step; see `row_reader`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from . import delimited
from .cells import NO_LABEL_COLUMN, folded
from .columns import TableColumns, columns_of
from .delimited import CellRow, Dialect, count_lines, dialect, table_rows
from .labels import NewLabels, SampleTargets
from .row_reader import AXES, RowReader, TimeStep, WindowCutter
from .sample_source import SampleSource
from .single import DECODERS, ending_of
from .units import (
    EMPTY,
    RawSamples,
    Refused,
    SampleFormat,
    Skip,
    SkippedSamples,
    SkippedTally,
    Unit,
    WantedSamples,
    file_stamp,
    one_stored,
)

log = logging.getLogger(__name__)

ENDINGS = (".csv", ".tsv", ".tab", delimited.ENDING)
ROWS = 256
"""Rows of one batch, and those by which the columns are found."""
LEAST_ROWS, CELLS = 4, 1 << 16
"""Of wide rows, fewer are looked at together: no more than LEAST_ROWS beyond so many cells."""


@dataclass(frozen=True)
class TableLayout:
    """How a table is read.

    columns: what they are. first: the first rows that are samples. file: the column of file names; None if
    the rows hold the samples themselves. form: how it is written; None for Parquet. begins: the number of the
    first row that is a sample.
    """

    columns: TableColumns
    first: Sequence[Sequence[str]]
    file: int | None
    form: Dialect | None
    begins: int


def layout(path: Path, source: SampleSource, cutter: WindowCutter | None = None) -> TableLayout:
    """Finds the columns from the first rows, the source's settings and the task's labels.

    cutter: of a recording, whose channels are no labels. Raises Refused.
    """
    form = None if path.suffix.lower() == delimited.ENDING else dialect(path)
    with _rows(path, form) as rows:
        first = list(_first(rows))
    channels = None if cutter is None else frozenset(map(folded, cutter.window.columns or AXES))
    named = source.named or form is None
    columns = columns_of([[*map(str, row.cells)] for row in first], source, channels, named=named)
    samples = first[columns.names is not None :]
    begins = samples[0].number if samples else first[-1].number + 1
    cells = [[*map(str, row.cells)] for row in samples]
    sample = cells[0][: columns.width] if cells else ()
    files = (i for i, cell in enumerate(sample) if i not in columns.targets and ending_of(cell) in DECODERS)
    file = None if source.text_column else next(files, None)
    return TableLayout(columns, cells, file, form, begins)


def _first(rows: Iterator[CellRow]) -> Iterator[CellRow]:
    """The first rows, fewer where they are wide."""
    cells = 0
    for count, row in enumerate(rows):
        if count > ROWS or (count > LEAST_ROWS and cells > CELLS):
            return
        cells += len(row.cells)
        yield row


def labelled(source: SampleSource, path: Path, spec: InputSpec, texts: bool = False) -> SampleSource:
    """The source, marked as without labels if the table's rows hold only features. Raises Refused."""
    without, features = _unlabelled(source), 1 if texts else prod(spec.shape)
    if source.label_column:
        return source
    return without if len(layout(path, without).columns.features) == features else source


def _unlabelled(source: SampleSource) -> SampleSource:
    return replace(source, label_column=NO_LABEL_COLUMN)


class ListedFile(NamedTuple):
    """A file that a table names, its label, and its client ("" for none)."""

    path: Path
    label: str
    client: str


def listed(path: Path, form: TableLayout) -> Iterator[ListedFile | Skip]:
    """The files below the table's folder that it names. Raises Refused."""
    if form.file is None:
        return
    for number, row in _samples(path, form):
        where = f"{path.name} row {number}"
        try:
            cells = form.columns.cells(row)
        except Refused as error:
            yield Skip.of(error, where)
            continue
        name = PurePosixPath(cells[form.file].strip().replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or "\0" in str(name):
            yield Skip("a file name that leads out of the folder", f"{where}: {name}")
            continue
        columns = form.columns
        label = ",".join(str(cells[column]) for column in columns.targets)
        client = "" if columns.client is None else str(cells[columns.client]).strip()
        yield ListedFile(path.parent / name, label, client)


def _read(unit: Unit, request: WantedSamples) -> Iterator[RawSamples | Skip]:
    if cutter := WindowCutter.of(request.input):
        yield from _windows(unit, request, cutter)
        return
    if unit.label is not None:
        raise Refused("a table in a class folder is a recording, and the task takes no windows")
    yield from read_rows(unit.path, unit.name, request)


def read_rows(path: Path, name: str, request: WantedSamples) -> Iterator[RawSamples | Skip]:
    """The samples of a table, a row each, in batches of ROWS; rows that cannot be read as Skip.

    name: of the file, for people. Raises Refused for the whole table.
    """
    source = request.source
    form = layout(path, labelled(source, path, request.input) if source.unlabelled else source)
    columns = form.columns
    reader = RowReader.of(columns, form.first, request)
    notes = (*columns.notes, *reader.notes)
    what = "targets" if source.target_columns else "labels"
    description = "text in a table" if request.texts else f"table of {len(columns.features)} columns"
    description += f", {what} in {columns.labelled}" if columns.targets else ", no labels"
    if not source.label_column and columns.targets:
        log.info("%s: %s are taken from %s", name, what, columns.labelled)
    for note in notes:
        log.info("%s: %s", name, note)
    expected = 0 if form.form is None else count_lines(path)
    batch = _Batch(reader, RawSamples(np.empty(0), None, description, notes=notes, expected=expected), name)
    for number, row in _samples(path, form):
        try:
            batch.rows.append((number, columns.cells(row)))
        except Refused as error:
            yield Skip.of(error, f"{name} row {number}")
        if len(batch.rows) == ROWS or len(batch.rows) * len(columns.features) > CELLS:
            yield from batch.samples()
            batch.rows = []
    yield from batch.samples()


class _Batch:
    """The cells of some rows, which are read together; form: samples without values."""

    def __init__(self, reader: RowReader, form: RawSamples, name: str) -> None:
        self._reader, self._form, self._name = reader, form, name
        self.rows: list[tuple[int, Sequence[Any]]] = []

    def samples(self) -> Iterator[RawSamples | Skip]:
        """The samples of the rows at once or, if any cannot be read, one by one."""
        rows = [cells for _, cells in self.rows]
        places = [number for number, _ in self.rows]
        labels: list[str] = []
        x = self._reader.block(rows)
        if x is not None:
            try:
                labels = [self._reader.label(cells) for cells in rows]
            except Refused:
                x = None
        if x is None:
            values: list[NDArray[Any]] = []
            labels, rows, places = [], [], []
            for number, cells in self.rows:
                try:
                    value, label = self._reader.values(cells), self._reader.label(cells)
                except Refused as error:
                    yield Skip.of(error, f"{self._name} row {number}")
                    continue
                values.append(value)
                labels.append(label)
                rows.append(cells)
                places.append(number)
            if not values:
                return
            x = np.stack(values)
        columns = self._reader.columns
        client = columns.client
        clients = None if client is None else [str(cells[client]).strip() for cells in rows]
        targets = labels if columns.targets else None
        yield self._form._replace(x=x, labels=targets, clients=clients, rows=places)


def _windows(unit: Unit, request: WantedSamples, cutter: WindowCutter) -> Iterator[RawSamples | Skip]:
    """The windows of a recording, of each client's rows by themselves if a column says whose each row is.

    Its label is that of its folder; else of its rows; without a column of labels, the file's name. Where
    targets are numbers, they are those of its rows; without such columns, its folder's name. Raises Refused.
    """
    source = request.source
    form = _recording_layout(unit, source, cutter)
    about = form.columns
    reader = RowReader.of(about, form.first, replace(request, input=cutter.one_step))
    whole = unit.path.stem if unit.label is None else unit.label
    has_numbers = bool(source.target_columns and about.targets)
    client = about.client if source.client_column or about.client not in about.features else None

    def steps() -> Iterator[tuple[str, TimeStep | Skip]]:
        for number, row in _samples(unit.path, form):
            owner = ""
            try:
                cells = about.cells(row)
                owner = "" if client is None else str(cells[client]).strip()
                values = reader.values(cells)
            except Refused as error:
                yield owner, Skip.of(error, f"{unit.name} row {number}")
                continue
            label = whole if about.label.number < 0 else str(cells[about.label.number])
            target = reader.targets(cells) if has_numbers else None
            yield owner, TimeStep(label, values, target, number)

    notes = (*about.notes, *reader.notes)
    note = f", all {whole!r}" if unit.label is None else ""
    if about.targets:
        note = f", {'targets' if has_numbers else 'labels'} in {about.labelled}"
    named = bool(about.targets) or unit.label is not None or not source.unlabelled
    description = f"recording{note}" if named else "recording"
    if client is None:
        every = (step for _, step in steps())
        yield from _noted(cutter.cut(every, description, unit.name, labelled=named), notes)
        return
    of_clients: dict[str, list[TimeStep | Skip]] = {}
    for owner, step in steps():
        of_clients.setdefault(owner, []).append(step)
    for owner, own in of_clients.items():
        name = f"{unit.name}, client {owner!r}"
        yield from _noted(cutter.cut(own, description, name, labelled=named), notes, owner)


def _noted(
    parts: Iterator[RawSamples | Skip], notes: tuple[str, ...], client: str | None = None
) -> Iterator[RawSamples | Skip]:
    """The windows, with what the reader decided and their client, if that is known."""
    for part in parts:
        if isinstance(part, RawSamples):
            clients = None if client is None else [client] * len(part.x)
            part = part._replace(notes=notes, clients=clients)  # noqa: PLW2901
        yield part


def _recording_layout(unit: Unit, source: SampleSource, cutter: WindowCutter) -> TableLayout:
    """The layout of a recording, whose features are its channels; without labels if it has no such column."""
    path = unit.path
    without = layout(path, _unlabelled(source), cutter)
    about = without.columns
    if source.target_columns and source.label_column == NO_LABEL_COLUMN:
        called = {*map(folded, source.target_columns)}
        targets = [i for i, name in enumerate(about.names or ()) if folded(name) in called]
        return _of_channels(without, source, cutter, targets)
    if source.target_columns:
        try:
            form = layout(path, source, cutter)
            return _of_channels(form, source, cutter, form.columns.targets)
        except Refused:
            if unit.label is None:
                raise
            return _of_channels(without, source, cutter)
    others = about.width - (about.client is not None)
    if unit.label is not None or (others == cutter.channels and not source.label_column):
        return _of_channels(without, source, cutter)
    form = _of_channels(layout(path, source, cutter), source, cutter)
    about = form.columns
    return _of_channels(without, source, cutter) if about.label.number in about.features else form


def _of_channels(
    form: TableLayout, source: SampleSource, cutter: WindowCutter, targets: Sequence[int] = ()
) -> TableLayout:
    """The layout with the channels as features: those asked for, else those that the task names or needs."""
    about = form.columns
    if source.feature_columns:
        return form  # their number is checked where rows are read
    channels = cutter.columns(about.names, about.width, targets or about.targets, about.client)
    return replace(form, columns=replace(about, features=channels))


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    form = layout(unit.path, source if unit.label is None else _unlabelled(source))
    for _, row in _samples(unit.path, form):
        cells = [str(cell) for column, cell in enumerate(row) if column not in form.columns.targets]
        yield one_stored("\x1f".join(cells).encode())


def _samples(path: Path, form: TableLayout) -> Iterator[CellRow]:
    """The rows that are samples. Raises Refused."""
    with _rows(path, form.form) as rows:
        yield from (row for row in rows if row.number >= form.begins)


def _rows(path: Path, form: Dialect | None) -> AbstractContextManager[Iterator[CellRow]]:
    """The rows of a table that are not blank, with the header. Raises Refused."""
    return delimited.parquet_rows(path) if form is None else table_rows(path, form)


TABLE = SampleFormat(_read, _stored, grows=True)


LEAST = 64
"""Rows that get room at first."""
LARGEST = np.iinfo(np.uint32).max
"""The largest number kept unsigned: numpy turns uint64 and int64 together into floats."""


@dataclass(frozen=True)
class CollectedSamples:
    """The samples of a file.

    x: raw (n, *input). y: class numbers (n,) in the narrowest dtype, or raw targets float64 (n, columns).
    clients: the number of each sample's client in `client_names`, -1 for none, (n,), in the narrowest dtype;
    None if the file names none. skipped: what was left out. form: how they were stored. notes: what the
    reader decided by default.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[np.signedinteger[Any]] | None
    client_names: tuple[str, ...]
    skipped: tuple[SkippedSamples, ...]
    form: str
    notes: tuple[str, ...]


def collect(path: Path, request: WantedSamples, targets: SampleTargets) -> CollectedSamples:
    """Reads a table of samples with their labels. Raises Refused, also if no sample is left."""
    try:
        unit = Unit(path.name, path, file_stamp(path), TABLE)
    except OSError as error:
        raise Refused("cannot be read", error.strerror) from None
    x, y, whose = _Column(), _Column(), _Column()
    skipped, names = SkippedTally(), NewLabels()
    form = ""
    notes: tuple[str, ...] = ()
    for part in unit.read(request):
        if isinstance(part, Skip):
            skipped.add(part)
            continue
        answers, read = targets.of(part, None, unit.name, skipped)
        whole = bool(read.all())
        x.append(part.x if whole else part.x[read], part.expected)
        y.append(_narrow(answers if whole else answers[read]), part.expected)
        if part.clients is not None:
            numbers = np.array([names.number(name) if name else -1 for name in part.clients], np.int64)
            whose.append(_narrow(numbers if whole else numbers[read], signed=True), part.expected)
        form, notes = part.form, part.notes
    if x.rows is None or not len(x.rows) or y.rows is None:
        raise Refused("no readable samples", "; ".join(map(str, [*skipped][:3])) or EMPTY)
    return CollectedSamples(x.rows, y.rows, whose.rows, names.names, tuple(skipped), form, notes)


class _Column:
    """What each sample has of one thing, in one buffer; its dtype widens to that of new values."""

    def __init__(self) -> None:
        self._buffer: NDArray[Any] | None = None
        self._count = 0

    @property
    def rows(self) -> NDArray[Any] | None:
        """All values so far, (n, ..), a view; None before the first."""
        return None if self._buffer is None else self._buffer[: self._count]

    def append(self, values: NDArray[Any], expected: int) -> None:
        """Copies values (k, ..) to the end. expected: the most in all, which get room at once; 0: unknown."""
        end = self._count + len(values)
        rows = values[:0] if self.rows is None else self.rows
        dtype = np.result_type(rows, values)
        if self._buffer is None or end > len(self._buffer) or dtype != self._buffer.dtype:
            room = max(end if end <= expected else 2 * end, expected, LEAST)
            self._buffer = np.empty((room, *values.shape[1:]), dtype)  # free rows take no memory
            self._buffer[: self._count] = rows
        self._buffer[self._count : end] = values
        self._count = end


def _narrow(numbers: NDArray[Any], *, signed: bool = False) -> NDArray[Any]:
    """Whole numbers in the narrowest dtype that holds them; other numbers as they are."""
    if numbers.dtype.kind not in "iu" or not len(numbers):
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    dtype = np.min_scalar_type(min(low, -1 - high) if signed or low < 0 or high > LARGEST else high)
    return numbers.astype(dtype)
