"""Writes the report of a comparison (table, plots, page), and compares finished ones side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

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
from device_runtime.simulation.compare.plan import ComparisonPlan, plan_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios.scenario import of_policy

from . import accuracy, canvas, local_models, participation, table, time_line
from .canvas import ComparedRuns, Drawing, read_comparison
from .page import page

PICTURES: Mapping[str, Callable[[ComparedRuns], Drawing | None]] = {
    "accuracy": accuracy.over_time,
    "costs": accuracy.over_costs,
    "groups": accuracy.of_groups,
    "participation": participation.who_took_part,
    "round": time_line.one_round,
    "times": participation.busy_times,
    "classes": accuracy.by_class,
    "drift": local_models.drift,
    "similarity": local_models.similarity,
    "predictions": local_models.predictions,
}
"""The drawings by name, in the order of the page; a drawing is None where there is nothing to draw."""


@dataclass(frozen=True)
class WrittenReport:
    """The files of a written report, and its figures as text and JSON."""

    compared: ComparedRuns
    page: Path
    plots: tuple[Path, ...]

    def text(self, wide: int | None = None) -> str:
        """The tables, in parts if wider than `wide` characters, and the places of the page and plots."""
        plots = f"plots  {self.page.parent / 'plots'}/ ({len(self.plots)} PNG)"
        whole = with_notes(self.compared, wide)
        return f"\n{whole}\n\nreport {self.page}\n{plots}"

    def json(self) -> str:
        """The figures in plain units; null where unknown."""
        places = {"report": str(self.page), "plots": [str(path) for path in self.plots]}
        return msgspec.json.format(msgspec.json.encode(places | all_figures(self.compared))).decode()


def with_notes(compared: ComparedRuns, wide: int | None = None) -> str:
    """The tables as text, followed by what a reader of the figures must know, a line each."""
    failed = compared.plan.without
    notes = [
        *(f"{policy} failed: {why}" for policy, why in failed.items()),
        *without_stragglers(compared),
        *sitting_out(compared),
        *refused(compared.runs),
    ]
    whole = tables(compared, wide, tuple(failed))
    return "\n".join([whole, "", *notes]) if notes else whole


def without_stragglers(compared: ComparedRuns) -> list[str]:
    """One line where no device was a straggler, so that policies for stragglers cannot differ."""
    if any(run.tally.stragglers for run in compared.runs):
        return []
    same = _equal_policies(compared)
    effect = f": {' and '.join(same)} cannot differ" if same else ""
    return [f"no device was a straggler here: all had the memory and time for a full update{effect}"]


def _equal_policies(compared: ComparedRuns) -> tuple[str, ...]:
    """The first policies whose rounds are all the same; empty where all policies differ."""
    by_rounds: dict[str, list[str]] = {}
    for policy in compared.policies:
        rounds = repr([(run.name.seed, run.rounds) for run in compared.of(policy)])
        by_rounds.setdefault(rounds, []).append(policy)
    return tuple(next((policies for policies in by_rounds.values() if len(policies) > 1), ()))


def sitting_out(compared: ComparedRuns) -> list[str]:
    """A line for each policy of several kinds and each group of devices that sat out whenever asked."""
    lines = []
    for policy in compared.policies:
        if len(of_policy(compared.plan.scenario, policy).task.kinds) < 2:
            continue  # a policy of one kind drops stragglers by design
        counts = [run.tally for run in compared.of(policy)]
        for group in sorted({group for count in counts for group in count.groups}):
            fates = Counter[str]()
            for count in counts:
                fates.update({fate: n for (of, fate), n in count.outcomes.items() if of == group})
            if set(fates) == {"sat out"}:
                why = next(count.sat_out[group] for count in counts if group in count.sat_out)
                asks = f"{fates.total():,} of {fates.total():,} asks"
                lines.append(f"{policy}: group {group} sat out {asks}, at first because: {why}")
    return lines


def refused(runs: Sequence[FinishedRun]) -> list[str]:
    """One line about the updates that were refused and the most frequent reason; no line if none were."""
    reasons: Counter[str] = Counter()
    for run in runs:
        reasons.update(run.tally.refused)
    policies = ", ".join(dict.fromkeys(run.name.policy for run in runs if run.tally.refused))
    most = reasons.most_common(1)
    return [f"{reasons.total():,} updates were refused ({policies}), most often: {why}" for why, _ in most]


class HasFigures(Protocol):
    """Compared runs: the terms, the figures by policy, and accuracies at equal terms."""

    @property
    def terms(self) -> ComparisonTerms: ...

    @property
    def summary(self) -> Mapping[str, Summary]: ...

    @property
    def equal(self) -> EqualTerms: ...


def tables(of: HasFigures, wide: int | None = None, failed: Sequence[str] = ()) -> str:
    """The tables of a comparison as text, in parts if wider than `wide` characters.

    failed: policies without figures.
    """
    whole = table.text(of.summary, of.terms, wide, failed)
    return f"{whole}\n\n{table.equal_text(of.equal, of.terms, wide)}"


def all_figures(of: HasFigures) -> dict[str, object]:
    """The figures of a comparison in plain units, to be encoded; nan where unknown."""
    policies = {
        policy: {name: asdict(each) for name, each in figures.items()}
        for policy, figures in of.summary.items()
    }
    return {"terms": asdict(of.terms), "policies": policies, "equal": of.equal}


def write(plan: ComparisonPlan, folder: Path | None = None) -> WrittenReport:
    """Writes report.html, summary.csv, summary.json and plots/*.png into `folder`, or the plan's.

    Raises SimulationError when a run is not finished.
    """
    runs, folder = read_comparison(plan), folder or plan.folder
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    if folder == plan.folder:  # pictures in other folders may be somebody's own
        for old in plots.glob("*.png"):
            old.unlink()
    with canvas.look():
        pictures = [picture for draw in PICTURES.values() if (picture := draw(runs)) is not None]
        text = page(runs, pictures)
        for picture in pictures:
            canvas.png(picture, plots / f"{picture.name}.png")
    paths = tuple(plots / f"{picture.name}.png" for picture in pictures)
    report = WrittenReport(runs, folder / "report.html", paths)
    report.page.write_text(text, "utf-8")
    (folder / "summary.csv").write_text(table.as_csv(runs.summary) + table.equal_csv(runs.equal), "utf-8")
    (folder / "summary.json").write_text(report.json() + "\n", "utf-8")
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
        """The tables, in parts if wider than `wide` characters, and the policies that are not finished."""
        return "\n".join([tables(self, wide), *(f"not finished: {name}" for name in self.unfinished)])

    def json(self) -> str:
        """The figures in plain units; null where unknown."""
        whole = {**all_figures(self), "unfinished": self.unfinished}
        return msgspec.json.format(msgspec.json.encode(whole)).decode()


def side_by_side(folders: Sequence[Path]) -> SideBySide:
    """Compares the finished policies of several folders on common terms: the earliest end of all runs, etc.

    Raises ScenarioError for a folder that is not of a simulation, and where nothing is finished.
    """
    whole = {_named(folder, folders): plan_in(folder) for folder in folders}
    ran = {name: _ran(name, plan) for name, plan in whole.items() if plan.comparison.policies}
    every = [run for runs in ran.values() for run in runs]
    if not every:
        raise ScenarioError(f"nothing is finished in {', '.join(str(folder) for folder in folders)}")
    at = terms(every, 0, None)
    summary: dict[str, Summary] = {}
    beside = EqualTerms()
    for name, runs in ran.items():
        summary |= summarise(runs, replace(at, devices=whole[name].scenario.devices))
        beside += equal(runs, at, whole[name].scenario)
    unfinished = tuple(f"{name}{policy}" for name, plan in whole.items() for policy in plan.without)
    return SideBySide(at, summary, beside, unfinished)


def _named(folder: Path, among: Sequence[Path]) -> str:
    """The prefix for the policies of a folder."""
    if len(among) == 1:
        return ""
    alike = [other for other in among if other.resolve().name == folder.resolve().name]
    return f"{folder.resolve().name if len(alike) == 1 else folder}/"


def _ran(name: str, plan: ComparisonPlan) -> list[FinishedRun]:
    return [replace(run, name=RunName(f"{name}{run.name.policy}", run.name.seed)) for run in read_all(plan)]
