"""Renders the report as one HTML file without server or network, for light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from math import isnan

import msgspec

from device_runtime.simulation.compare.equal import differences_by_seed
from device_runtime.simulation.compare.wording import asked_devices, duration
from device_runtime.simulation.scenarios import scenario

from . import canvas, table
from .canvas import ComparedRuns, Drawing


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
        made=_made(compared),
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
        f"{duration(task.round_deadline_s)}, {asked_devices(task)}."
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


def _made(compared: ComparedRuns) -> str:
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
