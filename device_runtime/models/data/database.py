"""Reads samples from an SQLite database by a query, read-only.

Each row of the result is a sample with a label: numbers, one blob or a text. A blob is a file of a kind that
is read (PNG, WAVE, .npy, ..), or the values of the input, as bytes or little-endian float32. For a task of
windows, a row is a time step; see `recording`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .cells import (
    LABEL_COLUMNS,
    folded,
    label_column,
    target_columns,
    text_cell,
    text_column,
    usual_label_column,
)
from .row_reader import TimeStep, WindowCutter, values_of
from .sample_source import SampleSource
from .single import decode_unnamed, raw
from .units import (
    ONE_SAMPLE_BYTES,
    TOO_LARGE,
    RawSamples,
    Refused,
    SampleFormat,
    Skip,
    TemporarilyRefused,
    Unit,
    WantedSamples,
    file_stamp,
    one_stored,
)

if TYPE_CHECKING:
    import sqlite3

WAIT_S = 5.0
"""Seconds to wait if another process has locked the database."""
ROW_BYTES = 1 << 16
"""Bytes of a row in addition to its sample; SQLite's limit is on their sum."""


def stamp(path: Path) -> tuple[int, int]:
    """Size in bytes and last change in ns of the database with its write-ahead log. Raises OSError."""
    size, changed = file_stamp(path)
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        more, later = file_stamp(log)
        return size + more, max(changed, later)
    return size, changed


def _read(unit: Unit, request: WantedSamples) -> Iterator[RawSamples | Skip]:
    with _rows(unit.path, request.source.query) as (names, rows):
        if cutter := WindowCutter.of(request.input):
            source = request.source
            others = names if source.label_column else cutter.other_names(names)
            columns = _targets(others if not source.target_columns else names, source)
            steps = _steps(names, rows, cutter, columns, bool(source.target_columns))
            yield from cutter.cut(steps, "rows as steps", unit.name, labelled=bool(columns))
            return
        targets = _targets(names, request.source)
        text = _text_column(names, targets, request)
        for number, row in enumerate(rows, 1):
            cells = [cell for column, cell in enumerate(row) if column not in targets]
            try:
                x, form = _sample(cells, request) if text is None else _text_sample(row[text], request)
            except Refused as error:
                yield Skip.of(error, f"row {number}")
                continue
            label = ",".join(_label_name(row[column]) for column in targets)
            yield RawSamples(x, [label] * len(x) if targets else None, form)


def _steps(
    names: Sequence[str], rows: sqlite3.Cursor, cutter: WindowCutter, labels: Sequence[int], numbers: bool
) -> Iterator[TimeStep | Skip]:
    """The rows as time steps. labels: the columns of labels, or with `numbers` of targets. Raises Refused."""
    columns, of_step = cutter.columns(names, len(names), labels), cutter.one_step
    for number, row in enumerate(rows, 1):
        try:
            values = values_of([row[column] for column in columns], of_step)
        except Refused as error:
            yield Skip.of(error, f"row {number}")
            continue
        label = ",".join(_label_name(row[column]) for column in labels)
        of_numbers = numbers and labels
        yield TimeStep("" if of_numbers else label, values, label if of_numbers else None, number)


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    with _rows(unit.path, source.query) as (names, rows):
        targets = _targets(names, source)
        for row in rows:
            cells = [cell for column, cell in enumerate(row) if column not in targets]
            yield one_stored(b"\x1f".join(c if isinstance(c, bytes) else repr(c).encode() for c in cells))


def _sample(cells: Sequence[Any], request: WantedSamples) -> tuple[NDArray[Any], str]:
    if len(cells) == 1 and isinstance(cells[0], bytes):
        return _blob(cells[0], request.input)
    return values_of(cells, request.input)[None], f"row of {len(cells)} columns"


def _text_column(names: Sequence[str], targets: Sequence[int], request: WantedSamples) -> int | None:
    """The number of the column of texts; None if the task's input is not text. Raises Refused."""
    if request.texts is None:
        return None
    others = [column for column in range(len(names)) if column not in targets]
    return text_column(names, (), others, request.source.text_column)


def _text_sample(cell: object, request: WantedSamples) -> tuple[NDArray[Any], str]:
    text = text_cell("" if cell is None else cell)
    return raw(text, request.input, request.texts), "text in a database"


def _blob(data: bytes, spec: InputSpec) -> tuple[NDArray[Any], str]:
    if len(data) > ONE_SAMPLE_BYTES:
        raise Refused(TOO_LARGE, f"more than {ONE_SAMPLE_BYTES >> 20} MB")
    count = prod(spec.shape)
    for kind in (np.uint8, "<f4"):
        if spec.vocabulary is None and len(data) == count * np.dtype(kind).itemsize:
            return np.frombuffer(data, kind).reshape(1, *spec.shape), f"blob of {np.dtype(kind)}"
    sample = decode_unnamed(data)
    if sample is None:
        raise Refused("unsupported kind of blob", f"{len(data)} bytes, the input has {count} values")
    return sample.raw(spec), f"blob: {sample.form}"


def _targets(names: Sequence[str], source: SampleSource) -> tuple[int, ...]:
    """The columns of targets, or that of labels; none where samples need no label and none is named one."""
    if source.target_columns:
        return target_columns(names, len(names), source)
    if source.unlabelled and not (source.label_column or set(map(folded, names)) & set(LABEL_COLUMNS)):
        return ()
    if len(names) < 2:
        raise Refused("the query gives no label", f"its only column is {names[0]}")
    return ((label_column(names, (), source) or usual_label_column(names, (), source, ())).number,)


def _label_name(label: object) -> str:
    """A label as a name; never raises, since a wrong label is refused later as not of the task."""
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


@contextmanager
def _rows(path: Path, query: str) -> Iterator[tuple[Sequence[str], sqlite3.Cursor]]:
    """The names of the columns, and the rows. Raises Refused."""
    import sqlite3

    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", timeout=WAIT_S, uri=True)
        ) as database:
            _limit(database)
            database.set_authorizer(_only_reads)
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = database.execute(query)
            if rows.description is None:
                raise Refused("the query gives nothing", query[:80])
            yield [column[0] for column in rows.description], rows
    except sqlite3.DataError as error:  # the limit that `_limit` sets
        raise Refused(TOO_LARGE, f"{error}, more than {ONE_SAMPLE_BYTES >> 20} MB: {query[:80]}") from None
    except sqlite3.Warning as error:
        raise Refused("the query is not one statement", error) from None
    except sqlite3.OperationalError as error:  # for example locked by another process
        raise TemporarilyRefused("the database cannot be read", f"{error}: {query[:80]}") from None
    except (sqlite3.Error, UnicodeError) as error:  # a message about a damaged file may be no text
        raise Refused("the database cannot be read", f"{error}: {query[:80]}") from None


def _limit(database: sqlite3.Connection) -> None:
    """Makes SQLite refuse values too large for one sample; before Python 3.11 they are read, then refused."""
    if sys.version_info >= (3, 11):
        import sqlite3

        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ONE_SAMPLE_BYTES + ROW_BYTES)


def _only_reads(action: int, *_: object) -> int:
    """SQLite's authorizer: no statement may write, attach a file or change a setting."""
    import sqlite3

    reads = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in reads else sqlite3.SQLITE_DENY


DATABASE = SampleFormat(_read, _stored, grows=True)
