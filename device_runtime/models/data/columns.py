"""Which column of a table has the labels, and why."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from .refusal import Refused

LABELS = ("label", "labels", "class", "category", "target", "sentiment", "y")
FILES = ("file", "filename", "file_name", "path", "image", "audio", "wav")
NONE = "\0"
"""Asked for where a table has no labels; no option can hold it, and no column is called so."""


class LabelColumn(NamedTuple):
    """The number of a column, from 0, or -1 for none; and why it is taken for the labels."""

    number: int
    why: str


def folded(name: str) -> str:
    """A name without regard to case and to spaces around it; accents apart (as a Mac has them) are alike."""
    return unicodedata.normalize("NFC", name.strip().casefold())


def label_column(
    names: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    wanted: str,
    labels: frozenset[str] = frozenset(),
) -> LabelColumn:
    """The one that is asked for; else one with a usual name; else the one whose cells are labels of the task;
    else the last.

    `names` of the columns, None where they have none; `rows`: the first ones of the table; `labels` of the
    task, folded, empty where it is not known. Raises Refused for a column that is not there, and where
    several could be it.
    """
    width = len(names) if names is not None else len(rows[0])
    called = [folded(name) for name in names or ()]
    if wanted == NONE:
        return LabelColumn(-1, "it has none")
    if wanted:
        return LabelColumn(_asked(names, called, width, wanted), "asked for")
    usual = next((number for number, name in enumerate(called) if name in LABELS), None)
    if usual is not None:
        return LabelColumn(usual, "by its name")
    columns = list(zip(*[map(folded, row) for row in rows if len(row) == width], strict=True))
    words = [number for number, cells in enumerate(columns) if _a_word_of(labels, cells)]
    fits = words or [number for number, cells in enumerate(columns) if labels.issuperset(cells)]
    if names and len(fits) > 1:  # features are numbered, as in pixel_12
        fits = [number for number in fits if not any(map(str.isdigit, names[number]))] or fits
    if len(fits) == 1:
        return LabelColumn(fits[0], "it holds labels of the task")
    if names and len(fits) > 1:
        could = ", ".join(names[number] for number in fits[:8])
        raise Refused(
            "which column has the labels? say it by --label-column", f"these hold labels of the task: {could}"
        )
    return LabelColumn(width - 1, "it is the last")


def _asked(names: Sequence[str] | None, called: Sequence[str], width: int, wanted: str) -> int:
    if wanted.isdecimal() and int(wanted) < width:
        return int(wanted)
    if folded(wanted) in called:
        return called.index(folded(wanted))
    there = ", ".join(names[:8]) if names else f"0 to {width - 1}"
    raise Refused(f"no column {wanted!r} for the labels", f"there are {there}")


def _a_word_of(labels: frozenset[str], cells: Sequence[str]) -> bool:
    """Whether any cell is a label that is no number, which no feature is."""
    return any(cell in labels and not cell.isdecimal() for cell in cells)
