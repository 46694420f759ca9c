"""Draws a table: accuracy by round, a line for each row, and bars where a column has no curve.

A table that compares at equal time or energy has modelled time in place of rounds, and the rows that are
compared at equal time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from math import isnan
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.compare.figures import TIMES, FinishedRun, unit_for
from device_runtime.simulation.history.metrics import (
    CLOSED_FORM_HEAD,
    SERVED,
    TRAINED_HEAD,
    Axis,
    Model,
    accuracy,
)
from device_runtime.simulation.report import canvas

from .measures import MEASURES
from .outcome import TableOutcome
from .table import Column, SystemRow

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#22313f", "#8c6d1f",
)  # fmt: skip
DASHES = ("solid", "dashed", "dotted")
MOST_PANELS = 18
POINTS = 60
SMALL = {"font.family": "sans-serif", "svg.fonttype": "none"}
"""Text as text: letters as paths are most of a file."""
ACROSS, LEGEND = 3, 3
"""Panels in a row, and names in a row of the legend."""
MODELS = {
    "late_acc_trained": TRAINED_HEAD,
    "late_acc_closed_form": CLOSED_FORM_HEAD,
    "best_base_acc": TRAINED_HEAD,
}
"""The models that measures look at; the others look at the served one."""
UNEVEN = 5.0
"""The axis of rounds or time is logarithmic if the longest row is this many times the shortest."""


def svg(outcome: TableOutcome) -> str | None:
    """The table as SVG; None where no run is finished. Equal outcomes give equal text."""
    panels = _panels(outcome)[:MOST_PANELS]
    if not panels:
        return None
    import matplotlib

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    rows = [
        row
        for row in outcome.table.rows
        if any(row in _rows(outcome, column) and _runs(outcome, row, column) for column in panels)
    ]
    legend_rows = -(-len(rows) // LEGEND)
    with canvas.look(), matplotlib.rc_context({"svg.hashsalt": outcome.table.id, **SMALL}):
        figure, axes = canvas.panels(down, across, 2.6 * down + 0.22 * legend_rows + 0.2)
        for on, column in zip(axes.flat, panels, strict=False):
            _panel(on, outcome, column)
        for on in axes.flat[len(panels) :]:
            on.set_visible(False)
        _legend(figure, outcome, rows)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", out.getvalue().decode(), flags=re.S)
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", text)  # hundredths of a point


def _panels(outcome: TableOutcome) -> list[Column]:
    """The columns to draw: those with values, without those whose curves an earlier one has.

    Where some are at equal time, and of some rows alone, they alone.
    """
    panels: list[Column] = []
    run_sets: list[set[tuple[int, str]]] = []
    columns = outcome.table.columns_at(outcome.request.scale)
    timed = [
        column
        for column in columns
        if outcome.table.measure_of(column).endswith("_at_time")
        and len(_rows(outcome, column)) < len(outcome.table.rows)
    ]
    for column in timed or columns:
        runs_ = {(id(run), row.name) for row in _rows(outcome, column) for run in _runs(outcome, row, column)}
        if not _is_curve(outcome, column):
            has_values = any(outcome.spread(row.name, column.id).n for row in _rows(outcome, column))
            panels += [column] if has_values else []
        elif not any(runs_ <= runs for runs in run_sets):
            panels.append(column)
            run_sets.append(runs_)
    return panels


def _axis(outcome: TableOutcome) -> Axis:
    measures = (outcome.table.measure_of(column) for column in outcome.table.columns)
    equal = ("_at_time", "_at_energy", "_at_bytes")
    return "time" if any(name.endswith(equal) for name in measures) else "rounds"


def _rows(outcome: TableOutcome, column: Column) -> tuple[SystemRow, ...]:
    return outcome.table.rows_at(outcome.request.scale, column)


def _runs(outcome: TableOutcome, row: SystemRow, column: Column) -> list[FinishedRun]:
    return [run for run in outcome.runs.get((row.name, column.id), ()) if run is not None]


def _is_curve(outcome: TableOutcome, column: Column) -> bool:
    """Whether the column is of accuracies, of which a row has more than one."""
    if not MEASURES[outcome.table.measure_of(column)].percent:
        return False
    return any(len(_curve(outcome, row, column)[0]) > 1 for row in _rows(outcome, column))


def _curve(
    outcome: TableOutcome, row: SystemRow, column: Column
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The row's mean curve, of the model that its measure looks at."""
    model = MODELS.get(outcome.table.measure_of(column, row), SERVED)
    return mean_curve(_runs(outcome, row, column), _axis(outcome), model)


def _panel(on: Any, outcome: TableOutcome, column: Column) -> None:
    (_curves if _is_curve(outcome, column) else _bars)(on, outcome, column)


def _curves(on: Any, outcome: TableOutcome, column: Column) -> None:
    rows, axis = _rows(outcome, column), _axis(outcome)
    curves = {row.name: _curve(outcome, row, column) for row in rows}
    lasts = [at[-1] for at, _ in curves.values() if len(at)]
    unit, size = unit_for(max(lasts), TIMES) if axis == "time" else ("", 1.0)
    for row in rows:
        at, value = curves[row.name]
        if len(at) == 1:
            at, value = np.array([at[0], max(lasts)]), np.repeat(value, 2)  # it stays served
        if len(at):
            on.plot(at / size, 100 * value, linewidth=1.4, **_stroke(outcome, row))
    several = [last for last in lasts if last > 1]
    if several and max(several) >= UNEVEN * min(several):
        on.set_xscale("log")
    elif axis == "rounds":
        on.xaxis.get_major_locator().set_params(integer=True)
    on.set_title(fill(column.title, 34), fontsize=8.5)
    on.set_xlabel(f"modelled time, {unit}" if unit else "round", fontsize=8)
    on.set_ylabel("test accuracy, %", fontsize=8)
    on.tick_params(labelsize=8)


def mean_curve(
    runs: Sequence[FinishedRun], axis: Axis = "rounds", model: Model = SERVED
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of the axis, and the mean accuracy over runs there; both (n,).

    Points are the rounds that all runs have evaluated, or evenly spaced until the end of the shortest run.
    """
    curves = [accuracy(run.rounds, axis, model.acc) for run in runs]
    if not curves or not all(curve.at.size for curve in curves):
        return np.empty(0), np.empty(0)
    if axis != "rounds":
        grid = np.linspace(
            max(curve.at[0] for curve in curves), min(curve.at[-1] for curve in curves), POINTS
        )
        return grid, np.array([curve.sampled(grid) for curve in curves]).mean(0)
    common = sorted(set.intersection(*({float(at) for at in curve.at} for curve in curves)))
    values = np.array([[curve.when(at) for at in common] for curve in curves], np.float64)
    return np.array(common, np.float64), values.mean(0)


def _bars(on: Any, outcome: TableOutcome, column: Column) -> None:
    measure = MEASURES[outcome.table.measure_of(column)]
    means = {row.name: outcome.spread(row.name, column.id).mean for row in _rows(outcome, column)}
    rows = [row for row in _rows(outcome, column) if not isnan(means[row.name])]
    unit, size = unit_for(max((means[row.name] for row in rows), default=0.0), measure.units)
    values = [means[row.name] / size for row in rows]
    colours = [_stroke(outcome, row)["color"] for row in rows]
    on.barh(range(len(rows)), values, color=colours, height=0.7)
    positive = [value for value in values if value > 0]
    if positive and max(positive) > 30 * min(positive):
        on.set_xscale("log")
    on.set_yticks([])
    on.invert_yaxis()
    on.set_title(fill(f"{column.title}: {measure.title}", 34), fontsize=8.5)
    on.set_xlabel(unit, fontsize=8)
    on.tick_params(labelsize=8)


def _stroke(outcome: TableOutcome, row: SystemRow) -> dict[str, Any]:
    """The line of a row, the same in every panel."""
    number = [each.name for each in outcome.table.rows].index(row.name)
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes}


def _legend(figure: Any, outcome: TableOutcome, rows: Sequence[SystemRow]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], linewidth=2, **_stroke(outcome, row)) for row in rows]
    figure.legend(
        lines,
        [row.title for row in rows],
        loc="outside lower left",
        ncols=LEGEND,
        fontsize=8,
        handlelength=2.2,
    )
