"""Measures each kind of update several times, each time in a fresh process, and tabulates the figures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import hypot, isfinite, nan
from pathlib import Path
from statistics import median

import msgspec

from device_runtime.device.energy import Meter, energy_of
from device_runtime.profiles.device import Time
from device_runtime.service_process import python_command

from .measure_one import MeasuredFigures, MeasureOrder

LONGEST_S = 3600.0
"""Seconds that one run may take."""
_PROGRAM = "from device_runtime.device.measurement.measure_one import main; main()"


@dataclass(frozen=True)
class MeasuredSpread:
    """Median, least and most over the runs of one kind; nan if nothing was measured."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeasuredSpread:
        finite = [value for value in values if isfinite(value)]
        return cls(median(finite), min(finite), max(finite)) if finite else cls(nan, nan, nan)

    def formatted(self, digits: str, factor: float = 1.0, off: float = 0.0) -> str:
        """ "0.62 ± 0.03": the median, and half the range with another error, `off`, added by squares."""
        if not isfinite(self.median):
            return ""
        half = hypot((self.most - self.least) / 2, off)
        return f"{factor * self.median:{digits}} ± {factor * half:{digits}}"


@dataclass(frozen=True)
class MeasurementRow:
    """One kind over its runs. `source`, `uncertainty` and `above_idle_off_j` are of the worst of the runs.

    `why`: why nothing was made, or what was given up on the way.
    """

    kind: str
    runs: int
    seconds: MeasuredSpread
    predicted_s: float
    joules: MeasuredSpread
    above_idle_j: MeasuredSpread
    above_idle_off_j: float
    source: str
    uncertainty: float
    peak_bytes: MeasuredSpread
    predicted_peak_bytes: float
    bytes_up: float
    predicted_bytes_up: float
    bytes_down: float
    why: str


def row(runs: Sequence[MeasuredFigures]) -> MeasurementRow:
    """The row of the runs of one kind, at least one."""
    complete = [run for run in runs if isfinite(run.seconds)]
    worst = max(complete or runs, key=lambda run: run.uncertainty)
    return MeasurementRow(
        kind=worst.kind,
        runs=len(complete),
        seconds=MeasuredSpread.of([run.seconds for run in complete]),
        predicted_s=MeasuredSpread.of([run.predicted_s for run in complete]).median,
        joules=MeasuredSpread.of([run.joules for run in complete]),
        above_idle_j=MeasuredSpread.of([run.above_idle_j for run in complete]),
        above_idle_off_j=max((run.above_idle_off_j for run in complete), default=0.0),
        source=worst.source,
        uncertainty=worst.uncertainty,
        peak_bytes=MeasuredSpread.of([run.peak_bytes for run in complete]),
        predicted_peak_bytes=MeasuredSpread.of([run.predicted_peak_bytes for run in complete]).median,
        bytes_up=MeasuredSpread.of([run.bytes_up for run in complete]).median,
        predicted_bytes_up=MeasuredSpread.of([run.predicted_bytes_up for run in complete]).median,
        bytes_down=MeasuredSpread.of([run.bytes_down for run in complete]).median,
        why=next((run.why for run in runs if run.why), ""),
    )


HEADERS = (
    "kind",
    "seconds",
    "predicted",
    "joule",
    "above idle",
    "told by",
    "peak MB",
    "predicted",
    "kB up",
    "kB down",
)


def cells(figures: MeasurementRow) -> tuple[str, ...]:
    """A row of the table for people; if the kind was not made, the reason."""
    if not figures.runs:
        return (figures.kind, figures.why)
    return (
        figures.kind,
        figures.seconds.formatted(".3f"),
        f"{figures.predicted_s:.3f}",
        figures.joules.formatted(".2f"),
        figures.above_idle_j.formatted(".2f", off=figures.above_idle_off_j),
        f"{figures.source} ± {figures.uncertainty:.0%}",
        figures.peak_bytes.formatted(".1f", 1e-6),
        f"{figures.predicted_peak_bytes / 1e6:.1f}",
        f"{figures.bytes_up / 1e3:.1f}",
        f"{figures.bytes_down / 1e3:.1f}",
    )


def lines(runs: Sequence[MeasuredFigures]) -> Iterator[list[object]]:
    """Lines of a CSV file: the names, then one line for each run; nan is empty."""
    names = [field.name for field in fields(MeasuredFigures)]
    yield list(names)
    for run in runs:
        values = [getattr(run, name) for name in names]
        yield ["" if value != value else value for value in values]


def interleaved(
    orders: Sequence[MeasureOrder], repeats: int, done: Callable[[MeasureOrder, MeasuredFigures], None]
) -> dict[str, list[MeasuredFigures]]:
    """Run every kind once, then every kind again, so that the machine's other load falls on all alike."""
    runs: dict[str, list[MeasuredFigures]] = {order.kind: [] for order in orders}
    for _ in range(repeats):
        for order in orders:
            runs[order.kind].append(in_a_child(order))
            done(order, runs[order.kind][-1])
    return runs


def in_a_child(order: MeasureOrder) -> MeasuredFigures:
    """Run an order in a fresh process; if that dies, the reason is returned.

    Figures come through a pipe, which holds them all, as libraries and meters may print to standard output.
    """
    reading, writing = os.pipe()
    with open(reading, "rb") as answer:  # noqa: PTH123 - a number
        child = python_command(_PROGRAM, str(writing))
        try:
            ended = subprocess.run(
                child,
                input=msgspec.msgpack.encode(order),
                capture_output=True,
                timeout=LONGEST_S,
                pass_fds=(writing,),
            )
        except subprocess.TimeoutExpired:
            return MeasuredFigures(order.kind, why=f"not done in {LONGEST_S:.0f} s")
        finally:
            os.close(writing)
        if ended.returncode == 0:
            return msgspec.msgpack.decode(answer.read(), type=MeasuredFigures)
    if ended.returncode < 0:
        return MeasuredFigures(
            order.kind, why=f"ended by signal {-ended.returncode}: for want of memory, if it is 9"
        )
    errors = ended.stderr.decode(errors="replace").strip().splitlines()
    return MeasuredFigures(order.kind, why=errors[-1] if errors else f"ended with {ended.returncode}")


def idle_watts(meter: Meter, seconds: float, time: Time) -> float:
    """Power by a meter while nothing is done; nan if it is too coarse to tell. Raises MeterError."""
    start, began = meter.read(), time.clock()
    time.sleep(seconds)
    ended, end = time.clock(), meter.read()
    meter.rest()
    energy = energy_of(meter.about, start, end)
    return energy.joules / (ended - began) if energy.uncertainty < 1 else nan


def plot(rows: Sequence[MeasurementRow], path: Path, title: str) -> None:
    """Draws seconds, joules and peak memory of each kind that was made, with the predictions, as bars.

    Raises OSError, and ModuleNotFoundError without matplotlib, of the extra `simulation`.
    """
    from matplotlib.figure import Figure

    complete = [row for row in rows if row.runs]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    joules = [
        MeasuredSpread(
            row.joules.median,
            row.joules.least * (1 - row.uncertainty),
            row.joules.most * (1 + row.uncertainty),
        )
        for row in complete
    ]
    panels = (
        ("seconds", [row.seconds for row in complete], [row.predicted_s for row in complete], 1.0),
        (f"joule, {' and '.join(sorted({row.source for row in complete}))}", joules, None, 1.0),
        (
            "peak memory, MB",
            [row.peak_bytes for row in complete],
            [row.predicted_peak_bytes for row in complete],
            1e-6,
        ),
    )
    names = [row.kind for row in complete]
    for axis, (label, spreads, predicted, factor) in zip(axes, panels, strict=True):
        middles = [factor * spread.median for spread in spreads]
        ends = [
            [factor * (spread.median - spread.least) for spread in spreads],
            [factor * (spread.most - spread.median) for spread in spreads],
        ]
        axis.barh(names, middles, xerr=ends, color="#7aa6c2", capsize=3, label="measured")
        if predicted is not None:
            axis.plot([factor * value for value in predicted], names, "k|", markersize=14, label="predicted")
        axis.set_xlabel(label)
        axis.invert_yaxis()
        if axis is axes[0]:
            axis.legend(frameon=False)
        else:
            axis.set_yticklabels([])
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
