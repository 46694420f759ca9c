"""The measured values of a table, read from the folders of its finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import nan
from statistics import mean

from device_runtime.simulation.compare.figures import FinishedRun, SeedSpread, read_run, spread
from device_runtime.simulation.compare.run_folder import INFO, RunName
from device_runtime.simulation.errors import SimulationError

from .claims import ClaimVerdict, verdicts
from .measures import MEASURES, MeasuredRun
from .runs import Cell, WantedTable, plans
from .table import Table

ALIKE = 0.1


@dataclass(frozen=True)
class TableOutcome:
    """The results of a table: `values` by row and column, seed by seed.

    `stragglers`: by column, the share of asks that went to stragglers. `date`: of the newest run, UTC.
    `notes`: how the data differs from the paper's. `failed`: runs that failed, and why.
    """

    wanted: WantedTable
    values: Mapping[tuple[str, str], tuple[float, ...]]
    stragglers: Mapping[str, float]
    versions: Mapping[str, str]
    date: str = ""
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[ClaimVerdict, ...]:
        """The verdict on every claim; none at scale smoke, which only shows that the table can be run."""
        if self.wanted.scale == "smoke":
            return ()
        return verdicts(self.wanted.table, self.wanted.scale, self.values)

    @property
    def table(self) -> Table:
        return self.wanted.table

    def spread(self, row: str, column: str) -> SeedSpread:
        return spread(self.values.get((row, column), ()))


def read(wanted: WantedTable, cells: Sequence[Cell]) -> TableOutcome:
    """Reads every finished run; the outcome has no notes. Raises SimulationError for damaged files."""
    ran = _ran(cells)
    values = {
        (cell.row.name, cell.column.id): tuple(
            _value(wanted.table, cell, seed, cells, ran) for seed in range(wanted.seeds)
        )
        for cell in cells
    }
    return TableOutcome(
        wanted=wanted,
        values=values,
        stragglers={column.id: _stragglers(column.id, cells, ran) for column in wanted.table.columns},
        versions=max((run.info.versions for run in ran.values()), key=len, default={}),
        date=_date(cells),
    )


Runs = Mapping[tuple[str, RunName], FinishedRun]
"""Finished runs by the folder of their comparison and their name."""


def _ran(cells: Sequence[Cell]) -> Runs:
    found = {}
    for plan in plans(cells):
        missing = set(plan.missing())
        for name in plan.names:
            if name not in missing:
                found[str(plan.folder), name] = read_run(plan.of(name), name, shown=0)
    return found


def _of(cell: Cell, seed: int, ran: Runs) -> FinishedRun | None:
    return ran.get((str(cell.plan.folder), cell.name(seed)))


def _value(table: Table, cell: Cell, seed: int, cells: Sequence[Cell], ran: Runs) -> float:
    mine = _of(cell, seed, ran)
    if mine is None:
        return nan
    beside = {
        other.row.name: run
        for other in cells
        if other.column.id == cell.column.id and (run := _of(other, seed, ran)) is not None
    }
    among = MeasuredRun(mine, beside, cell.column.until, _classes(cell, mine))
    return MEASURES[table.measure_of(cell.column, cell.row)].value(among)


def _classes(cell: Cell, ran: FinishedRun) -> tuple[int, ...]:
    """The classes that the column's group holds alone. Raises SimulationError where it holds none alone."""
    group, mine = cell.column.group, cell.plan.scenario
    if not group:
        return ()
    held = mine.data.held_alone(tuple(mine.fleet.groups), len(ran.info.labels))
    if group not in held:
        raise SimulationError(f"{cell.column.id}: group {group} holds no class alone")
    return held[group]


def _stragglers(column: str, cells: Sequence[Cell], ran: Runs) -> float:
    """The share of a column's asks that went to stragglers.

    nan where its rows differ in this by ALIKE or more. Rounds without a deadline have no stragglers and are
    left out.
    """
    folders = {str(cell.plan.folder) for cell in cells if cell.column.id == column}
    shares = [_share(run) for (folder, _), run in ran.items() if folder in folders]
    known = [share for share in shares if share]
    return mean(known) if known and max(known) - min(known) < ALIKE else nan


def _share(run: FinishedRun) -> float:
    asked = sum(line.asked for line in run.rounds)
    return sum(line.stragglers for line in run.rounds) / asked if asked else 0.0


def _date(cells: Sequence[Cell]) -> str:
    """The date on which the newest run was finished; empty where there is none."""
    times = [
        (plan.of(name) / INFO).stat().st_mtime
        for plan in plans(cells)
        for name in plan.names
        if (plan.of(name) / INFO).exists()
    ]
    return datetime.fromtimestamp(max(times), timezone.utc).date().isoformat() if times else ""
