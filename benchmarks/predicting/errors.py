"""Runs as figures: how far predictions were off, and how near what was let through came to its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tabulate import tabulate

from .device import Seen


@dataclass(frozen=True)
class Cell:
    """The rounds of one run. `died`: why there is none."""

    model: str
    quota: float
    cap_mb: float
    kind: str
    repeat: int
    rounds: tuple[Seen, ...]
    died: str = ""


@dataclass(frozen=True)
class Errors:
    """|predicted - measured| / measured of time and peak memory, as medians over runs.

    first: in the first round. then: in the last round.
    """

    first_s: float
    then_s: float
    first_bytes: float
    then_bytes: float

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Errors | None:
        updates = [
            cell.rounds for cell in cells if cell.rounds and all(round_.has_update for round_ in cell.rounds)
        ]
        if not updates:
            return None
        return cls(
            median(_off(rounds[0].predicted_s, rounds[0].seconds) for rounds in updates),
            median(_off(rounds[-1].predicted_s, rounds[-1].seconds) for rounds in updates),
            median(_off(rounds[0].predicted_bytes, rounds[0].peak_bytes) for rounds in updates),
            median(_off(rounds[-1].predicted_bytes, rounds[-1].peak_bytes) for rounds in updates),
        )


def _off(predicted: float, measured: float) -> float:
    return abs(predicted - measured) / measured


def table(cells: Sequence[Cell]) -> str:
    """Errors by model and kind, time by quota; and over all."""
    quotas = sorted({cell.quota for cell in cells}, reverse=True)
    rows = []
    for model in dict.fromkeys(cell.model for cell in cells):
        of_model = [cell for cell in cells if cell.model == model]
        for kind in dict.fromkeys(cell.kind for cell in of_model):
            of_kind = [cell for cell in of_model if cell.kind == kind]
            rows.append([model, kind, *_row(of_kind, quotas)])
        rows.append([model, "all", *_row(of_model, quotas)])
    rows.append(["all", "all", *_row(cells, quotas)])
    times = [f"{quota:.0%}: first, then" for quota in quotas]
    headers = ["model", "kind", *times, "memory: first, then"]
    return tabulate(rows, headers, disable_numparse=True)


def _row(cells: Sequence[Cell], quotas: Sequence[float]) -> list[str]:
    by_quota = [Errors.of([cell for cell in cells if cell.quota == quota]) for quota in quotas]
    whole = Errors.of(cells)
    time = [f"{errors.first_s:.0%}, {errors.then_s:.0%}" if errors else "" for errors in by_quota]
    return [*time, f"{whole.first_bytes:.0%}, {whole.then_bytes:.0%}" if whole else ""]


def fits(cells: Sequence[Cell]) -> Iterator[str]:
    """What came of what was let through, and how near it came to its limit."""
    rounds = [(cell, outcome) for cell in cells for outcome in cell.rounds]
    tried = [(cell, outcome) for cell, outcome in rounds if outcome.tried]
    done = sum(outcome.has_update for _, outcome in rounds)
    died = sum(bool(cell.died) for cell in cells)
    yield (
        f"{len(rounds)} rounds: {done} made, {len(rounds) - len(tried)} refused before anything was begun, "
        f"{len(tried) - done} given up; {died} processes died"
    )
    if tried:
        cell, worst = max(tried, key=lambda pair: pair[1].peak_bytes / pair[1].limit_bytes)
        yield (
            f"nearest to its limit of those let through: {worst.peak_bytes / worst.limit_bytes:.1%} "
            f"({mb(worst.peak_bytes)} of {mb(worst.limit_bytes)} MB: {cell.kind}, {cell.model}, "
            f"cap {cell.cap_mb:g} MB)"
        )
        cell, worst = max(tried, key=lambda pair: pair[1].peak_bytes / pair[1].predicted_bytes)
        yield (
            f"most beyond its prediction: {worst.peak_bytes / worst.predicted_bytes:.1%} "
            f"({mb(worst.peak_bytes)} of {mb(worst.predicted_bytes)} MB: {cell.kind}, {cell.model})"
        )
    for cell in cells:
        if cell.died:
            yield f"died: {line(cell)}"


def line(cell: Cell) -> str:
    """Predicted/measured of each round."""
    rounds = ", ".join(
        f"{outcome.predicted_s:.3f}/{outcome.seconds:.3f} s "
        f"{mb(outcome.predicted_bytes)}/{mb(outcome.peak_bytes)} of {mb(outcome.limit_bytes)} MB"
        for outcome in cell.rounds
    )
    why = cell.died or next((outcome.why for outcome in cell.rounds if outcome.why), "")
    return f"{cell.model} {cell.quota:.0%} {cell.cap_mb:g} MB {cell.kind}: {rounds} {why}"


def mb(size: int) -> str:
    return f"{size / 1e6:.0f}"


def plot(cells: Sequence[Cell], path: Path) -> None:
    """First rounds and last, predicted against measured; seconds on logarithmic axes. Raises OSError."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    complete = [cell for cell in cells if cell.rounds and all(outcome.has_update for outcome in cell.rounds)]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for place, name, colour in ((0, "first round", "#c26d5a"), (-1, "last round", "#4a7fa5")):
        rounds = [cell.rounds[place] for cell in complete]
        style = {"s": 14, "alpha": 0.7, "color": colour, "label": name, "linewidths": 0}
        axes[0].scatter(
            [outcome.seconds for outcome in rounds], [outcome.predicted_s for outcome in rounds], **style
        )
        peaks = (
            [outcome.peak_bytes / 1e6 for outcome in rounds],
            [outcome.predicted_bytes / 1e6 for outcome in rounds],
        )
        axes[1].scatter(*peaks, **style)
    for axis, unit, scale in zip(axes, ("seconds", "peak MB"), ("log", "linear"), strict=True):
        axis.set(xscale=scale, yscale=scale, xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
        low, high = min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])
        for factor, dashes in ((1.0, "-"), (1.2, ":"), (1 / 1.2, ":")):
            axis.plot([low, high], [factor * low, factor * high], dashes, color="#888", linewidth=0.8)
        axis.set(xlim=(low, high), ylim=(low, high))
        axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
