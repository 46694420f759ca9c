"""Draws accuracy over virtual time, bytes and energy, and the accuracy of each class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.targets import ACCURACY, metric_text
from device_runtime.simulation.compare.equal import MOST_NAMED, held_alone
from device_runtime.simulation.compare.figures import BYTES, JOULE, TIMES, FinishedRun, Units, unit_for
from device_runtime.simulation.history.metrics import SERVED, Axis, Curve, accuracy
from device_runtime.simulation.history.records import SimulatedRound

from .canvas import MUTED, ComparedRuns, Drawing, panels, stroke

POINTS = 600
ROOM = 96
"""Characters of a title that fit the width of a figure, and of a legend with their signs."""
MOST_PANELS = 4
MOST_TICKS = 9
"""The most ticks of an x axis that has the whole width."""
MOST_MS = 100
"""A shorter axis of time is in milliseconds."""


def over_time(compared: ComparedRuns) -> Drawing | None:
    """Draws accuracy over virtual time; None where nothing was evaluated."""
    if not _evaluated(compared):
        return None
    figure, axes = panels(1, 1, 4.3)
    on = axes[0, 0]
    unit, size = _curves(on, compared, "time", TIMES)
    on.set(xlabel=f"virtual time, {unit}", ylabel=_label(compared))
    if len(compared.policies) > 1:
        _marked(on, "equal time", x=compared.terms.at_s / size)
    if not isnan(compared.terms.target):
        target, metric = compared.terms.target, compared.terms.metric
        _marked(on, f"target\n{metric_text(metric, target)}", y=_scale(metric) * target)
    _legend(figure, on)
    text = f"A model is served until the next one is. {_band(compared)}"
    return Drawing("accuracy-time", f"{_title(compared)} over virtual time", text.strip(), figure)


def over_costs(compared: ComparedRuns) -> Drawing | None:
    """Draws accuracy over bytes and over joules; None where nothing was evaluated."""
    if not _evaluated(compared):
        return None
    figure, axes = panels(1, 2, 3.7, sharey=True)
    unit, _ = _curves(axes[0, 0], compared, "bytes", BYTES)
    axes[0, 0].set(xlabel=f"moved by all devices, up and down, {unit}", ylabel=_label(compared))
    unit, _ = _curves(axes[0, 1], compared, "energy", JOULE)
    axes[0, 1].set(xlabel=f"energy of all devices (modelled), {unit}")
    _legend(figure, axes[0, 0])
    text = (
        "What was spent by devices whose update came late or was lost is counted too, but not work that the "
        f"end of the run cut off. {_band(compared)}"
    )
    return Drawing("accuracy-costs", f"{_title(compared)} over bytes and over energy", text.strip(), figure)


def of_groups(compared: ComparedRuns) -> Drawing | None:
    """Draws the recall of classes that one group alone holds, over virtual time, in a panel for each group.

    None where no group holds classes alone.
    """
    parts = tuple(held_alone(compared.plan.scenario, compared.labels))[:MOST_PANELS]
    if not parts or not any(_known(compared.runs, "time", part.value) for part in parts):
        return None
    figure, axes = panels(1, len(parts), 3.7, sharey=True)
    for on, part in zip(axes[0], parts, strict=True):
        unit, _ = _curves(on, compared, "time", TIMES, part.value)
        on.set(title=fill(part.title, ROOM // len(parts)), xlabel=f"virtual time, {unit}", ylim=(-3, 103))
    axes[0, 0].set_ylabel("recognised by the served model, %")
    _legend(figure, axes[0, 0])
    text = (
        "Classes of which one group of the fleet has every sample: the share of their test samples that is "
        f"recognised, each class weighing the same. {_band(compared)}"
    )
    return Drawing("accuracy-of-groups", "Classes that one group alone holds", text.strip(), figure)


def by_class(compared: ComparedRuns) -> Drawing | None:
    """Draws the recall of each class by the last model; None where it was not evaluated."""
    if not compared.labels:
        return None
    figure, axes = panels(1, 1, 3.6)
    on = axes[0, 0]
    classes = len(compared.labels)
    any_rows = False
    for place, policy in enumerate(compared.policies):
        rows = [_last(run) for run in compared.of(policy)]
        rows = [row for row in rows if len(row) == classes]
        if not rows:
            continue
        any_rows = True
        offset = (place - (len(compared.policies) - 1) / 2) * min(0.18, 0.7 / len(compared.policies))
        _by_class(on, policy, np.array(rows), offset)
    if not any_rows:
        return None
    if classes <= MOST_NAMED:
        on.set_xticks(
            range(classes), compared.labels, rotation=45 if sum(map(len, compared.labels)) > 70 else 0
        )
        on.set(xlabel="class", ylabel="recognised, %", ylim=(-4, 104))
        on.grid(axis="x", visible=False)
    else:
        on.set(
            xlabel="classes, the worst recognised first (of each policy)",
            ylabel="recognised, %",
            ylim=(-3, 103),
        )
    _legend(figure, on)
    bars = (
        " Bars reach from the worst seed to the best." if len(compared.runs) > len(compared.policies) else ""
    )
    text = f"The share of each class's test samples that the model served last recognises.{bars}"
    return Drawing("accuracy-by-class", "Accuracy of each class", text, figure)


def _scale(metric: str) -> float:
    """The factor by which a metric is drawn: an accuracy in percent."""
    return 100.0 if metric.endswith(ACCURACY) else 1.0


def _title(compared: ComparedRuns) -> str:
    metric = compared.terms.metric
    return metric[0].upper() + metric[1:]


def _label(compared: ComparedRuns) -> str:
    metric = compared.terms.metric
    return f"{metric} of the served model{', %' if metric.endswith(ACCURACY) else ''}"


def _evaluated(compared: ComparedRuns) -> bool:
    return any(run.curve.value.size for run in compared.runs)


def _curves(
    on: Any,
    compared: ComparedRuns,
    axis: Axis,
    units: Units,
    value: Callable[[SimulatedRound], float] = SERVED.acc,
) -> tuple[str, float]:
    """Draws every policy's curve as far as all of its seeds went; returns the axis's unit and its size."""
    by_policy = {policy: _known(compared.of(policy), axis, value) for policy in compared.policies}
    most = max((_end(curves) for curves in by_policy.values() if curves), default=1.0)
    unit, size = ("ms", 1e-3) if units is TIMES and most < MOST_MS / 1000 else unit_for(most, units)
    drawn: dict[bytes, str] = {}
    for policy, curves in by_policy.items():
        if curves:
            _curve(on, policy, curves, size, _scale(compared.terms.metric))
            _mark_twin(on, policy, drawn.setdefault(_outline(curves), policy))
    on.set_xlim(0, 1.02 * most / size)
    on.locator_params(axis="x", nbins=max(4, MOST_TICKS // on.get_gridspec().ncols))
    return unit, size


def _outline(curves: Sequence[Curve]) -> bytes:
    """What is equal for equal curves."""
    return b"".join(part.tobytes() for curve in curves for part in (curve.at, curve.value))


def _mark_twin(on: Any, policy: str, twin: str) -> None:
    """Says in the legend that the last curve lies on that of `twin`, if this is another policy."""
    if policy != twin:
        handles, labels = on.get_legend_handles_labels()
        handles[labels.index(policy)].set_label(f"{policy} (same as {twin})")


def _legend(figure: Any, on: Any) -> None:
    """Puts the legend below everything, where it covers no curve, in as many columns as fit."""
    handles, labels = on.get_legend_handles_labels()
    columns = max(1, min(5, ROOM // (9 + max(map(len, labels), default=1))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)


def _known(runs: Sequence[FinishedRun], axis: Axis, value: Callable[[SimulatedRound], float]) -> list[Curve]:
    return [curve for curve in (accuracy(run.rounds, axis, value) for run in runs) if curve.at.size]


def _curve(on: Any, policy: str, curves: Sequence[Curve], size: float, factor: float = 100.0) -> None:
    """Draws the mean and range over the interval that all seeds cover; without overlap, one line per seed.

    size: of the axis's unit. factor: of the values.
    """
    look = stroke(policy)
    line = {"color": look.colour, "linestyle": look.dashes}
    if _apart(curves):
        for place, curve in enumerate(curves):
            at, values = curve.at / size, factor * curve.value
            label = policy if place == 0 else None
            on.plot(at, values, drawstyle="steps-post", linewidth=1.2, label=label, **line)
            on.plot(at[-1], values[-1], look.marker, color=look.colour, markersize=5, clip_on=False)
        return
    begins, ends = max(curve.at[0] for curve in curves), _end(curves)
    grid = np.unique(np.concatenate([np.linspace(begins, ends, POINTS), *(curve.at for curve in curves)]))
    grid = grid[(grid >= begins) & (grid <= ends)]
    values = factor * np.array([curve.sampled(grid) for curve in curves])
    at, mean = grid / size, values.mean(0)
    on.plot(at, mean, drawstyle="steps-post", linewidth=2, label=policy, **line)
    if len(curves) > 1:
        band = {"color": look.colour, "alpha": 0.16, "linewidth": 0}
        on.fill_between(at, values.min(0), values.max(0), step="post", **band)
    on.plot(at[-1], mean[-1], look.marker, color=look.colour, markersize=5, clip_on=False)


def _end(curves: Sequence[Curve]) -> float:
    """Where the curve of a policy ends: as far as all of its seeds went."""
    ends = [float(curve.at[-1]) for curve in curves]
    return max(ends) if _apart(curves) else min(ends)


def _apart(curves: Sequence[Curve]) -> bool:
    """Whether one seed ended before another was first evaluated."""
    return bool(max(curve.at[0] for curve in curves) > min(curve.at[-1] for curve in curves))


def _marked(on: Any, text: str, *, x: float | None = None, y: float | None = None) -> None:
    """Draws a dotted line across, with its name outside the axes, where no curve crosses it."""
    if x is not None:
        on.axvline(x, color=MUTED, linewidth=1, linestyle=":")
        place = {"xy": (x, 1.0), "xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
    else:
        on.axhline(y, color=MUTED, linewidth=1, linestyle=":")
        place = {"xy": (1.01, y), "xycoords": ("axes fraction", "data"), "ha": "left", "va": "center"}
    on.annotate(text, fontsize=8.5, color=MUTED, annotation_clip=False, **place)


def _by_class(on: Any, policy: str, rows: NDArray[np.float64], offset: float) -> None:
    """Draws the recall of each class; rows: (seeds, classes), 0 to 1."""
    finite = ~np.isnan(rows).all(axis=0)  # others have no test samples, or the model has no finite outputs
    look, percent = stroke(policy), 100 * rows[:, finite]
    if rows.shape[1] > MOST_NAMED:
        on.plot(
            np.sort(np.nanmean(percent, 0)),
            color=look.colour,
            linestyle=look.dashes,
            linewidth=2,
            label=policy,
        )
        return
    at, mean = np.flatnonzero(finite) + offset, np.nanmean(percent, 0)
    if len(rows) > 1:
        on.vlines(
            at, np.nanmin(percent, 0), np.nanmax(percent, 0), color=look.colour, linewidth=1.4, alpha=0.6
        )
    on.plot(at, mean, look.marker, color=look.colour, markersize=6, label=policy)


def _last(run: FinishedRun) -> tuple[float, ...]:
    """The recall of each class in the last round that was evaluated."""
    return next((line.eval_acc_by_class for line in reversed(run.rounds) if line.eval_acc_by_class), ())


def _band(compared: ComparedRuns) -> str:
    seeds = len(compared.plan.comparison.seed_numbers)
    return f"Line: mean over {seeds} seeds; band: from the lowest seed to the highest." if seeds > 1 else ""
