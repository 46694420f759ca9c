"""The measured values of a table, read from kept runs and from run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import mean

from device_runtime.simulation.compare.figures import FinishedRun, SeedSpread, spread
from device_runtime.simulation.errors import SimulationError

from .claims import ClaimVerdict, verdicts
from .kept import StampedRun
from .measures import MEASURES, MeasuredRun
from .runs import Cell, WantedTable
from .table import Table

ALIKE = 0.1


@dataclass(frozen=True)
class TableOutcome:
    """The results of a table: `values` by row and column, seed by seed.

    `stragglers`: by column, the share of asks that went to stragglers. `date`: of the newest run, UTC.
    `commits`: of the code of all runs; "" stands for unknown ones. `chance`: by column, the accuracy of
    guessing, where the loss is of classes. `runs`: as `values`, None where one is missing.
    `notes`: how the data differs from the paper's. `failed`: runs that failed, and why.
    """

    request: WantedTable
    values: Mapping[tuple[str, str], tuple[float, ...]]
    stragglers: Mapping[str, float]
    versions: Mapping[str, str]
    date: str = ""
    commits: tuple[str, ...] = ()
    chance: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[tuple[str, str], tuple[FinishedRun | None, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[ClaimVerdict, ...]:
        """The verdict on every claim; none at scale smoke, which only shows that the table can be run."""
        if self.request.scale == "smoke":
            return ()
        return verdicts(self.request.table, self.request.scale, self.values, self.chance)

    @property
    def table(self) -> Table:
        return self.request.table

    def spread(self, row: str, column: str) -> SeedSpread:
        return spread(self.values.get((row, column), ()))


def read(request: WantedTable, cells: Sequence[Cell]) -> TableOutcome:
    """Reads every finished run; the outcome has no notes. Raises SimulationError for damaged files."""
    ran = _ran(cells, request.seeds)
    values = {
        (cell.row.name, cell.column.id): tuple(
            _value(request.table, cell, seed, cells, ran) for seed in range(request.seeds)
        )
        for cell in cells
    }
    return TableOutcome(
        request=request,
        values=values,
        stragglers={
            column.id: _stragglers(column.id, cells, ran, request.seeds) for column in request.table.columns
        },
        versions=max((each.run.info.versions for each in ran.values()), key=len, default={}),
        date=max((each.date for each in ran.values()), default=""),
        commits=tuple(sorted({commit for each in ran.values() for commit in each.commits or ("",)})),
        runs={
            (cell.row.name, cell.column.id): tuple(_of(cell, seed, ran) for seed in range(request.seeds))
            for cell in cells
        },
        chance=_chance(cells, ran, request.seeds),
    )


Runs = Mapping[str, StampedRun]
"""Finished runs by their keys."""


def _ran(cells: Sequence[Cell], seeds: int) -> Runs:
    runs: dict[str, StampedRun] = {}
    for cell in cells:
        for seed in range(seeds):
            if cell.key(seed) not in runs and (run := cell.find(seed)) is not None:
                runs[cell.key(seed)] = run
    return runs


def _of(cell: Cell, seed: int, ran: Runs) -> FinishedRun | None:
    run = ran.get(cell.key(seed))
    return run.run if run else None


def _value(table: Table, cell: Cell, seed: int, cells: Sequence[Cell], ran: Runs) -> float:
    own = _of(cell, seed, ran)
    if own is None:
        return nan
    beside = {
        other.row.name: run
        for other in cells
        if other.column.id == cell.column.id and (run := _of(other, seed, ran)) is not None
    }
    among = MeasuredRun(own, beside, cell.column.until, _classes(cell, own))
    return MEASURES[table.measure_of(cell.column, cell.row)].value(among)


def _classes(cell: Cell, ran: FinishedRun) -> tuple[int, ...]:
    """The classes that the column's group holds alone. Raises SimulationError where it holds none alone."""
    group, scenario = cell.column.group, cell.setting.scenario
    if not group:
        return ()
    labels = scenario.data.held_alone(tuple(scenario.fleet.groups), len(ran.info.labels))
    if group not in labels:
        raise SimulationError(f"{cell.column.id}: group {group} holds no class alone")
    return labels[group]


def _chance(cells: Sequence[Cell], ran: Runs, seeds: int) -> Mapping[str, float]:
    runs = ((cell, _of(cell, seed, ran)) for cell in cells for seed in range(seeds))
    return {
        cell.column.id: 1 / len(run.info.labels)
        for cell, run in runs
        if run is not None and run.info.labels and not cell.column.group
    }


def _stragglers(column: str, cells: Sequence[Cell], ran: Runs, seeds: int) -> float:
    """The share of a column's asks that went to stragglers.

    nan where its rows differ in this by ALIKE or more. Left out are rows without stragglers, as without a
    deadline, and those whose network nobody can train fully, as with prompts alone.
    """
    column_cells = [cell for cell in cells if cell.column.id == column]
    runs = (_of(cell, seed, ran) for cell in column_cells for seed in range(seeds))
    shares = [_share(run) for run in runs if run is not None]
    partial = [share for share in shares if 0 < share < 1]
    return mean(partial) if partial and max(partial) - min(partial) < ALIKE else nan


def _share(run: FinishedRun) -> float:
    total = sum(line.asked for line in run.rounds)
    return sum(line.stragglers for line in run.rounds) / total if total else 0.0
