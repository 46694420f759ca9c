"""All tables in lines: what each compares, and whether its data is there."""

from __future__ import annotations

from . import catalogue
from .catalogue import PAPERS
from .places import DataFolder
from .shared import Shared
from .table import SCALES, Table


def listing(folder: DataFolder, shared: Shared) -> str:
    """Those of each paper, ours, and those that are left out, with the reason."""
    lines: list[str] = []
    tables = [catalogue.load(name) for name in catalogue.names()]
    for paper in dict.fromkeys(table.paper for table in tables):
        lines.append(PAPERS.get(paper, "ours"))
        lines += [_line(table, folder, shared) for table in tables if table.paper == paper]
    lines.append("left out")
    lines += [f"  {name:20}{why}" for name, why in catalogue.left_out().items()]
    lines.append(f"data: {folder.path or 'no folder; give --data-dir DIR'}")
    return "\n".join(lines)


def _line(table: Table, folder: DataFolder, shared: Shared) -> str:
    rows = f"{len(table.rows)} systems, {len(table.columns)} columns"
    return f"  {table.id:20}{table.title}; {rows}; {ready(table, folder, shared)}"


def ready(table: Table, folder: DataFolder, shared: Shared) -> str:
    """At which scales it can be run with the data that is there."""
    there, missing = [], ""
    for scale in (scale for scale in SCALES if scale in table.scales):
        entries = [shared.entry(column.data, scale) for column in table.columns_at(scale)]
        lacking = [entry.title for entry in entries if not folder.has(entry, scale)]
        if lacking:
            missing = missing or f"no {lacking[0]}"
        else:
            there.append(scale)
    ready = f"data for {', '.join(there)}" if there else ""
    return "; ".join(part for part in (ready, missing) if part)
