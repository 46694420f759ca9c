"""Writes the report of a comparison: a page, a CSV, a JSON; compares finished ones side by side."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from importlib import resources
from math import isnan
from pathlib import Path

import msgspec

from device_runtime.simulation.compare.figures import (
    FinishedRun,
    asked_devices,
    duration,
    figures,
    round_columns,
)
from device_runtime.simulation.compare.plan import ComparisonPlan
from device_runtime.simulation.history.metrics import NOBODY, StragglerCounts
from device_runtime.simulation.history.records import SimulatedRound
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import CENTRALISED, of_policy

from . import accuracy, canvas, headline, participation, table
from .canvas import ComparedRuns, Drawing, read_comparison
from .devices import cell, device_table, update_table
from .headline import HasFigures

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
    """The page of a written report, its plot, if there is one, and its figures as text and JSON."""

    compared: ComparedRuns
    page: Path
    plot: Path | None = None

    def text(self, wide: int | None = None, whole: bool = False) -> str:
        """The sentence, the short table, or all tables if `whole`, and the places of plot and page.

        Tables wider than `wide` characters come in parts.
        """
        text = f"\n{with_notes(self.compared, wide, whole)}\n\n"
        plot = f"plot   {self.plot}\n" if self.plot else ""
        return f"{text}{plot}report {self.page}"

    def json(self) -> str:
        """The figures in plain units, without those of single runs; null where unknown."""
        return as_json({"report": str(self.page), **all_figures(self.compared)})


def as_json(whole: object) -> str:
    return msgspec.json.format(msgspec.json.encode(whole)).decode()


def with_notes(compared: ComparedRuns, wide: int | None = None, whole: bool = False) -> str:
    """The sentence and the short table, or all tables, and what a reader must know, a line each."""
    text = (tables if whole else short)(compared, wide, tuple(compared.plan.without))
    notes = _notes(compared)
    return "\n".join([text, *([""] if whole and notes else ()), *notes])


def _notes(compared: ComparedRuns) -> list[str]:
    """What a reader of the figures must know, a line each."""
    failed, part = compared.plan.without, compared.plan.part
    return [
        *(f"{policy} failed: {why}" for policy, why in failed.items()),
        *stragglers(compared),
        *held_out(compared),
        *sitting_out(compared),
        *resting(compared),
        *refused(compared.runs),
        *(["runs of other parts of this comparison are missing: these are of one part"] if part else ()),
    ]


def short(of: HasFigures, wide: int | None = None, failed: Sequence[str] = ()) -> str:
    """The sentence and the short table as text, in parts if wider than `wide` characters."""
    table_text = headline.short_table(of, failed).text(wide)
    return f"{headline.sentence(of)}\n\n{table_text}\n{headline.legend(of)}"


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


def tables(of: HasFigures, wide: int | None = None, failed: Sequence[str] = ()) -> str:
    """The sentence and all tables of a comparison as text, in parts if wider than `wide` characters.

    failed: policies without figures.
    """
    blocks = [headline.sentence(of), table.main_table(of.summary, of.terms, failed).text(wide)]
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
    """Writes report.html, accuracy.png, rounds.csv and summary.json into `folder`, or the plan's.

    rows: also devices.csv and updates.csv, with a row for each device and update. Raises SimulationError when
    a run is not finished.
    """
    compared, folder = read_comparison(plan), folder or plan.folder
    folder.mkdir(parents=True, exist_ok=True)
    with canvas.look():
        drawings = {name: drawing for name, draw in PICTURES.items() if (drawing := draw(compared))}
        text = page(compared, tuple(drawings.values()))
    plot = folder / "accuracy.png" if "accuracy" in drawings else None
    if plot is not None:
        drawings["accuracy"].save(plot)
    report = WrittenReport(compared, folder / "report.html", plot)
    report.page.write_text(text, "utf-8")
    (folder / "summary.json").write_text(f"{as_json(everything(compared))}\n", "utf-8")
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


def page(compared: ComparedRuns, pictures: Sequence[Drawing]) -> str:
    """The whole HTML file: sentence, short table and first picture, then the rest in folded sections."""
    spec, failed = compared.plan.scenario, tuple(compared.plan.without)
    colours = {policy: _colour(policy) for policy in compared.policies}

    def html(each: table.Table) -> str:
        return f'<div class="scroll">{each.html(colours)}</div>'

    whole = html(table.main_table(compared.summary, compared.terms, failed))
    below = "\n".join(
        f"<h3>{escape(each.title[:1].upper() + each.title[1:])}</h3>\n{html(each)}"
        for each in table.equal_tables(compared.equal, compared.terms)
    )
    hint = '<p class="muted">Point at a row to read what it is. The best of a row is marked.</p>'
    lacks = f'<p class="muted">{escape(table.lacking(compared.equal))}</p>'
    sections = [
        _section("All figures", whole + hint),
        _section("At equal rounds, time, energy and bytes", below + lacks),
        *(_section(each.title, _figure(each)) for each in pictures[1:]),
    ]
    return _asset("page.html").format(
        title=escape(f"{spec.name}: {', '.join(compared.policies)}"),
        css=_asset("page.css"),
        sentence=escape(headline.sentence(compared)),
        compared=html(headline.short_table(compared, failed)),
        legend=escape(headline.legend(compared)),
        notes="".join(f"<p>{escape(note)}</p>" for note in _notes(compared)),
        picture="".join(_figure(each) for each in pictures[:1]),
        sections="\n".join(sections),
        setting=_setting(compared),
        scenario=escape(msgspec.json.format(spec.json()).decode()),
        origin=_origin(compared),
    )


def _section(title: str, content: str) -> str:
    """A folded section."""
    return f"<details><summary><h2>{escape(title)}</h2></summary>\n{content}\n</details>"


def _colour(policy: str) -> str:
    """The colour of a policy: a variable of the style sheet, if a dark theme changes it."""
    colour = canvas.stroke(policy).colour
    return f"var(--{canvas.THEMED[colour]})" if colour in canvas.THEMED else colour


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _setting(compared: ComparedRuns) -> str:
    """What was run, in a sentence, and the meaning of each policy."""
    spec, task = compared.plan.scenario, compared.plan.scenario.task
    text = (
        f"{spec.devices:,} devices of fleet {spec.fleet.name} learn {spec.data.source} "
        f"({spec.data.partition} partition) in {task.rounds} rounds of at most "
        f"{duration(task.round_deadline_s)}, {asked_devices(task)}{spec.trained_in}."
    )
    texts = {policy: scenario.describe(policy) for policy in compared.policies}
    texts |= {policy: f"failed: {why}" for policy, why in compared.plan.without.items()}
    meanings = "".join(f"<dt>{escape(p)}</dt><dd>{escape(what)}</dd>" for p, what in texts.items())
    return f"<p>{escape(text)}</p>\n<dl>{meanings}</dl>"


def _figure(picture: Drawing) -> str:
    """A picture with its caption."""
    drawing = canvas.svg(picture).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1
    )
    return (
        f'<figure id="{picture.name}"><div class="scroll">{drawing}</div>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _origin(compared: ComparedRuns) -> str:
    infos = [run.info for run in compared.runs]
    executors = ", ".join(sorted({info.executor for info in infos}))
    versions = ", ".join(f"{name} {version}" for name, version in infos[0].versions.items())
    facts = {
        "seeds": ", ".join(map(str, compared.plan.comparison.seed_numbers)),
        "runs": f"{len(infos)}, of {duration(sum(info.seconds for info in infos))} of real time in all",
        "trained by": executors,
        "versions": versions,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return f"<pre><code>{escape(compared.plan.comparison.command)}</code></pre>\n<dl>{rows}</dl>"
