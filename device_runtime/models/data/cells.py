"""Finds the columns of labels and texts in a table; reads texts, and numbers as people write them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .sample_source import SampleSource
from .units import Refused, TokenIds

NumberStyle = Literal["point", "comma", "grouped"]
"""1234.5, or 1.234,5 with a decimal comma, or 1,234.5 with commas between thousands."""

WITH_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?|[+-]?\d+\.\d*([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
THOUSANDS_BY_COMMA = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
THOUSANDS_BY_POINT = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")
FLAGS = {"true": 1.0, "false": 0.0}
SAID: dict[NumberStyle, str] = {
    "point": "",
    "comma": "numbers have a decimal comma, as in {}",
    "grouped": "commas stand between thousands, as in {}",
}


def number_style(cells: Iterable[str]) -> tuple[NumberStyle, str]:
    """How the numbers of a table are written, and an example. Raises Refused if that is ambiguous."""
    point, comma, grouped, either = "", "", "", ""
    for cell in map(str.strip, cells):
        if "," in cell:
            if THOUSANDS_BY_COMMA.fullmatch(cell):
                if "." in cell or cell.count(",") > 1:
                    grouped = grouped or cell
                else:
                    either = either or cell
            elif WITH_COMMA.fullmatch(cell) or THOUSANDS_BY_POINT.fullmatch(cell):
                comma = comma or cell
        elif WITH_POINT.fullmatch(cell) and not (comma and THOUSANDS_BY_POINT.fullmatch(cell)):
            point = point or cell
    if comma and grouped:
        raise Refused("numbers are written in two ways", f"{comma!r} and {grouped!r}")
    if comma and point and not THOUSANDS_BY_POINT.fullmatch(point):
        raise Refused(
            "numbers are written in two ways", f"{comma!r} and {point!r}: write all with a decimal point"
        )
    if either and not (comma or grouped or point):
        raise Refused(
            "a comma in numbers may be a decimal comma or stand between thousands",
            f"{either!r}: write it with a decimal point, or without the comma",
        )
    if comma:
        return "comma", comma
    return ("grouped", grouped or either) if grouped or either else ("point", "")


def is_number(cell: Any) -> bool:
    """Whether the cell is a number in any style, or true or false, or empty."""
    text = str(cell).strip()
    if text == "" or text.casefold() in FLAGS:
        return True
    try:
        float(text)
    except ValueError:
        return bool(
            THOUSANDS_BY_COMMA.fullmatch(text)
            or WITH_COMMA.fullmatch(text)
            or THOUSANDS_BY_POINT.fullmatch(text)
        )
    return True


def as_number(cell: Any, style: NumberStyle) -> float:
    """One cell as a number; true is 1 and false 0. Raises ValueError, TypeError."""
    if not isinstance(cell, str):
        return float(cell)
    text = cell.strip()
    if style == "comma":
        if "." in text and not THOUSANDS_BY_POINT.fullmatch(text):
            raise ValueError(f"{text!r} has a decimal point, others have a comma")
        text = text.replace(".", "").replace(",", ".")
    elif style == "grouped" and THOUSANDS_BY_COMMA.fullmatch(text):
        text = text.replace(",", "")
    if "_" in text:  # which Python takes
        raise ValueError(f"{text!r} is no number")
    try:
        return float(text)
    except ValueError:
        if (flag := FLAGS.get(text.casefold())) is None:
            raise
        return flag


def numbers(cells: Sequence[Any], style: NumberStyle = "point") -> NDArray[np.float64]:
    """The cells of a row as numbers, (n,). Raises ValueError, TypeError, OverflowError."""
    if style == "point":
        try:
            if "_" not in "".join(cells):
                return np.array([*map(float, cells)])
        except (ValueError, TypeError):
            pass
    return np.array([as_number(cell, style) for cell in cells])


LABEL_COLUMNS = ("label", "labels", "class", "classes", "category", "target", "targets", "sentiment", "y")
"""Common names of a column of labels; the first two precede the others."""
FILE_COLUMNS = ("file", "filename", "file_name", "path", "image", "audio", "wav")
NO_LABEL_COLUMN = "\0"
"""The label column of a table without labels; no option and no column name can be this."""


class LabelColumn(NamedTuple):
    """The number of the label column, from 0, or -1 for none; and why it was chosen."""

    number: int
    why: str


def first_of(names: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def folded(name: str) -> str:
    """A name for comparisons: without case and outer spaces, accents composed (a Mac writes them apart)."""
    return unicodedata.normalize("NFC", name.strip().casefold())


def label_column(
    names: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    source: SampleSource,
    aside: Collection[int] = (),
) -> LabelColumn | None:
    """Finds the column of labels: the wanted one, else by a common name, else by the task's labels in it.

    names: of the columns, None without a header. rows: the first rows of the table. aside: columns that hold
    no labels. None if it is none of these: then see `usual_label_column`. Raises Refused for an unknown
    column, or if several columns are possible.
    """
    width = len(names) if names is not None else len(rows[0])
    column, labels = source.label_column, source.task_labels
    if column == NO_LABEL_COLUMN:
        return LabelColumn(-1, "it has none")
    if column:
        return LabelColumn(column_number(names, width, column, "the labels or targets"), "asked for")
    columns = list(zip(*(map(folded, row) for row in rows if len(row) == width), strict=True))
    free = [number for number in range(width) if number not in aside]
    if (usual := _by_name(names or (), columns, free, source)) is not None:
        return LabelColumn(usual, "by its name")
    words = [i for i in free if columns and _has_word_label(labels, columns[i])]
    fits = words or [i for i in free if columns and labels.issuperset(columns[i])]
    if names and len(fits) > 1:  # features are numbered, as in pixel_12
        fits = [number for number in fits if not any(map(str.isdigit, names[number]))] or fits
    if len(fits) == 1 and labels and (words or fits[0] in (free[0], free[-1])):
        return LabelColumn(fits[0], "it holds labels of the task")
    if names and fits and labels:
        could = first_of([names[i] for i in (fits if len(fits) > 1 else (*fits, free[-1]))])
        raise Refused(f"{WHICH} by --label-column", f"these may hold labels of the task: {could}")
    return None


WHICH = "which column has the labels? say it"


def _by_name(
    names: Sequence[str], columns: Sequence[Sequence[str]], free: Sequence[int], source: SampleSource
) -> int | None:
    """The column with a common name of labels, if any. Raises Refused if several may be meant."""
    labels = source.task_labels
    usual = [i for i in free if names and folded(names[i]) in LABEL_COLUMNS]
    surest = [i for i in usual if folded(names[i]) in LABEL_COLUMNS[:2]]
    if [folded(names[i]) for i in usual] == ["y"] and columns and not source.texts:  # may be a coordinate
        words = [i for i in free if i not in usual and not any(map(is_number, columns[i]))]
        if words and all(map(is_number, columns[usual[0]])):
            usual += words
    fitting = [i for i in usual if labels and columns and labels.intersection(columns[i])]
    for possible in (surest, fitting, usual):
        if len(possible) == 1:
            return possible[0]
    if usual:
        called = first_of([names[i] or str(i) for i in usual])
        raise Refused(f"{WHICH} by --label-column", f"several may be: {called}")
    return None


def usual_label_column(
    names: Sequence[str] | None, rows: Sequence[Sequence[str]], source: SampleSource, aside: Collection[int]
) -> LabelColumn:
    """The only column of words among numbers, or of few texts among many; else the last. Raises Refused."""
    width = len(names) if names is not None else len(rows[0])
    columns = list(zip(*(map(folded, row) for row in rows if len(row) == width), strict=True))
    free = [number for number in range(width) if number not in aside]
    last = free[-1] if free else width - 1
    words = [i for i in free if columns and not any(map(is_number, columns[i]))]
    if len(words) == 1 and len(free) > 1 and not source.texts:
        return LabelColumn(words[0], "it alone holds words" if words[0] != last else "it is the last")
    repeated = [i for i in words if len(set(columns[i])) * 2 <= len(columns[i])]
    if len(repeated) == 1 and last in words and last not in repeated:
        return LabelColumn(repeated[0], "its few words recur")
    if words and last not in words and len(free) > 2 and not source.texts:
        could = first_of([names[i] if names else str(i) for i in words])
        raise Refused(f"{WHICH} by --label-column", f"these hold words: {could}")
    return LabelColumn(last, "it is the last")


def target_columns(names: Sequence[str] | None, width: int, source: SampleSource) -> tuple[int, ...]:
    """Finds the columns of targets: those asked for, else by the task's names, else without names the last.

    names: of the columns, None without a header. Raises Refused for a column that is not there.
    """
    if source.label_column == NO_LABEL_COLUMN:
        return ()
    if names is None and not source.label_column:
        count = len(source.target_columns)
        return tuple(range(width - count, width)) if count < width else ()
    columns = source.label_column.split(",") if source.label_column else source.target_columns
    if len(columns) != len(source.target_columns):
        raise Refused(
            "another number of columns of targets",
            f"{', '.join(columns)}; the task has {', '.join(source.target_columns)}",
        )
    return tuple(column_number(names, width, name.strip(), "the labels or targets") for name in columns)


NO_TARGET = "a target that is no number"


def column_values(text: str, columns: Sequence[str]) -> list[float]:
    """The targets of one sample, from numbers joined by commas. Raises Refused."""
    cells, values = text.split(","), list[float]()
    if len(cells) != len(columns):
        raise Refused(NO_TARGET, f"{text[:40]!r}: {len(cells)} numbers, expected {', '.join(columns)}")
    for name, cell in zip(columns, cells, strict=True):
        try:
            values.append(float(cell))
        except ValueError:
            raise Refused(NO_TARGET, f"{name} is {cell[:40]!r}") from None
    return values


def column_number(names: Sequence[str] | None, width: int, key: str, purpose: str) -> int:
    """The number of a column that is wanted by name or number, for labels or so. Raises Refused."""
    called = [folded(name) for name in names or ()]
    if (count := called.count(folded(key))) > 1:
        raise Refused(f"{count} columns are called {key!r}", f"name {purpose} by number, 0 to {width - 1}")
    if count:
        return called.index(folded(key))
    if key.isdecimal() and int(key) < width:
        return int(key)
    choices = first_of(names) if names else f"0 to {width - 1}"
    raise Refused(f"no column {key!r} for {purpose}", f"there are {choices}")


def _has_word_label(labels: frozenset[str], cells: Sequence[str]) -> bool:
    """Whether any cell is a label that is not a number; features never are."""
    return any(cell in labels and not cell.isdecimal() for cell in cells)


# Texts in UTF-8: a .txt file, a cell of a table, a value of a database.

TEXT_COLUMNS = (
    "text",
    "sentence",
    "review",
    "comment",
    "message",
    "content",
    "body",
    "question",
    "utterance",
)
"""Common names of a column of texts."""


@dataclass(frozen=True)
class TextCell:
    """One text."""

    text: str

    @property
    def form(self) -> str:
        return "text"

    def raw(self, spec: InputSpec) -> NDArray[Any]:
        """Raises Refused, because a text becomes an input only by a tokenizer; see `ids`."""
        kind = "token ids, and its bundle has no tokenizer" if spec.vocabulary else f"{spec.shape}"
        raise Refused("the task's input is no text", f"it is {kind}")

    @property
    def checked(self) -> str:
        """The text. Raises Refused for one of only spaces."""
        if not self.text.strip():
            raise Refused("an empty text")
        return self.text

    def ids(self, texts: TokenIds) -> NDArray[np.int64]:
        """Token ids (1, length). Raises Refused for a text of only spaces."""
        return texts.ids([self.checked])


def decode(data: bytes) -> TextCell:
    """Reads a text in UTF-8. Raises Refused for other bytes."""
    try:
        return TextCell(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refused("not a text in UTF-8", f"{error.reason} at byte {error.start}") from None


def text_cell(cell: object) -> TextCell:
    """A cell of a table or of a query's result as a text. Raises Refused."""
    return decode(cell) if isinstance(cell, bytes) else TextCell(str(cell))


def text_column(
    names: Sequence[str] | None, rows: Sequence[Sequence[Any]], others: Sequence[int], key: str
) -> int:
    """Finds the column of texts: the wanted one, else by a common name, else the only one of words.

    rows: the first ones. others: the columns that are neither labels nor clients. key: a name or number,
    or empty. Raises Refused if several columns are possible, or none.
    """
    if key:
        width = len(names) if names is not None else max(map(len, rows), default=0)
        return column_number(names, width, key, "the texts")
    usual = [column for column in others if names and folded(names[column]) in TEXT_COLUMNS]
    words = [i for i in others if rows and not any(is_number(row[i]) for row in rows if len(row) > i)]
    for possible in (usual, others, words):
        if len(possible) == 1:
            return possible[0]
    choices = first_of([names[i] for i in others]) if names else ", ".join(map(str, others))
    raise Refused("which column has the texts? say it by --text-column", choices)
