"""The report of a sweep: the best point by validation samples, one table, one plot, one CSV."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path
from textwrap import fill
from typing import Any

from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.simulation.compare.equal import differences_by_seed
from device_runtime.simulation.compare.figures import (
    BYTES,
    JOULE,
    LATEST,
    TIMES,
    SeedSpread,
    Units,
    figures,
    read_all,
    spread,
    terms,
    unit_for,
)
from device_runtime.simulation.compare.sweep import SweepPlan, SweepPoint
from device_runtime.simulation.compare.swept_settings import Value, value_text
from device_runtime.simulation.history.metrics import accuracy

from . import canvas
from .accuracy import ROOM
from .canvas import MARKERS, SPARE, STRONG, Drawing, panels
from .table import Table, TableLine, figure_text, lead_text, metric_units

NOTHING = SeedSpread(nan, nan, 0, 0)
MOST_LINES = 8
"""The most lines in a plot; points that would need more are drawn one above another."""
APART = 8
"""From how many times the smallest value on, the largest asks for a logarithmic axis."""


@dataclass(frozen=True)
class PointFigures:
    """The figures of one point: its metric by seed, and mean and spread over the seeds.

    metric: on the validation samples, the mean of the last `LATEST` evaluations. why: the reason for a point
    without figures.
    """

    point: SweepPoint
    by_seed: Mapping[int, float]
    metric: SeedSpread = NOTHING
    virtual_s: SeedSpread = NOTHING
    energy_j: SeedSpread = NOTHING
    bytes: SeedSpread = NOTHING
    why: str = ""


@dataclass(frozen=True)
class SweepFigures:
    """The figures of a sweep's points; `metric`: the name of the metric by which they are judged."""

    plan: SweepPlan
    metric: str
    points: tuple[PointFigures, ...]

    @property
    def ranked(self) -> tuple[PointFigures, ...]:
        """The points with this metric for every seed, the best first; of equal ones the first."""
        whole = [each for each in self.points if each.metric.n and each.metric.n == each.metric.of]
        return tuple(sorted(whole, key=lambda each: each.metric.mean, reverse=True))

    @property
    def best(self) -> PointFigures | None:
        """The best point; None where no point has figures."""
        return next(iter(self.ranked), None)

    def sentence(self) -> str:
        """Names the best point, and by how much it leads."""
        if self.best is None:
            return "no point is best: none has been evaluated in all of its runs"
        own, units = self.best, metric_units(self.metric)
        text = f"best: {own.point.text} with {self.metric} {figure_text(own.metric, units[0])}"
        if len(self.ranked) > 1:
            next_best = self.ranked[1]
            ahead = differences_by_seed(own.by_seed, next_best.by_seed)
            by = lead_text(ahead, self.metric)
            text += f", {by} over {next_best.point.text}"
        return text

    def table(self) -> Table:
        """A row for each point: its settings, mean and deviation of the metric over the seeds, and costs."""
        names = self.plan.settings
        units: dict[str, tuple[str, float]] = {
            head: _unit(each, of)
            for head, each, of in (
                (self.metric, [point.metric for point in self.points], metric_units(self.metric)),
                ("virtual time", [point.virtual_s for point in self.points], TIMES),
                ("energy (modelled)", [point.energy_j for point in self.points], JOULE),
                ("bytes", [point.bytes for point in self.points], BYTES),
            )
        }
        lines = []
        for each in self.points:
            spreads = (each.metric, each.virtual_s, each.energy_j, each.bytes)
            cells = [figure_text(value, unit) for value, unit in zip(spreads, units.values(), strict=True)]
            mark = "best" if each is self.best else "failed" if each.why else ""
            labels = tuple(value_text(each.point.values[name]) for name in names)
            lines.append(TableLine(labels, (*cells, mark), frozenset({0} if each is self.best else ())))
        return Table("", (*names, *units, ""), tuple(lines))

    def text(self, wide: int | None = None) -> str:
        """The sentence, how points are judged, the table, and why points have no figures."""
        judged = f"judged by {self.plan.judged_by} (mean of the last {LATEST} evaluations)"
        failed = [f"{each.point.text}: {each.why}" for each in self.points if each.why]
        return "\n".join([self.sentence(), judged, "", self.table().text(wide), *failed])

    def rows(self) -> list[dict[str, object]]:
        """The table as plain values, of each figure the mean and the deviation over the seeds.

        None where a figure is unknown.
        """
        rows = []
        for each in self.points:
            row: dict[str, object] = dict(each.point.values)
            for name, value in (
                (self.metric, each.metric),
                ("virtual_s", each.virtual_s),
                ("energy_j", each.energy_j),
                ("bytes", each.bytes),
            ):
                row |= {name: _or_none(value.mean), f"{name}_sd": _or_none(value.sd)}
            rows.append(row | {"seeds": each.metric.n, "best": each is self.best})
        return rows


def read_sweep(plan: SweepPlan, failed: Mapping[str, str] | None = None) -> SweepFigures:
    """Reads the finished points of a sweep. `failed`: why others have no figures, by the point's text.

    Raises SimulationError for damaged files.
    """
    points, metrics = [], []
    for point in plan.points:
        if point.plan.missing():
            why = (failed or {}).get(point.text, "not finished")
            points.append(PointFigures(point, {}, why=why))
            continue
        runs = read_all(point.plan)
        at = terms(runs, point.plan.scenario.devices, None)
        metrics.append(at.metric)
        every = [figures(run, at) for run in runs]
        by_seed = {run.name.seed: accuracy(run.rounds, "rounds").when(inf, LATEST) for run in runs}
        points.append(
            PointFigures(
                point,
                by_seed,
                spread(by_seed.values()),
                spread(each.virtual_s for each in every),
                spread(each.energy_j for each in every),
                spread(each.bytes_up + each.bytes_down for each in every),
            )
        )
    return SweepFigures(plan, metrics[0] if metrics else ACCURACY, tuple(points))


@dataclass(frozen=True)
class WrittenSweep:
    """The files of a sweep's report, and the folder in which the best point, if any, runs alone."""

    figures: SweepFigures
    picture: Path
    table: Path
    alone: Path | None

    @property
    def command(self) -> str:
        """The command that runs the best point alone, on the test samples; empty without a best point."""
        return (
            ""
            if self.alone is None
            else shlex.join(["device-runtime", "simulate", "--run-dir", str(self.alone)])
        )

    def text(self, wide: int | None = None) -> str:
        """The report, then the places of its files and the command that runs the best alone."""
        places = [f"plot  {self.picture}", f"table {self.table}"]
        alone = ["", "the best alone, with all training samples, on the test samples:", f"  {self.command}"]
        return "\n".join(["", self.figures.text(wide), "", *places, *(alone if self.command else ())])

    def values(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        best = self.figures.best
        return {
            "judged_by": self.figures.plan.judged_by,
            "metric": self.figures.metric,
            "best": None if best is None else dict(best.point.values),
            "points": self.figures.rows(),
            "failed": {each.point.text: each.why for each in self.figures.points if each.why},
            "command": self.command,
            "plot": str(self.picture),
            "table": str(self.table),
        }


def write_sweep(read: SweepFigures) -> WrittenSweep:
    """Writes sweep.png and sweep.csv into the sweep's folder, and the best point's scenario.

    Raises OSError.
    """
    folder = read.plan.folder
    picture, table = folder / "sweep.png", folder / "sweep.csv"
    drawn(read).save(picture)
    rows = read.rows()
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return WrittenSweep(read, picture, table, read.plan.alone(read.best.point) if read.best else None)


def drawn(read: SweepFigures) -> Drawing:
    """Draws the metric over the numeric setting with the most values, a line for each other combination.

    Points that make no lines are drawn one above another.
    """
    varied = [name for name in read.plan.settings if len(_values(read, name)) > 1]
    numeric = [name for name in varied if all(_is_number(value) for value in _values(read, name))]
    over = max(numeric, key=lambda name: len(_values(read, name)), default="")
    lines: dict[str, list[PointFigures]] = {}
    for each in read.points:
        rest = {name: value for name, value in each.point.values.items() if name in varied and name != over}
        label = ", ".join(f"{name}={value_text(value)}" for name, value in rest.items())
        lines.setdefault(label, []).append(each)
    with canvas.look():
        if over and len(lines) <= MOST_LINES and max(map(len, lines.values())) > 1:
            figure = _lines(read, over, lines)
        else:
            figure = _rows(read)
    title = f"{read.metric[:1].upper()}{read.metric[1:]} of the points of a sweep"
    caption = f"Judged by {read.plan.judged_by}. Bars: a standard deviation over the seeds."
    return Drawing("sweep", title, caption, figure)


def _lines(read: SweepFigures, over: str, lines: Mapping[str, Sequence[PointFigures]]) -> Any:
    figure, axes = panels(1, 1, 4.3)
    on, scale = axes[0, 0], _scale(read.metric)
    labels: dict[tuple[tuple[object, float], ...], str] = {}
    for place, (label, every) in enumerate(lines.items()):
        points = sorted((each for each in every if each.metric.n), key=lambda each: _number(each, over))
        curve = tuple((each.point.values[over], each.metric.mean) for each in points)
        twin = labels.setdefault(curve, label) if curve else label
        look = {"color": SPARE[place % len(SPARE)], "marker": MARKERS[place % len(MARKERS)]}
        on.errorbar(
            [_number(each, over) for each in points],
            [scale * each.metric.mean for each in points],
            [_bar(each, scale) for each in points],
            label=label if twin == label else f"{label} (same as {twin})",
            markersize=5,
            capsize=3,
            **look,
        )
    values = sorted(float(value) for value in _values(read, over))  # type: ignore[arg-type]
    if values[0] > 0 and values[-1] >= APART * values[0]:
        on.set_xscale("log")
    if len(values) <= 12:
        on.set_xticks(values, [f"{value:g}" for value in values])
        on.set_xticks([], minor=True)
    on.set(xlabel=over, ylabel=_label(read))
    if best := read.best:
        _ring(on, _number(best, over), scale * best.metric.mean, best.point.text)
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _rows(read: SweepFigures) -> Any:
    """A row for each point, in their order."""
    figure, axes = panels(1, 1, 1.2 + 0.24 * len(read.points))
    on, scale = axes[0, 0], _scale(read.metric)
    for row, each in enumerate(read.points):
        if each.metric.n:
            at, bar = scale * each.metric.mean, _bar(each, scale)
            on.errorbar(at, row, xerr=bar, color=STRONG, marker="o", markersize=5, capsize=3)
            if each is read.best:
                _ring(on, scale * each.metric.mean, row, each.point.text)
    on.set_yticks(range(len(read.points)), [each.point.text for each in read.points])
    on.set(xlabel=_label(read), ylim=(len(read.points) - 0.5, -0.5))
    return figure


def _bar(each: PointFigures, scale: float) -> float:
    return 0.0 if isnan(each.metric.sd) else scale * each.metric.sd


def _ring(on: Any, x: float, y: float, text: str) -> None:
    """Marks the best point, which the title names."""
    on.plot(x, y, "o", markersize=13, markerfacecolor="none", markeredgecolor="#d55e00", markeredgewidth=1.6)
    on.set_title(fill(f"best (ring): {text}", ROOM))


def _label(read: SweepFigures) -> str:
    unit = ", %" if read.metric.endswith(ACCURACY) else ""
    return f"{read.metric} on validation samples{unit}"


def _scale(metric: str) -> float:
    return 100.0 if metric.endswith(ACCURACY) else 1.0


def _values(read: SweepFigures, name: str) -> set[Value]:
    return {each.point.values[name] for each in read.points}


def _number(each: PointFigures, name: str) -> float:
    value = each.point.values[name]
    return float(value) if isinstance(value, int | float) else nan


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unit(spreads: Sequence[SeedSpread], units: Units) -> tuple[str, float]:
    return unit_for(max((each.mean for each in spreads if each.n), default=0.0), units)


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value
