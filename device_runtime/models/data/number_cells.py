"""Reads numbers from the cells of a table, as people and programs write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .units import Refused

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
