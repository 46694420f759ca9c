"""Decides what the columns of a table are: labels or targets, features, texts, files, clients, row numbers.

The rule is the same wherever a table is read, and what it chose by default is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .cells import (
    FILE_COLUMNS,
    LABEL_COLUMNS,
    NO_LABEL_COLUMN,
    TEXT_COLUMNS,
    LabelColumn,
    column_number,
    first_of,
    folded,
    is_number,
    label_column,
    target_columns,
    usual_label_column,
)
from .sample_source import SampleSource
from .units import EMPTY, Refused

CLIENT_COLUMNS = ("client", "client_id", "groups")
"""Names of a column that says whose a row is."""
FEW_ROWS = 4
"""Rows of words alone from which on a header is told by what recurs below it."""
ROW_NUMBERS = ("", "unnamed: 0", "index", "idx", "id", "row", "no", "nr", "#")
"""Names of a column that numbers the rows, if its cells are different whole numbers."""
PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""The name of a column in which pandas writes its index, wherever it is."""


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table are.

    names: None without a header. width: cells of a row; a row may have an empty one more if `trailing`.
    label: the column of labels, and why it was chosen; targets: the columns of targets, where the task's have
    some, else that of labels, if there is one. client: whose a row is. features: the others that are read.
    notes: what was decided besides, for people.
    """

    names: tuple[str, ...] | None
    width: int
    label: LabelColumn
    targets: tuple[int, ...]
    features: tuple[int, ...]
    client: int | None = None
    trailing: bool = False
    notes: tuple[str, ...] = ()

    def name(self, column: int) -> str:
        """A column for people: its name in quotes, or its number."""
        return f"column {self.names[column]!r}" if self.names and self.names[column] else f"column {column}"

    @property
    def labelled(self) -> str:
        """The column of labels, and why it was chosen; or the columns of targets."""
        number, why = self.label
        if self.targets != (number,):
            return ", ".join(self.names[i] if self.names else f"column {i}" for i in self.targets) or why
        return f"{self.name(number)} ({why})"

    @property
    def listed(self) -> str:
        """The first features, for people."""
        return first_of([self.names[i] if self.names else str(i) for i in self.features])

    def cells(self, row: Sequence[str]) -> Sequence[str]:
        """The cells of a row, without an empty one behind the last separator. Raises Refused."""
        if len(row) == self.width:
            return row
        if self.trailing and len(row) == self.width + 1 and not row[-1].strip():
            return row[: self.width]
        raise Refused("a row of another length", f"{len(row)} cells, expected {self.width}")


@dataclass(frozen=True)
class _Head:
    """The header, if there is one, and the first samples."""

    names: tuple[str, ...] | None
    samples: Sequence[Sequence[str]]
    trailing: bool
    notes: tuple[str, ...] = ()


def columns_of(
    rows: Sequence[Sequence[str]],
    source: SampleSource,
    channels: frozenset[str] | None = None,
    *,
    named: bool = False,
) -> TableColumns:
    """Decides by the first rows, the source's settings and the task's labels.

    channels: of a recording: the folded names of its channels, which are no labels. named: the first row is
    certainly a header. Raises Refused.
    """
    if not rows:
        raise Refused(EMPTY)
    head = _Head(tuple(rows[0]), rows[1:], False) if named else _head(rows, source)
    if len(rows[0]) == 1 and channels is None and not _needs_no_label(source, head):
        raise Refused("one column, expected several", "separate them by commas, semicolons, tabs or |")
    names, samples = head.names, head.samples
    width = len(names) if names is not None else len(samples[0])
    notes = list(head.notes)
    client = _client(names, width, source)
    if client is not None and names is not None and not source.client_column:
        notes.append(f"client: column {names[client]!r} (by its name)")
    numbered = None if channels is not None or source.feature_columns else _row_numbers(head, source)
    aside = {column for column in (client, numbered) if column is not None}
    label, targets = _targets(head, width, source, channels, aside)
    aside -= {label.number, *targets} if source.label_column else set()
    if numbered is not None and numbered in aside:
        called = f"column {names[numbered]!r}" if names and names[numbered] else "the first column"
        notes.append(f"{called} is left out: it numbers the rows")
    if client is not None and client in targets:
        called = repr(names[client]) if names else str(client)
        raise Refused("one column cannot be both the labels and the clients", called)
    features = tuple(c for c in range(width) if c not in targets and c not in aside)
    if source.feature_columns:
        features = _chosen(source.feature_columns, names, width, targets, aside)
    return TableColumns(names, width, label, targets, features, client, head.trailing, tuple(notes))


def _needs_no_label(source: SampleSource, head: _Head) -> bool:
    return source.unlabelled or source.label_column == NO_LABEL_COLUMN or not head.samples


def _targets(
    head: _Head, width: int, source: SampleSource, channels: frozenset[str] | None, aside: set[int]
) -> tuple[LabelColumn, tuple[int, ...]]:
    names = head.names
    if source.target_columns:
        return LabelColumn(-1, "it has none"), target_columns(names, width, source)
    others = names
    if channels is not None and names is not None and not source.label_column:
        others = tuple("" if folded(name) in channels else name for name in names)
    rows = [row[:width] for row in head.samples if len(row) >= width]
    rows = rows or [[""] * width]
    label = label_column(others, rows, source, aside)
    if label is None and channels is not None:  # a column of words may be a person or a place
        label = LabelColumn(width - 1, "it is the last")
    label = label or usual_label_column(others, rows, source, aside)
    return label, ((label.number,) if label.number >= 0 else ())


def _head(rows: Sequence[Sequence[str]], source: SampleSource) -> _Head:
    """Finds the header and the width of the rows. Raises Refused."""
    first, more = list(rows[0]), [list(row) for row in rows[1:]]
    width = Counter(map(len, more)).most_common(1)[0][0] if more else len(first)
    whole = [row for row in more if len(row) == width]
    notes = _is_header(first, whole, source)
    open_ended = bool(whole) and width > 2 and not any(row[-1].strip() for row in whole)
    trailing = open_ended and (len(first) == width - 1 or (len(first) == width and not first[-1].strip()))
    if trailing:
        first = first[: width - 1]
        more = [row[:-1] if len(row) == width else row for row in more]
    elif notes is not None and len(first) == width - 1:  # as R writes it
        return _Head(("", *first), more, False, (*notes, "the header has no name for the first column"))
    if notes is None:
        return _Head(None, [first, *more], trailing)
    return _Head(tuple(first), more, trailing, notes)


def _is_header(
    first: Sequence[str], more: Sequence[Sequence[str]], source: SampleSource
) -> tuple[str, ...] | None:
    """None if the first row is a sample; else what is to be said of the header, mostly nothing."""
    called = {*map(folded, first)}
    usual = {*LABEL_COLUMNS, *FILE_COLUMNS, *TEXT_COLUMNS, *CLIENT_COLUMNS, *_column_names(source)}
    if called & usual:
        return ()
    if not more:  # a header alone has words alone, and none is a label of the task or a file
        words = not any(is_number(cell) or "." in cell for cell in first) and not called & source.task_labels
        return () if words and len(first) > 1 and not source.texts else None
    count, below = (sum(cell.strip() != "" and is_number(cell) for cell in row) for row in (first, more[0]))
    if count < below:
        return ()
    numbers = [*map(str, range(len(first)))]
    if len(first) > 2 and [cell.strip() for cell in first] in (numbers, ["", *numbers[:-1]]):
        return ("header: the first row, which numbers the columns",)
    if count:
        return None
    if labels := source.task_labels:  # words alone: no label of the task above rows with one
        if not called & labels and all({*map(folded, row)} & labels for row in more):
            return ("header: the first row, which holds no label of the task",)
        return None
    if len(more) < FEW_ROWS or len(first) != len(more[0]):
        return None
    recurring = [i for i, cells in enumerate(zip(*more, strict=True)) if _recurs_without(first[i], cells)]
    if recurring:
        return (f"header: the first row, whose {first[recurring[-1]]!r} is no label below",)
    return None


def _recurs_without(name: str, cells: Sequence[str]) -> bool:
    """Whether each of the cells is there several times, and none is the name."""
    counts = Counter(cells)
    return min(counts.values()) > 1 and name not in counts


def _column_names(source: SampleSource) -> frozenset[str]:
    """The names of columns that are asked for, folded."""
    wished = (source.label_column, source.text_column, source.client_column, source.feature_columns)
    names = [name.strip() for wish in wished for name in wish.split(",")]
    names = [name.removeprefix("-") for name in names if not name.isdecimal() and name != NO_LABEL_COLUMN]
    return frozenset(map(folded, (*names, *source.target_columns))) - {""}


def _client(names: Sequence[str] | None, width: int, source: SampleSource) -> int | None:
    """The column that says whose a row is: the wanted one, else by its name. Raises Refused."""
    called = [folded(name) for name in names or ()]
    if source.client_column:
        return column_number(names, width, source.client_column, "the clients")
    return next((called.index(name) for name in CLIENT_COLUMNS if called.count(name) == 1), None)


def _row_numbers(head: _Head, source: SampleSource) -> int | None:
    """The first column, if it only numbers the rows, or an index of pandas."""
    settings = {
        folded(name) for name in (source.label_column, source.text_column, *source.target_columns)
    } - {""}
    indices = (i for i, name in enumerate(head.names or ()) if PANDAS_INDEX.fullmatch(name))
    if (index := next(indices, None)) is not None and not {head.names[index], str(index)} & settings:  # type: ignore[index]
        return index
    if head.names is None or len(head.names) < 3 or folded(head.names[0]) not in ROW_NUMBERS:
        return None
    cells = [row[0].strip() for row in head.samples if row]
    if folded(head.names[0]) in settings or "0" in settings or not all(map(str.isdecimal, cells)):
        return None
    return 0 if len(set(cells)) == len(cells) and cells else None


def _chosen(
    keys: str, names: Sequence[str] | None, width: int, targets: Sequence[int], aside: set[int]
) -> tuple[int, ...]:
    """The wanted columns of features, in the order of the table or, where each is named, as named.

    keys: names or numbers, separated by commas; `2-5` are several; `-name` leaves one out. Raises Refused.
    """
    inside: list[int] = []
    without: set[int] = set()
    for word in filter(None, map(str.strip, keys.split(","))):
        is_name = names is not None and folded(word) in map(folded, names)
        span = None if is_name else re.fullmatch(r"(\d+)-(\d+)", word)
        if span:
            first, last = int(span[1]), int(span[2])
            if not first <= last < width:
                raise Refused(f"no columns {word} for the features", f"there are 0 to {width - 1}")
            inside += range(first, last + 1)
        elif word.startswith("-") and not is_name:
            without.add(column_number(names, width, word[1:], "the features"))
        else:
            inside.append(column_number(names, width, word, "the features"))
    every = inside or [c for c in range(width) if c not in targets and c not in aside]
    if both := [c for c in inside if c in targets]:
        named = names[both[0]] if names else both[0]
        raise Refused("one column cannot be both a feature and the label", f"{named!r}")
    features = tuple(column for column in dict.fromkeys(every) if column not in without)
    if not features:
        raise Refused("no columns of features are left", f"--feature-columns {keys}")
    return features
