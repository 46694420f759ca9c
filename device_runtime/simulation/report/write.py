"""Writes the report of a comparison: a page, a CSV, a JSON; compares finished ones side by side."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from importlib import resources
from math import isnan
from pathlib import Path
from typing import Protocol

import msgspec

from device_runtime.simulation.compare.equal import EqualTerms, differences_by_seed, equal
from device_runtime.simulation.compare.figures import (
    ComparisonTerms,
    FinishedRun,
    Summary,
    asked_devices,
    duration,
    figures,
    read_all,
    round_columns,
    summarise,
    terms,
)
from device_runtime.simulation.compare.plan import ComparisonPlan, plan_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.history.metrics import NOBODY, StragglerCounts
from device_runtime.simulation.history.records import SimulatedRound
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import CENTRALISED, of_policy

from . import accuracy, canvas, participation, table
from .canvas import ComparedRuns, Drawing, read_comparison
from .devices import cell, device_table, update_table

PICTURES: Mapping[str, Callable[[ComparedRuns], Drawing | None]] = {
    "accuracy": accuracy.over_time,
    "costs": accuracy.over_costs,
    "groups": accuracy.of_groups,
    "participation": participation.who_took_part,
    "round": participation.one_round,
    "times": participation.busy_times,
    "classes": accuracy.by_class,
}
"""The drawings by name, in the order of the page; a drawing is None where there is nothing to draw."""


@dataclass(frozen=True)
class WrittenReport:
    """The page of a written report, and its figures as text and JSON."""

    compared: ComparedRuns
    page: Path

    def text(self, wide: int | None = None) -> str:
        """The tables, in parts if wider than `wide` characters, and the place of the page."""
        return f"\n{with_notes(self.compared, wide)}\n\nreport {self.page}"

    def json(self) -> str:
        """The figures in plain units, without those of single runs; null where unknown."""
        return _json({"report": str(self.page), **all_figures(self.compared)})


def _json(whole: object) -> str:
    return msgspec.json.format(msgspec.json.encode(whole)).decode()


def with_notes(compared: ComparedRuns, wide: int | None = None) -> str:
    """The tables as text, followed by what a reader of the figures must know, a line each."""
    failed = compared.plan.without
    notes = [
        *(f"{policy} failed: {why}" for policy, why in failed.items()),
        *stragglers(compared),
        *held_out(compared),
        *sitting_out(compared),
        *resting(compared),
        *refused(compared.runs),
    ]
    whole = tables(compared, wide, tuple(failed))
    return "\n".join([whole, "", *notes]) if notes else whole


def stragglers(compared: ComparedRuns) -> list[str]:
    """Who was a straggler, by group, as the first policy has it; or that nobody was.

    Where nobody was, policies for stragglers cannot differ.
    """
    policy = next((name for name in compared.policies if name != CENTRALISED), compared.policies[0])
    if not any(each.straggler_asks for run in compared.runs for each in run.tally.stragglers.values()):
        same = _equal_policies(compared)
        effect = f": {' and '.join(same)} cannot differ" if same else ""
        return [f"no device was a straggler here: all had the memory and time for a full update{effect}"]
    by_group: dict[str, StragglerCounts] = {}
    for run in compared.of(policy):
        for name, counts in run.tally.stragglers.items():
            by_group[name] = by_group[name] + counts if name in by_group else counts
    every = sum(by_group.values(), NOBODY)
    if not every.straggler_asks:
        return [f"{policy}: no device was a straggler"]
    late = sorted(by_group, key=lambda name: -by_group[name].straggler_devices / by_group[name].devices)
    phrases = [
        f"{name} {of.straggler_devices:,} of {of.devices:,}"
        for name in late
        if (of := by_group[name]).straggler_devices
    ]
    rest = [name for name in late if not by_group[name].straggler_devices]
    nobody = f"; nobody of {', '.join(rest)}" if rest else ""
    return [
        f"stragglers ({policy}): {every.straggler_devices / every.devices:.0%} of the devices, "
        f"{every.straggler_asks / every.asks:.0%} of the asks: {', '.join(phrases)}{nobody}"
    ]


def held_out(compared: ComparedRuns) -> list[str]:
    """One line with the metric of each policy's final model on devices that are held out; or none."""
    finals = {
        policy: [run.rounds[-1].held_out_eval_acc for run in compared.of(policy)]
        for policy in compared.policies
    }
    phrases = [
        f"{policy} {sum(values) / len(values):.1%}"
        for policy, values in finals.items()
        if not isnan(sum(values))
    ]
    return [f"final accuracy on the devices that are held out: {', '.join(phrases)}"] if phrases else []


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


def resting(compared: ComparedRuns) -> list[str]:
    """A line for each policy in which devices rested, with how often."""
    lines = []
    for policy in compared.policies:
        tallies = [run.tally for run in compared.of(policy)]
        rested = sum(n for tally in tallies for (_, fate), n in tally.outcomes.items() if fate == "rested")
        if rested:
            asks = f"{rested:,} of {sum(tally.asks for tally in tallies):,} asks"
            lines.append(f"{policy}: stragglers rested in {asks}, as nothing of their classes was wanted")
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
    blocks = [table.main_table(of.summary, of.terms, failed).text(wide)]
    blocks += [f"{each.title}\n\n{each.text(wide)}" for each in table.equal_tables(of.equal, of.terms)]
    return "\n\n".join(filter(None, (*blocks, table.lacking(of.equal))))


def all_figures(of: HasFigures) -> dict[str, object]:
    """The figures of a comparison in plain units, to be encoded; nan where unknown."""
    policies = {
        policy: {name: asdict(each) for name, each in spreads.items()}
        for policy, spreads in of.summary.items()
    }
    return {"terms": asdict(of.terms), "policies": policies, "equal": of.equal}


def everything(compared: ComparedRuns) -> dict[str, object]:
    """`all_figures`, and the figures and rounds of each run, as summary.json has them."""
    runs = [
        {
            "policy": run.name.policy,
            "seed": run.name.seed,
            "figures": figures(run, compared.terms),
            "rounds": {name: values.tolist() for name, values in round_columns(run.rounds).items()},
        }
        for run in compared.runs
    ]
    return {**all_figures(compared), "failed": compared.plan.without, "runs": runs}


def write(plan: ComparisonPlan, folder: Path | None = None, rows: bool = False) -> WrittenReport:
    """Writes report.html, rounds.csv and summary.json into `folder`, or the plan's.

    rows: also devices.csv and updates.csv, with a row for each device and update. Raises SimulationError when
    a run is not finished.
    """
    compared, folder = read_comparison(plan), folder or plan.folder
    folder.mkdir(parents=True, exist_ok=True)
    with canvas.look():
        drawings = [drawing for draw in PICTURES.values() if (drawing := draw(compared)) is not None]
        text = page(compared, drawings)
    report = WrittenReport(compared, folder / "report.html")
    report.page.write_text(text, "utf-8")
    (folder / "summary.json").write_text(f"{_json(everything(compared))}\n", "utf-8")
    with (folder / "rounds.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(SimulatedRound)]
        lines.writerow(("policy", "seed", *names))
        for run in compared.runs:
            for line in run.rounds:
                cells = [cell(getattr(line, name)) for name in names]
                lines.writerow((run.name.policy, run.name.seed, *cells))
    if rows:
        device_table(plan, plan.names).to_csv(folder / "devices.csv")
        update_table(plan, plan.names).to_csv(folder / "updates.csv")
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
        return _json({**all_figures(self), "unfinished": self.unfinished})


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


def page(compared: ComparedRuns, pictures: Sequence[Drawing]) -> str:
    """The whole HTML file."""
    spec = compared.plan.scenario
    colours = {policy: _colour(policy) for policy in compared.policies}
    tables = [table.main_table(compared.summary, compared.terms, tuple(compared.plan.without))]
    tables += table.equal_tables(compared.equal, compared.terms)
    rendered = [f'<div class="scroll">{each.html(colours)}</div>' for each in tables]
    titles = [each.title[:1].upper() + each.title[1:] for each in tables]
    below = "\n".join(f"<h3>{escape(t)}</h3>\n{s}" for t, s in zip(titles[1:], rendered[1:], strict=True))
    seeds = compared.plan.comparison.seeds
    note = f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else "One seed: no spread is known."
    return _asset("page.html").format(
        title=escape(f"{spec.name}: {', '.join(compared.policies)}"),
        css=_asset("page.css"),
        lead=_lead(compared),
        compared=rendered[0],
        note=f"{note} Point at a row to read what it is. The best of a row is marked.",
        figures="\n".join(_figure(picture) for picture in pictures),
        equal=f'{below}\n<p class="muted">{escape(table.lacking(compared.equal))}</p>',
        scenario=escape(msgspec.json.format(spec.json()).decode()),
        origin=_origin(compared),
    )


def _colour(policy: str) -> str:
    """The colour of a policy: a variable of the style sheet, if a dark theme changes it."""
    colour = canvas.stroke(policy).colour
    return f"var(--{canvas.THEMED[colour]})" if colour in canvas.THEMED else colour


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _lead(compared: ComparedRuns) -> str:
    """The lead: what was run and its result, in two sentences; then the meaning of each policy."""
    spec, task = compared.plan.scenario, compared.plan.scenario.task
    text = (
        f"{spec.devices:,} devices of fleet {spec.fleet.name} learn {spec.data.source} "
        f"({spec.data.partition} partition) in {task.rounds} rounds of at most "
        f"{duration(task.round_deadline_s)}, {asked_devices(task)}{spec.trained_in}."
    )
    accuracies = {
        policy: figures["acc_at_equal_time"].mean
        for policy, figures in compared.summary.items()
        if not isnan(figures["acc_at_equal_time"].mean)
    }
    if len(accuracies) > 1:
        best, nearest = sorted(accuracies, key=lambda p: accuracies[p], reverse=True)[:2]
        text += (
            f" After {duration(compared.terms.at_s)} of virtual time {best} has {accuracies[best]:.1%}, "
            f"{100 * (accuracies[best] - accuracies[nearest]):.1f} points more than {nearest}"
            f"{', the nearest of the others' if len(accuracies) > 2 else ''} "
            f"({_interval(compared, best, nearest)})."
        )
    texts = {policy: scenario.describe(policy) for policy in compared.policies}
    texts |= {policy: f"failed: {why}" for policy, why in compared.plan.without.items()}
    meanings = "".join(f"<dt>{escape(p)}</dt><dd>{escape(what)}</dd>" for p, what in texts.items())
    return f'<p class="lead">{escape(text)}</p>\n<dl>{meanings}</dl>'


def _interval(compared: ComparedRuns, policy: str, other: str) -> str:
    """The 95% interval of the mean difference in accuracy at equal time, by seed."""
    at = compared.terms.at_s
    own, others = ({run.name.seed: run.curve.when(at) for run in compared.of(p)} for p in (policy, other))
    ends = differences_by_seed(own, others).interval
    if ends is None:
        return "one seed: no interval"
    return f"95% interval by seed: {100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}"


def _figure(picture: Drawing) -> str:
    drawing = canvas.svg(picture).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1
    )
    return (
        f'<h2 id="{picture.name}">{escape(picture.title)}</h2>\n<figure><div class="scroll">{drawing}</div>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _origin(compared: ComparedRuns) -> str:
    infos = [run.info for run in compared.runs]
    executors = ", ".join(sorted({info.executor for info in infos}))
    versions = ", ".join(f"{name} {version}" for name, version in infos[0].versions.items())
    facts = {
        "seeds": ", ".join(str(seed) for seed in range(compared.plan.comparison.seeds)),
        "runs": f"{len(infos)}, of {duration(sum(info.seconds for info in infos))} of real time in all",
        "trained by": executors,
        "versions": versions,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return f"<pre><code>{escape(compared.plan.comparison.command)}</code></pre>\n<dl>{rows}</dl>"
