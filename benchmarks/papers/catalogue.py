"""Which tables there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import resources
from importlib.abc import Traversable
from typing import Any

import msgspec

from device_runtime.simulation.errors import ScenarioError

from .table import Table

PAPERS: Mapping[str, str] = {
    "000": "Bernier 2024 (MSc thesis, Concordia)",
    "001": "Legate et al. 2023 (FedNCM)",
    "002": "Shi 2025 (PhD thesis, Sheffield)",
    "003": "Sun et al. 2022 (FedPEFT)",
    "004": "Sun et al. 2022 (FedPEFT, first version)",
}
"""Papers by the number that they have in the names of tables."""


def names() -> tuple[str, ...]:
    """As the command takes them, in order; a table of ours has a file that begins with "ours-"."""
    return tuple(
        f"ours:{stem.removeprefix('ours-')}" if stem.startswith("ours-") else f"paper:{stem}"
        for stem in stems()
    )


def stem(name: str) -> str:
    """The name of its file and of folders."""
    return name.removeprefix("paper:").replace(":", "-")


def load(name: str) -> Table:
    """Raises ScenarioError for a name that is not there or left out, or a file that cannot be meant."""
    if why := left_out().get(name):
        raise ScenarioError(f"{name} is not run here: {why}")
    if name not in names():
        raise ScenarioError(f"no table {name!r}; there are {', '.join(names())}")
    return table(toml(TABLES, f"{stem(name)}.toml"), name)


def table(content: Mapping[str, object], name: str) -> Table:
    """A table from its TOML, where a column may be `like` one before it. Raises ScenarioError."""
    try:
        whole = {"id": name, **content}
        if isinstance(columns := content.get("columns"), list):
            whole["columns"] = _written_out(columns)
        return msgspec.convert(whole, Table)
    except (msgspec.ValidationError, ValueError) as error:
        raise ScenarioError(f"table {name}: {error}") from None


def _written_out(columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without `like`. Raises ValueError for one that is like no column before it."""
    known: dict[str, dict[str, Any]] = {}
    written: list[dict[str, Any]] = []
    for column in columns:
        own = {name: value for name, value in column.items() if name != "like"}
        like = column.get("like")
        if like is not None and like not in known:
            raise ValueError(f"column {column.get('id')} is like {like!r}, which is no column before it")
        written.append({**(known[like] if like else {}), **own})
        known[str(column.get("id"))] = written[-1]
    return written


def left_out() -> Mapping[str, str]:
    """Tables of the papers that are not run here, and why."""
    return msgspec.convert(toml("left_out.toml"), dict[str, str])


# FROM packaged: TOML files that come with this package.

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
