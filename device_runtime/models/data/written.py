"""Text: a .txt file, a cell of a table, a value of a database; UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.text.texts import Texts

from .refusal import Refused

TEXTS = ("text", "sentence", "review", "comment", "message", "content", "body", "question", "utterance")
"""Usual names of a column of texts."""


@dataclass(frozen=True)
class Written:
    """One text."""

    text: str

    @property
    def form(self) -> str:
        return "text"

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """Raises Refused: only a tokenizer makes an input of it."""
        kind = "token ids, and its bundle has no tokenizer" if given.vocabulary else f"{given.shape}"
        raise Refused("the task's input is no text", f"it is {kind}")

    def ids(self, texts: Texts) -> NDArray[np.int64]:
        """(1, length). Raises Refused for a text of spaces alone."""
        if not self.text.strip():
            raise Refused("an empty text")
        return texts.ids([self.text])


def decode(data: bytes) -> Written:
    """Raises Refused for what is no UTF-8."""
    try:
        return Written(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refused("not a text in UTF-8", f"{error.reason} at byte {error.start}") from None


def text_of(cell: object) -> Written:
    """What a table or a query gives, as a text. Raises Refused."""
    return decode(cell) if isinstance(cell, bytes) else Written(str(cell))


def text_column(names: Sequence[str] | None, width: int, label: int, wanted: str) -> int:
    """By its name or number, where one is wanted; else by a usual name; else the only one beside the label.

    Raises Refused where that leaves several, or none.
    """
    folded = [name.strip().casefold() for name in names or ()]
    others = [column for column in range(width) if column != label]
    if wanted.isdecimal() and int(wanted) in others:
        return int(wanted)
    if wanted and wanted.strip().casefold() in folded:
        return folded.index(wanted.strip().casefold())
    if not wanted:
        usual = [column for column in others if folded and folded[column] in TEXTS]
        if len(usual) == 1 or len(others) == 1:
            return (usual or others)[0]
    there = ", ".join(names[:8]) if names else f"0 to {width - 1}"
    raise Refused(
        f"which column has the texts? no {wanted!r}" if wanted else "which column has the texts?", there
    )
