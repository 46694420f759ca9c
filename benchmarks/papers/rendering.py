"""Renders tables with the paper's numbers and ours (text, Markdown, JSON), and the list of all tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from typing import Literal

import msgspec
from tabulate import tabulate

from device_runtime.simulation.compare.figures import DASH, SeedSpread, decimals, digits, unit_for
from device_runtime.simulation.report.table import figure_text

from . import catalogue
from .catalogue import PAPERS
from .claims import ClaimVerdict
from .measures import MEASURES, Measure
from .outcome import TableOutcome
from .places import DataFolder, SharedTables
from .table import SCALES, Column, SystemRow, Table

Style = Literal["simple", "github"]
UNJUDGED = "claims that need these: "
"""Begins the line with the number of claims that are not run."""


def text(outcome: TableOutcome) -> str:
    """The table as text for a terminal."""
    parts = [heading(outcome), *_tables(outcome, "simple"), _claims(outcome, "simple")]
    notes = [f"- {sentence}" for sentence in differences(outcome)]
    parts.append("\n".join(["differences from the paper's setting", *notes] if notes else []))
    parts.append("\n".join(f"not run: {why}" for why in (*_missing(outcome), *outcome.failed)))
    return "\n\n".join(part for part in parts if part)


def markdown(outcome: TableOutcome, command: str, picture: str = "") -> str:
    """The table as a section of a page; `command` writes it again, `picture` is the link of its picture."""
    table = outcome.table
    parts = [
        f"## {heading(outcome)}",
        f"```\n{command}\n```",
        table.caption,
        f"{_about(outcome)}.",
        f"![{_alt(outcome)}]({picture})" if picture else "",
        *_tables(outcome, "github"),
        _claims(outcome, "github"),
    ]
    if notes := differences(outcome):
        parts.append("\n".join(["**Differences from the paper's setting**\n", *(f"* {n}" for n in notes)]))
    if lacking := (*_missing(outcome), *outcome.failed):
        parts.append("\n".join(["**Not run**\n", *(f"* {why}" for why in lacking)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def json(outcome: TableOutcome) -> str:
    """The table as JSON in plain units: shares, seconds, bytes, joules; null where unknown."""
    table = outcome.table
    whole = {
        "table": table.id,
        "scale": outcome.request.scale,
        "seeds": outcome.request.seeds,
        "date": outcome.date,
        "commits": outcome.commits,
        "versions": outcome.versions,
        "differences": differences(outcome),
        "columns": [_column_json(outcome, column) for column in table.columns_at(outcome.request.scale)],
        "claims": [
            {
                "text": each.claim.text,
                "column": each.column,
                "paper": each.printed,
                "ours": asdict(each.ours),
                "interval": each.ours.interval,
                "seeds_that_hold": each.seeds,
                "verdict": each.words,
            }
            for each in outcome.verdicts
        ],
        "not_run": outcome.failed,
    }
    return msgspec.json.format(msgspec.json.encode(whole)).decode()


def heading(outcome: TableOutcome) -> str:
    """The title of the table, with its scale."""
    table = outcome.table
    number = table.id.partition("-t")[2]
    of = f"Table {number} of {PAPERS[table.paper]}" if table.paper else table.id
    return f"{of}: {table.title} (scale {outcome.request.scale})"


def differences(outcome: TableOutcome) -> tuple[str, ...]:
    """Differences from the paper's setting, in sentences: of the data, of every scale, and of this one."""
    table = outcome.table
    return (*outcome.notes, *table.differences, *table.scaled(outcome.request.scale).differences)


def _about(outcome: TableOutcome) -> str:
    seeds = outcome.request.seeds
    spread = ", mean ± standard deviation" if seeds > 1 else ""
    packages = ", ".join(
        f"{name} {outcome.versions[name]}"
        for name in ("device-runtime", "onnxruntime", "torch")
        if name in outcome.versions
    )
    when = f"; {outcome.date}" if outcome.date else ""
    return f"{seeds} seed{'s' if seeds > 1 else ''}{spread}{when}; {_code(outcome.commits)}; {packages}"


def _code(commits: Sequence[str]) -> str:
    """The commits of the code; a "+" after one says that the code was changed since."""
    hashes = ", ".join(commit for commit in commits if commit)
    some_unknown = " and of unknown commits" if "" in commits and hashes else ""
    return f"code of {hashes}{some_unknown}" if hashes else "code of an unknown commit"


def _alt(outcome: TableOutcome) -> str:
    """What the picture shows, in words."""
    return f"Means over seeds, row by row: {outcome.table.title}"


def _tables(outcome: TableOutcome, style: Style) -> list[str]:
    """A table of text for each group of columns. Rows and columns without runs are left out."""
    columns = [column for column in outcome.table.columns_at(outcome.request.scale) if _ran(outcome, column)]
    return [_columns(outcome, group, style) for group in _groups(outcome, columns)]


def _groups(outcome: TableOutcome, columns: Sequence[Column]) -> list[list[Column]]:
    """Columns of the same runs share a table where the paper has no numbers for them."""
    groups: dict[object, list[Column]] = {}
    for column in columns:
        runs = (column.data, column.modifier, column.setting, column.at, column.cells)
        key = column.id if _printed(outcome, column) else msgspec.json.encode(runs)
        groups.setdefault(key, []).append(column)
    return list(groups.values())


def _printed(outcome: TableOutcome, column: Column) -> bool:
    """Whether the paper has numbers for this column."""
    return any(column.id in row.paper for row in outcome.table.rows_at(outcome.request.scale, column))


def _ran(outcome: TableOutcome, column: Column) -> list[SystemRow]:
    """The rows that have runs in this column."""
    rows = outcome.table.rows_at(outcome.request.scale, column)
    return [row for row in rows if any(outcome.runs.get((row.name, column.id), ()))]


def _columns(outcome: TableOutcome, columns: Sequence[Column], style: Style) -> str:
    """The table of a group of columns: a row for each system, with the paper's number if it has any."""
    first = columns[0]
    titles = [MEASURES[outcome.table.measure_of(column)].title for column in columns]
    if len(columns) == 1:
        title = f"{first.title}: {titles[0]}{_stragglers(outcome, first)}"
        titles = ["ours"]
    else:
        title = f"{first.title}{_stragglers(outcome, first)}"
        own = [column.title.removeprefix(first.title).lstrip(", ") for column in columns]
        titles = [own_measure or measure for own_measure, measure in zip(own, titles, strict=True)]
    ran = {row.name for column in columns for row in _ran(outcome, column)}
    rows = [row for row in outcome.table.rows if row.name in ran]
    by_column = [_cells(outcome, column, rows) for column in columns]
    printed = [[row.paper.get(first.id, DASH) for row in rows]] if _printed(outcome, first) else []
    heads = ("system", *("paper" for _ in printed), *titles)
    lines = list(zip([row.title for row in rows], *printed, *by_column, strict=True))
    sides = ("left", *("right" for _ in heads[1:]))
    return f"{_bold(title, style)}\n\n{_table(lines, heads, (style, sides))}"


def _cells(outcome: TableOutcome, column: Column, rows: Sequence[SystemRow]) -> list[str]:
    """Our results in a column; empty for rows that it does not have."""
    ours = {row.name: outcome.spread(row.name, column.id) for row in rows}
    unit = _unit(MEASURES[outcome.table.measure_of(column)], list(ours.values()))
    names = {row.name for row in outcome.table.rows_at(outcome.request.scale, column)}
    return [_worded(ours[row.name], unit) if row.name in names else "" for row in rows]


def _missing(outcome: TableOutcome) -> list[str]:
    """The rows and columns that have no runs yet, and how many claims need them."""
    columns = outcome.table.columns_at(outcome.request.scale)
    run = {row.name for column in columns for row in _ran(outcome, column)}
    every = [row for column in columns for row in outcome.table.rows_at(outcome.request.scale, column)]
    rows = dict.fromkeys(row.title for row in every if row.name not in run)
    without = dict.fromkeys(column.title for column in columns if not _ran(outcome, column))
    claims = sum(not each.is_known for each in outcome.verdicts)
    parts = [f"rows: {'; '.join(rows)}"] if rows else []
    parts += [f"columns: {'; '.join(without)}"] if without else []
    return [*parts, *([f"{UNJUDGED}{claims}"] if claims else [])]


def _worded(each: SeedSpread, unit: tuple[str, float]) -> str:
    """A cell as text; one without any seed says so."""
    return figure_text(each, unit) if each.n else f"{DASH} (0 of {each.of})"


def _stragglers(outcome: TableOutcome, column: Column) -> str:
    share = outcome.stragglers[column.id]
    return "" if isnan(share) else f"; {share:.0%} of asks go to stragglers"


def _claims(outcome: TableOutcome, style: Style) -> str:
    if outcome.request.scale == "smoke":
        return "Scale smoke shows that it works, and claims nothing."
    titles = {column.id: _named(column, outcome) for column in outcome.table.columns}
    rows = [
        (each.claim.text, titles[each.column], _paper(each), *_ours(each), each.words)
        for each in outcome.verdicts
        if each.is_known
    ]
    if not rows:
        return ""
    heads = ("claim", "column", "paper", "ours", "95% interval", "seeds", "verdict")
    sides = ("left", "left", "right", "right", "right", "right", "left")
    return f"{_bold('claims', style)}\n\n{_table(rows, heads, (style, sides))}"


def _named(column: Column, outcome: TableOutcome) -> str:
    """The column's title, with its measure where other columns have the same title."""
    alike = [other for other in outcome.table.columns if other.title == column.title]
    what = MEASURES[outcome.table.measure_of(column)].title
    return column.title if len(alike) == 1 else f"{column.title}: {what}"


def _paper(each: ClaimVerdict) -> str:
    return DASH if isnan(each.printed) else _amount(each.printed, each)


def _ours(each: ClaimVerdict) -> tuple[str, str, str]:
    """The mean with its standard deviation, the interval of the mean, and the seeds in which it holds."""
    if not each.is_known:
        return DASH, DASH, DASH
    sd = f" ± {_amount(each.ours.sd, each).lstrip('+')}" if each.ours.n > 1 else ""
    ends = [_amount(end, each) for end in each.ours.interval or ()]
    between = " to ".join(ends) if ends else "none: one seed"
    return f"{_amount(each.ours.mean, each)}{sd}", between, f"{each.seeds} of {each.ours.n}"


def _amount(value: float, each: ClaimVerdict) -> str:
    if each.claim.factor:
        return f"{digits(value, 2)} times"
    return f"{value:+.2f}" if each.points else f"{value:+,.{decimals(value)}f}"


def _unit(measure: Measure, ours: Sequence[SeedSpread]) -> tuple[str, float]:
    means = [each.mean for each in ours if not isnan(each.mean)]
    return unit_for(max(means, default=0.0), measure.units)


def _table(rows: Sequence[Sequence[str]], heads: Sequence[str], look: tuple[Style, Sequence[str]]) -> str:
    style, sides = look
    return tabulate(rows, heads, tablefmt=style, disable_numparse=True, colalign=sides)


def _bold(title: str, style: Style) -> str:
    return f"**{title}**" if style == "github" else title


def _column_json(outcome: TableOutcome, column: Column) -> dict[str, object]:
    table = outcome.table
    return {
        "id": column.id,
        "title": column.title,
        "measure": table.measure_of(column),
        "stragglers": outcome.stragglers[column.id],
        "rows": [
            {
                "row": row.name,
                "system": row.system,
                "paper": row.paper.get(column.id),
                "ours": asdict(outcome.spread(row.name, column.id)),
                "seeds": outcome.values.get((row.name, column.id), ()),
            }
            for row in table.rows_at(outcome.request.scale, column)
        ],
    }


def listing(folder: DataFolder, shared: SharedTables) -> str:
    """The list of all tables: of each paper, ours, and those that are left out, with the reason.

    A line says what a table compares and whether its data is there.
    """
    lines: list[str] = []
    tables = [catalogue.load(name) for name in catalogue.names()]
    for paper in dict.fromkeys(table.paper for table in tables):
        lines.append(PAPERS.get(paper, "ours"))
        lines += [_line(table, folder, shared) for table in tables if table.paper == paper]
    lines.append("left out")
    lines += [f"  {name:20}{why}" for name, why in catalogue.left_out().items()]
    lines.append(f"data: {folder.path or 'no folder; give --data-dir DIR'}")
    return "\n".join(lines)


def _line(table: Table, folder: DataFolder, shared: SharedTables) -> str:
    rows = f"{len(table.rows)} systems, {len(table.columns)} columns"
    return f"  {table.id:20}{table.title}; {rows}; {ready(table, folder, shared)}"


def ready(table: Table, folder: DataFolder, shared: SharedTables) -> str:
    """The scales at which the table can be run with the data that is there."""
    scales, missing = [], ""
    for scale in (scale for scale in SCALES if scale in table.scales):
        entries = [shared.entry(column.data, scale) for column in table.columns_at(scale)]
        lacking = [entry.title for entry in entries if not folder.has(entry, scale)]
        if lacking:
            missing = missing or f"no {lacking[0]}"
        else:
            scales.append(scale)
    ready = f"data for {', '.join(scales)}" if scales else ""
    return "; ".join(part for part in (ready, missing) if part)
