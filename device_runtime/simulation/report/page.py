"""Renders the report as one HTML file without server or network, for light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    return _asset("page.html").format(
        title=escape(f"{spec.name}: {', '.join(compared.policies)}"),
        css=_asset("page.css"),
        js=_asset("page.js"),
        lead=_lead(compared),
        learnt=table.as_html(compared.summary, table.learning_rows(compared.terms), compared.plan.without),
        spent=table.as_html(compared.summary, table.cost_rows(), compared.plan.without),
        equal=table.equal_html(compared.equal, compared.terms),
        note=_note(compared),
        figures="\n".join(_figure(picture) for picture in pictures),
        settings=_settings(compared),
        made=_made(compared),
    )


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


def _note(compared: ComparedRuns) -> str:
    seeds = compared.plan.comparison.seeds
    what = (
        f"Mean ± standard deviation over {seeds} seeds. " if seeds > 1 else "One seed: no spread is known. "
    )
    return (
        what + "Click a column to sort by it; point at it to read what it is. The best of a column is marked."
    )


def _figure(picture: Drawing) -> str:
    drawing = canvas.svg(picture).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1
    )
    return (
        f'<h2 id="{picture.name}">{escape(picture.title)}</h2>\n<figure><div class="scroll">{drawing}</div>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _settings(compared: ComparedRuns) -> str:
    tables = msgspec.to_builtins(compared.plan.scenario)
    groups = tables["fleet"].pop("groups")
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("group", *names))
    rows = "".join(
        f"<tr><th>{escape(group)}</th>{''.join(f'<td>{_value(of.get(name))}</td>' for name in names)}</tr>"
        for group, of in groups.items()
    )
    kinds = tables["task"].pop("kinds")
    offered = "".join(f"<dt>{escape(kind.pop('name'))}</dt><dd>{_value(kind)}</dd>" for kind in kinds)
    top = {name: value for name, value in tables.items() if not isinstance(value, dict)}
    return (
        f"{_list(top)}"
        f"<details open><summary>Task</summary>{_list(tables['task'])}</details>"
        f"<details open><summary>Data</summary>{_list(tables['data'])}</details>"
        f"<details><summary>Kinds of update offered</summary><dl>{offered}</dl></details>"
        f"<details><summary>Fleet {escape(tables['fleet']['name'])}</summary>"
        f'<div class="scroll settings"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _list(settings: Mapping[str, object]) -> str:
    """Settings as an HTML list, without those that are empty."""
    pairs = {name: value for name, value in settings.items() if value not in (None, "", [], {}, ())}
    return "<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{_value(v)}</dd>" for n, v in pairs.items()) + "</dl>"


def _value(value: object) -> str:
    """A setting as text; tables in it as `name value` pairs."""
    if value in (None, "", [], {}, ()):
        return "–"
    if isinstance(value, Mapping):
        pairs = {name: inner for name, inner in value.items() if inner not in (None, "", [], {}, ())}
        return escape(", ".join(f"{name} {inner}" for name, inner in pairs.items())) or "–"
    if isinstance(value, list):
        return "; ".join(_value(inner) for inner in value)
    return escape(str(value).lower() if isinstance(value, bool) else str(value))


def _made(compared: ComparedRuns) -> str:
    infos = [run.info for run in compared.runs]
    seconds = sum(info.seconds for info in infos)
    executors = ", ".join(sorted({info.executor for info in infos}))
    versions = ", ".join(f"{name} {version}" for name, version in infos[0].versions.items())
    return (
        f"<pre><code>{escape(compared.plan.comparison.command)}</code></pre>"
        + _list(
            {
                "seeds": ", ".join(str(seed) for seed in range(compared.plan.comparison.seeds)),
                "runs": f"{len(infos)}, of {duration(seconds)} of real time in all",
                "trained by": executors,
                "versions": versions,
            }
        )
        + '<p class="muted">The same scenario, seed and executor give the same bytes on the same machine. In '
        "<code>runs/POLICY-SEED/</code> lie the rounds and asks of each run as JSON lines and CSV, and the "
        "model that it served last.</p>"
    )
