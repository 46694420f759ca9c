"""Numbers as a paper prints them."""

from __future__ import annotations

import re
from math import nan

_NUMBER = re.compile(
    r"(?P<number>[0-9][0-9,]*(?:\.[0-9]+)?)(?:\s*×\s*10\^?\{?(?P<power>-?[0-9]+)\}?)?\s*(?P<unit>[GMk]B)?"
)
_BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, None: 1.0}


def value_of(cell: str) -> float:
    """The first number of a cell such as "62.95±2.84", "4.5×10^8" or "5.49MB"; nan where there is none."""
    found = _NUMBER.search(cell)
    if found is None:
        return nan
    number = float(found["number"].replace(",", "")) * 10.0 ** int(found["power"] or 0)
    return number * _BYTES[found["unit"]]
