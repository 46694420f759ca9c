"""Finds the columns of labels and texts in a table, and reads texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.text.texts import Texts

from .sample_source import SampleSource
from .units import Refused

LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "sentiment", "y")
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
    wanted: str,
    labels: frozenset[str] = frozenset(),
) -> LabelColumn:
    """Finds the column of labels: the wanted one, else by a common name, else by its cells, else the last.

    names: of the columns, None without a header.
    rows: the first rows of the table.
    labels: of the task, folded; empty if no task is known; a column whose cells are labels of the task is
    taken.
    Raises Refused for an unknown column, or if several columns are possible.
    """
    width = len(names) if names is not None else len(rows[0])
    called = [folded(name) for name in names or ()]
    if wanted == NO_LABEL_COLUMN:
        return LabelColumn(-1, "it has none")
    if wanted:
        return LabelColumn(_asked(names, called, width, wanted), "asked for")
    usual = next((called.index(name) for name in LABEL_COLUMNS if name in called), None)
    if usual is not None:
        return LabelColumn(usual, "by its name")
    columns = list(zip(*[map(folded, row) for row in rows if len(row) == width], strict=True))
    words = [number for number, cells in enumerate(columns) if _has_word_label(labels, cells)]
    fits = words or [number for number, cells in enumerate(columns) if labels.issuperset(cells)]
    if names and len(fits) > 1:  # features are numbered, as in pixel_12
        fits = [number for number in fits if not any(map(str.isdigit, names[number]))] or fits
    if len(fits) == 1:
        return LabelColumn(fits[0], "it holds labels of the task")
    if names and len(fits) > 1:
        could = first_of([names[number] for number in fits])
        raise Refused(
            "which column has the labels? say it by --label-column", f"these hold labels of the task: {could}"
        )
    return LabelColumn(width - 1, "it is the last")


def target_columns(names: Sequence[str] | None, width: int, source: SampleSource) -> tuple[int, ...]:
    """Finds the columns of targets: those asked for, else by the task's names, else without names the last.

    names: of the columns, None without a header. Raises Refused for a column that is not there.
    """
    if source.label_column == NO_LABEL_COLUMN:
        return ()
    if names is None and not source.label_column:
        count = len(source.target_columns)
        return tuple(range(width - count, width)) if count < width else ()
    called = [folded(name) for name in names or ()]
    asked = source.label_column.split(",") if source.label_column else source.target_columns
    if len(asked) != len(source.target_columns):
        raise Refused(
            "another number of columns of targets",
            f"{', '.join(asked)}; the task has {', '.join(source.target_columns)}",
        )
    return tuple(_asked(names, called, width, name.strip()) for name in asked)


def column_values(text: str, columns: Sequence[str]) -> list[float]:
    """The targets of one sample, from numbers joined by commas. Raises Refused."""
    cells = text.split(",")
    try:
        if len(cells) != len(columns):
            raise ValueError(f"{text[:40]!r}: {len(cells)} numbers, expected {', '.join(columns)}")
        return [float(cell) for cell in cells]
    except ValueError as error:
        raise Refused("a target that is no number", str(error)[:80]) from None


def _asked(names: Sequence[str] | None, called: Sequence[str], width: int, wanted: str) -> int:
    if wanted.isdecimal() and int(wanted) < width:
        return int(wanted)
    if folded(wanted) in called:
        return called.index(folded(wanted))
    there = first_of(names) if names else f"0 to {width - 1}"
    raise Refused(f"no column {wanted!r} for the labels or targets", f"there are {there}")


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

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """Raises Refused, because a text becomes an input only by a tokenizer; see `ids`."""
        kind = "token ids, and its bundle has no tokenizer" if given.vocabulary else f"{given.shape}"
        raise Refused("the task's input is no text", f"it is {kind}")

    def ids(self, texts: Texts) -> NDArray[np.int64]:
        """Token ids (1, length). Raises Refused for a text of only spaces."""
        if not self.text.strip():
            raise Refused("an empty text")
        return texts.ids([self.text])


def decode(data: bytes) -> TextCell:
    """Reads a text in UTF-8. Raises Refused for other bytes."""
    try:
        return TextCell(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refused("not a text in UTF-8", f"{error.reason} at byte {error.start}") from None


def text_cell(cell: object) -> TextCell:
    """A cell of a table or of a query's result as a text. Raises Refused."""
    return decode(cell) if isinstance(cell, bytes) else TextCell(str(cell))


def text_column(names: Sequence[str] | None, width: int, targets: Sequence[int], wanted: str) -> int:
    """Finds the column of texts: the wanted one, else by a common name, else the only one but the targets.

    targets: the columns of labels or targets. wanted: a name or number, or empty. Raises Refused if several
    columns are possible, or none.
    """
    called = [folded(name) for name in names or ()]
    others = [column for column in range(width) if column not in targets]
    if wanted.isdecimal() and int(wanted) in others:
        return int(wanted)
    if wanted and folded(wanted) in called:
        return called.index(folded(wanted))
    if not wanted:
        usual = [column for column in others if called and called[column] in TEXT_COLUMNS]
        if len(usual) == 1 or len(others) == 1:
            return (usual or others)[0]
    there = first_of(names) if names else f"0 to {width - 1}"
    raise Refused(
        f"which column has the texts? no {wanted!r}" if wanted else "which column has the texts?", there
    )
