"""Which column of a table has the labels."""

from __future__ import annotations

from collections.abc import Sequence

from .refusal import Refused

LABELS = ("label", "labels", "class", "category", "target", "sentiment", "y")
FILES = ("file", "filename", "file_name", "path", "image", "audio", "wav")


def labels_column(names: Sequence[str] | None, width: int, wanted: str) -> int:
    """By its name or number, where one is wanted; else by a usual name; else the last.

    `names` of the columns, None where they have none. Raises Refused for a column that is not there.
    """
    folded = [name.strip().casefold() for name in names or ()]
    if not wanted:
        return next((number for number, name in enumerate(folded) if name in LABELS), width - 1)
    if wanted.isdecimal() and int(wanted) < width:
        return int(wanted)
    if wanted.strip().casefold() in folded:
        return folded.index(wanted.strip().casefold())
    there = ", ".join(names[:8]) if names else f"0 to {width - 1}"
    raise Refused(f"no column {wanted!r} for the labels", f"there are {there}")
