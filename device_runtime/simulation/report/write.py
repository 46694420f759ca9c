"""Writes the report of a comparison (table, plots, page), and compares finished ones side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from device_runtime.simulation.compare.equal import EqualTerms, equal
from device_runtime.simulation.compare.figures import (
    ComparisonTerms,
    FinishedRun,
    Summary,
    read_all,
    summarise,
    terms,
)
from device_runtime.simulation.compare.plan import ComparisonPlan, comparison_in, scenario_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import ScenarioError

from . import accuracy, canvas, local_models, participation, table, time_line
from .canvas import ComparedRuns, Drawing, read_comparison
from .page import page

PICTURES: tuple[Callable[[ComparedRuns], Drawing | None], ...] = (
    accuracy.over_time,
    accuracy.over_costs,
    accuracy.of_groups,
    participation.who_took_part,
    time_line.one_round,
    participation.busy_times,
    accuracy.by_class,
    local_models.drift,
    local_models.similarity,
    local_models.predictions,
)
"""The drawings, in the order of the page."""


@dataclass(frozen=True)
class WrittenReport:
    """The files of a written report, and its figures as text and JSON."""

    compared: ComparedRuns
    page: Path
    plots: tuple[Path, ...]

    def text(self, wide: int | None = None) -> str:
        """The tables, in parts if wider than `wide` characters, and the places of the page and plots."""
        mine = self.compared
        return (
            f"\n{table.text(mine.summary, mine.terms, wide)}\n\n"
            f"{table.equal_text(mine.equal, mine.terms, wide)}\n\n"
            f"report {self.page}\nplots  {self.page.parent / 'plots'}/ ({len(self.plots)} PNG)"
        )

    def json(self) -> str:
        """The figures in plain units; null where unknown."""
        mine = self.compared
        whole = {
            "report": str(self.page),
            "plots": [str(path) for path in self.plots],
            "terms": asdict(mine.terms),
            "policies": {
                policy: {name: asdict(each) for name, each in figures.items()}
                for policy, figures in mine.summary.items()
            },
            "equal": mine.equal,
        }
        return msgspec.json.format(msgspec.json.encode(whole)).decode()


def write(plan: ComparisonPlan) -> WrittenReport:
    """Writes report.html, summary.csv, summary.json and plots/*.png into the plan's folder.

    Raises SimulationError when a run is not finished.
    """
    mine = read_comparison(plan)
    plots = plan.folder / "plots"
    plots.mkdir(exist_ok=True)
    for old in plots.glob("*.png"):
        old.unlink()
    with canvas.look():
        pictures = [picture for draw in PICTURES if (picture := draw(mine)) is not None]
        text = page(mine, pictures)
        for picture in pictures:
            canvas.png(picture, plots / f"{picture.name}.png")
    paths = tuple(plots / f"{picture.name}.png" for picture in pictures)
    report = WrittenReport(mine, plan.folder / "report.html", paths)
    report.page.write_text(text, "utf-8")
    (plan.folder / "summary.csv").write_text(
        table.as_csv(mine.summary) + table.equal_csv(mine.equal), "utf-8"
    )
    (plan.folder / "summary.json").write_text(report.json() + "\n", "utf-8")
    return report


@dataclass(frozen=True)
class SideBySide:
    """Finished comparisons in one table.

    `summary` by policy, or by folder/policy for several folders; `unfinished` policies are left out of it.
    """

    terms: ComparisonTerms
    summary: dict[str, Summary]
    equal: EqualTerms
    unfinished: tuple[str, ...]

    def text(self, wide: int | None = None) -> str:
        lines = [
            table.text(self.summary, self.terms, wide),
            "",
            table.equal_text(self.equal, self.terms, wide),
        ]
        lines += [f"not finished: {name}" for name in self.unfinished]
        return "\n".join(lines)

    def json(self) -> str:
        whole = {
            "terms": asdict(self.terms),
            "policies": {
                policy: {name: asdict(each) for name, each in figures.items()}
                for policy, figures in self.summary.items()
            },
            "equal": self.equal,
            "unfinished": self.unfinished,
        }
        return msgspec.json.format(msgspec.json.encode(whole)).decode()


def side_by_side(folders: Sequence[Path]) -> SideBySide:
    """Compares the finished policies of several folders on common terms: the earliest end of all runs, etc.

    Raises ScenarioError for a folder that is not of a simulation, and where nothing is finished.
    """
    plans = {_named(folder, folders): _plan(folder) for folder in folders}
    whole = {name: plan.finished("it is not finished") for name, plan in plans.items()}
    ran = {name: _ran(name, plan) for name, plan in whole.items() if plan.comparison.policies}
    every = [run for runs in ran.values() for run in runs]
    if not every:
        raise ScenarioError(f"nothing is finished in {', '.join(str(folder) for folder in folders)}")
    at = terms(every, 0, None)
    summary: dict[str, Summary] = {}
    beside = EqualTerms()
    for name, runs in ran.items():
        summary |= summarise(runs, replace(at, devices=plans[name].scenario.devices))
        beside += equal(runs, at, plans[name].scenario)
    unfinished = tuple(f"{name}{policy}" for name, plan in whole.items() for policy in plan.without)
    return SideBySide(at, summary, beside, unfinished)


def _named(folder: Path, among: Sequence[Path]) -> str:
    """The prefix for the policies of a folder."""
    if len(among) == 1:
        return ""
    alike = [other for other in among if other.resolve().name == folder.resolve().name]
    return f"{folder.resolve().name if len(alike) == 1 else folder}/"


def _plan(folder: Path) -> ComparisonPlan:
    mine, comparison = scenario_in(folder), comparison_in(folder)
    if mine is None or comparison is None:
        raise ScenarioError(f"{folder} is not the folder of a simulation")
    return ComparisonPlan(mine, comparison, folder)


def _ran(name: str, plan: ComparisonPlan) -> list[FinishedRun]:
    return [replace(run, name=RunName(f"{name}{run.name.policy}", run.name.seed)) for run in read_all(plan)]
