"""Plans the runs of a table: cells with equal settings share a folder, and equal cells share a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_runtime.simulation.compare.performing import of_policy
from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan, bundle_sha256
from device_runtime.simulation.compare.run_folder import RunName, fingerprint
from device_runtime.simulation.compare.running import RunJob
from device_runtime.simulation.scenario import Scenario

from .table import Column, Scale, SystemRow, Table

COMMAND = "python -m benchmarks.papers"


@dataclass(frozen=True)
class Cell:
    """A row in a column, and the comparison that has its runs; `policy` is the row's system there."""

    row: SystemRow
    column: Column
    plan: ComparisonPlan
    policy: str

    def name(self, seed: int) -> RunName:
        return RunName(self.policy, seed)


@dataclass(frozen=True)
class WantedTable:
    """The wanted table, with its scale, number of seeds, and folder."""

    table: Table
    scale: Scale
    seeds: int
    folder: Path


def cells(wanted: WantedTable, scenario: Callable[[tuple[Column, SystemRow]], Scenario]) -> tuple[Cell, ...]:
    """The cells of every row in every column that has it; `scenario` makes their scenarios.

    Raises ScenarioError for an unknown system, and the errors of `scenario`.
    """
    table, scale = wanted.table, wanted.scale
    pairs = [(column, row) for column in table.columns_at(scale) for row in table.rows_at(scale, column)]
    settings: dict[bytes, tuple[Scenario, str, dict[str, None]]] = {}
    owners: dict[str, tuple[bytes, str]] = {}
    owned: list[tuple[bytes, str]] = []
    for column, row in pairs:
        mine = scenario((column, row))
        here = mine.json(), row.system + column.modifier
        run = fingerprint(of_policy(mine, here[1]), 0)
        owned.append(owners.setdefault(run, here))
        if owned[-1] == here:
            *_, systems = settings.setdefault(here[0], (mine, column.id, {}))
            systems[here[1]] = None
    plans = {key: _plan(wanted, *setting) for key, setting in settings.items()}
    return tuple(
        Cell(row, column, plans[key], policy)
        for (column, row), (key, policy) in zip(pairs, owned, strict=True)
    )


def _plan(wanted: WantedTable, mine: Scenario, column: str, systems: Iterable[str]) -> ComparisonPlan:
    comparison = Comparison(
        policies=tuple(systems),
        seeds=wanted.seeds,
        command=f"{COMMAND} {wanted.table.id} --scale {wanted.scale} --seeds {wanted.seeds}",
        bundle=bundle_sha256(mine.task.bundle),
    )
    return ComparisonPlan(mine, comparison, wanted.folder / f"{column}-{fingerprint(mine, 0)[:6]}")


def plans(every: Iterable[Cell]) -> tuple[ComparisonPlan, ...]:
    """The comparisons of all cells, each once."""
    return tuple({cell.plan.folder: cell.plan for cell in every}.values())


def jobs(every: Iterable[Cell]) -> Mapping[RunName, RunJob]:
    """The missing runs, seed by seed, by the name of the first cell that needs them."""
    missing = {plan.folder: frozenset(plan.missing()) for plan in plans(every)}
    found: dict[RunName, RunJob] = {}
    seen: set[tuple[Path, RunName]] = set()
    by_seed = sorted(
        ((seed, number, cell) for number, cell in enumerate(every) for seed in range(_seeds(cell))),
        key=lambda each: each[:2],
    )
    for seed, _, cell in by_seed:
        job = RunJob(cell.plan, cell.name(seed))
        if cell.name(seed) in missing[cell.plan.folder] and (cell.plan.folder, job.name) not in seen:
            seen.add((cell.plan.folder, job.name))
            found[RunName(f"{cell.row.name} in {cell.column.id}", seed)] = job
    return found


def _seeds(cell: Cell) -> int:
    return cell.plan.comparison.seeds
