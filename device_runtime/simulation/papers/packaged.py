"""TOML files that come with this package."""

from __future__ import annotations

import re
import sys
from importlib import resources
from importlib.abc import Traversable
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = "tables"
TEXT = 1 << 31  # after every number


def toml(*place: str) -> dict[str, Any]:
    """The file at this place."""
    return parsed(_at(*place).read_text("utf-8"))


def parsed(text: str) -> dict[str, Any]:
    """Raises ValueError for what is not TOML."""
    content: dict[str, Any] = tomllib.loads(text)
    return content


def stems() -> tuple[str, ...]:
    """Of the files of tables."""
    files = (file.name for file in _at(TABLES).iterdir() if file.name.endswith(".toml"))
    return tuple(sorted((name.removesuffix(".toml") for name in files), key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in it by their value."""
    return [(int(part), "") if part.isdigit() else (TEXT, part) for part in re.findall(r"\d+|\D+", name)]


def _at(*place: str) -> Traversable:
    return resources.files(__package__).joinpath(*place)
