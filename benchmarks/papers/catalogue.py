"""Lists and loads the tables of this package, which are TOML files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.content import read_toml
from device_runtime.simulation.errors import ScenarioError

from .table import Table

HERE = Path(__file__).parent
TABLES = "tables"
TEXT = 1 << 31  # sorts text after every number
PAPERS: Mapping[str, str] = {
    "000": "Bernier 2024 (MSc thesis, Concordia)",
    "001": "Legate et al. 2023 (FedNCM)",
    "002": "Shi 2025 (PhD thesis, Sheffield)",
    "003": "Sun et al. 2022 (FedPEFT)",
    "004": "Sun et al. 2022 (FedPEFT, first version)",
}
"""The papers by the number that they have in names of tables."""


def names() -> tuple[str, ...]:
    """The names of tables, as the command takes them; files of our own tables begin with "ours-"."""
    return tuple(
        f"ours:{stem.removeprefix('ours-')}" if stem.startswith("ours-") else f"paper:{stem}"
        for stem in stems()
    )


def stem(name: str) -> str:
    """The name of the table's file and folders."""
    return name.removeprefix("paper:").replace(":", "-")


def load(name: str) -> Table:
    """Loads a table. Raises ScenarioError for an unknown or left out name, and for an invalid file."""
    if why := left_out().get(name):
        raise ScenarioError(f"{name} is not run here: {why}")
    if name not in names():
        raise ScenarioError(f"no table {name!r}; there are {', '.join(names())}")
    return table(toml(TABLES, f"{stem(name)}.toml"), name)


def table(content: Mapping[str, object], name: str) -> Table:
    """A table from its TOML, in which a column may be `like` an earlier one. Raises ScenarioError."""
    try:
        whole = {"id": name, **content}
        if isinstance(columns := content.get("columns"), list):
            whole["columns"] = _written_out(columns)
        return msgspec.convert(whole, Table)
    except (msgspec.ValidationError, ValueError) as error:
        raise ScenarioError(f"table {name}: {error}") from None


def _written_out(columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns with `like` resolved. Raises ValueError for one that names no earlier column."""
    by_id: dict[str, dict[str, Any]] = {}
    written: list[dict[str, Any]] = []
    for column in columns:
        own = {name: value for name, value in column.items() if name != "like"}
        like = column.get("like")
        if like is not None and like not in by_id:
            raise ValueError(f"column {column.get('id')} is like {like!r}, which is not an earlier column")
        written.append({**(by_id[like] if like else {}), **own})
        by_id[str(column.get("id"))] = written[-1]
    return written


def left_out() -> Mapping[str, str]:
    """The papers' tables that are not run here, and why."""
    return msgspec.convert(toml("left_out.toml"), dict[str, str])


def toml(*place: str) -> dict[str, Any]:
    """The parsed TOML file at this place in the package."""
    return read_toml(HERE.joinpath(*place), ScenarioError)


def stems() -> tuple[str, ...]:
    """The stems of the tables' files, in natural order."""
    return tuple(sorted((file.stem for file in (HERE / TABLES).glob("*.toml")), key=natural))


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers within the name by their value."""
    return [(int(part), "") if part.isdigit() else (TEXT, part) for part in re.findall(r"\d+|\D+", name)]
