"""Plans the runs of a table: cells with equal settings share a folder, and equal cells share a run.

A run is finished if it is kept in the repository or finished in its folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan, bundle_sha256
from device_runtime.simulation.compare.run_folder import RunName, fingerprint, finished
from device_runtime.simulation.compare.running import RunJob
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy

from . import kept, resolving
from .kept import StampedRun
from .places import Form
from .resolving import CellSetting, Resources
from .table import Column, Scale, SystemRow, Table

COMMAND = "python -m benchmarks.papers"


@dataclass(frozen=True)
class WantedTable:
    """The wanted table, with its scale, number of seeds, and folder of runs.

    `store` is the folder of kept runs; None: none are read. `columns` and `rows` name what is run; () is all.
    With `only_kept` nothing is run. Raises ScenarioError for names that the table does not have.
    """

    table: Table
    scale: Scale
    seeds: int
    folder: Path
    store: Path | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    only_kept: bool = False

    def __post_init__(self) -> None:
        columns = [column.id for column in self.table.columns_at(self.scale)]
        rows = [row.name for row in self.table.rows]
        for what, asks, names in (("column", self.columns, columns), ("row", self.rows, rows)):
            for name in asks:
                if name not in names:
                    has = f"at scale {self.scale} it has {', '.join(names)}"
                    raise ScenarioError(f"{self.table.id} has no {what} {name!r}; {has}")

    @property
    def kept_folder(self) -> Path | None:
        """The folder of kept runs, which all tables share; None at scale smoke, whose runs are not kept."""
        return None if self.scale == "smoke" else self.store

    def has(self, column: Column, row: SystemRow) -> bool:
        """Whether this cell is to be run."""
        return (
            not self.only_kept
            and (not self.columns or column.id in self.columns)
            and (not self.rows or row.name in self.rows)
        )


@dataclass(frozen=True)
class Cell:
    """A row in a column, with the setting of its run and the data's form; `policy` is the row's system there.

    Cells with equal runs have the policy and the plan of the first of them. `plan` has the comparison that
    is to have its runs; None if it is not wanted, or has every run in the folder `store`.
    """

    row: SystemRow
    column: Column
    setting: CellSetting
    form: Form | None
    policy: str
    store: Path | None
    plan: ComparisonPlan | None = None

    def name(self, seed: int) -> RunName:
        return RunName(self.policy, seed)

    @cached_property
    def run(self) -> str:
        """A hash of the setting under the policy, without the seed."""
        return self.setting.key(self.policy)

    def key(self, seed: int) -> str:
        """The key of the run, the same on every machine."""
        return hashlib.sha256(f"{self.run} {seed}".encode()).hexdigest()

    def is_kept(self, seed: int) -> bool:
        return self.store is not None and kept.place(self.store, self.name(seed), self.key(seed)).exists()

    def is_finished(self, seed: int) -> bool:
        """Whether the plan's folder has the finished run."""
        if self.plan is None:
            return False
        own = of_policy(self.plan.scenario, self.policy)
        return finished(self.plan.of(self.name(seed)), fingerprint(own, seed))

    def find(self, seed: int) -> StampedRun | None:
        """The run, kept or in its folder; None if there is none. Raises SimulationError for damaged files."""
        if self.store is not None:
            key = self.key(seed)
            run = kept.read(kept.place(self.store, self.name(seed), key), self.name(seed), key)
            if run is not None:
                return run
        if self.plan is None or not self.is_finished(seed):
            return None
        return kept.of_folder(self.plan.of(self.name(seed)), self.name(seed))

    def keep(self, seed: int) -> None:
        """Keeps the run that is finished in its folder. Raises SimulationError, OSError."""
        if self.store is None or self.plan is None:
            return
        path, key = kept.place(self.store, self.name(seed), self.key(seed)), self.key(seed)
        kept.write(path, kept.of_folder(self.plan.of(self.name(seed)), self.name(seed)), key)


@dataclass(frozen=True)
class TableJob(RunJob):
    """A run to be done, and the first cell that needs it."""

    cell: Cell


def cells(request: WantedTable, where: Resources) -> tuple[Cell, ...]:
    """The cells of every row in every column that has it.

    Bundles and data are made only for cells that are wanted and lack a run. Raises ScenarioError for an
    unknown system, and the errors of `resolving.scenario`.
    """
    table, scale = request.table, request.scale
    every: list[Cell] = []
    for column in table.columns_at(scale):
        forms = where.folder.forms(where.shared.entry(column.data, scale), scale)
        options = [
            [_cell(request, (column, row), form, where) for row in table.rows_at(scale, column)]
            for form in forms
        ]
        has_some = (cells for cells in options if _any_kept(cells, request.seeds))
        every += next(has_some, options[0])
    first: dict[str, Cell] = {}
    for cell in every:
        first.setdefault(cell.run, cell)
    lacking = {
        cell.run
        for cell in every
        if request.has(cell.column, cell.row)
        and not all(first[cell.run].is_kept(seed) for seed in range(request.seeds))
    }
    columns: dict[bytes, str] = {}  # the first column of each setting: a folder keeps its name
    for cell in every:
        columns.setdefault(cell.setting.scenario.json(), cell.column.id)
    planned = _planned(request, [cell for run, cell in first.items() if run in lacking], columns, where)
    return tuple(
        replace(
            cell, policy=first[cell.run].policy, setting=first[cell.run].setting, plan=planned.get(cell.run)
        )
        for cell in every
    )


def _cell(request: WantedTable, pair: tuple[Column, SystemRow], form: Form | None, where: Resources) -> Cell:
    column, row = pair
    setting = resolving.setting(request.table, request.scale, pair, where.shared, form)
    return Cell(row, column, setting, form, row.system + column.modifier, request.kept_folder)


def _any_kept(every: Iterable[Cell], seeds: int) -> bool:
    return any(cell.is_kept(seed) for cell in every for seed in range(seeds))


def _planned(
    request: WantedTable, owners: Sequence[Cell], columns: Mapping[bytes, str], where: Resources
) -> Mapping[str, ComparisonPlan]:
    """The comparisons of these cells, by their runs; cells with equal scenarios are in one.

    `columns`: by setting, the column whose name its folder has.
    """
    scenarios = {
        cell.run: resolving.scenario(request.table, request.scale, (cell.column, cell.row), where)
        for cell in owners
    }
    settings: dict[bytes, list[Cell]] = {}
    for cell in owners:
        settings.setdefault(scenarios[cell.run].json(), []).append(cell)
    return {
        cell.run: plan
        for alike in settings.values()
        for plan in [
            _plan(request, scenarios[alike[0].run], alike, columns[alike[0].setting.scenario.json()])
        ]
        for cell in alike
    }


def _plan(request: WantedTable, scenario: Scenario, alike: Sequence[Cell], column: str) -> ComparisonPlan:
    comparison = Comparison(
        policies=tuple(dict.fromkeys(cell.policy for cell in alike)),
        seeds=request.seeds,
        command=f"{COMMAND} {request.table.id} --scale {request.scale} --seeds {request.seeds}",
        bundle=bundle_sha256(scenario.task.bundle),
    )
    folder = request.folder / f"{column}-{fingerprint(scenario, 0)[:6]}"
    return ComparisonPlan(scenario, comparison, folder)


def plans(every: Iterable[Cell]) -> tuple[ComparisonPlan, ...]:
    """The comparisons of the cells that have one, each once."""
    return tuple({cell.plan.folder: cell.plan for cell in every if cell.plan is not None}.values())


def total(every: Iterable[Cell], seeds: int) -> int:
    """The number of runs of these cells, each counted once."""
    return seeds * len({cell.run for cell in every})


def jobs(every: Iterable[Cell], seeds: int) -> Mapping[RunName, TableJob]:
    """The missing runs, seed by seed, by the name of the first cell that needs them."""
    first: dict[str, Cell] = {}
    for cell in every:
        first.setdefault(cell.run, cell)
    return {
        RunName(f"{cell.row.name} in {cell.column.id}", seed): TableJob(cell.plan, cell.name(seed), cell)
        for seed in range(seeds)
        for cell in first.values()
        if cell.plan is not None and not cell.is_kept(seed) and not cell.is_finished(seed)
    }
