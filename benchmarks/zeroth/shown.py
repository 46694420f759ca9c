"""What cells of accuracies show: where each ended, what the goals are held against, and the curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    from .accuracy import Cell

THESIS, NAIVE, OURS, FIRST_ORDER = "fedmezo", "distmezo-naive", "ours", "first-order"
Point = Mapping[str, float]


@dataclass(frozen=True)
class Done:
    """One run, and what was reached by when."""

    cell: Cell
    points: Sequence[Point]

    @property
    def panel(self) -> tuple[str, str, str, int, str]:
        """What it has in common with those it is held against."""
        cell = self.cell
        return (cell.data, cell.subset, cell.partition, cell.clients, f"{cell.share:.0%}")

    @property
    def up(self) -> float:
        """Bytes of a client."""
        return self.points[-1]["up"]


PANEL = ("data", "subset", "partition", "clients", "in a round")


def ends(done: Iterable[Done]) -> str:
    """A table of where each ended: mean and standard deviation over the seeds."""
    together: dict[tuple[object, ...], list[Done]] = {}
    for run in done:
        together.setdefault((*run.panel, run.cell.method, run.cell.rounds), []).append(run)
    rows = [
        (
            *key,
            _spread([100 * each.points[-1]["accuracy"] for each in ones]),
            f"{mean(each.points[-1]['passes'] for each in ones):.0f}",
            f"{mean(each.up for each in ones) / 1000:.1f}",
            f"{mean(each.points[-1]['down'] for each in ones) / 1000:.1f}",
        )
        for key, ones in sorted(together.items(), key=lambda item: str(item[0]))
    ]
    head = (*PANEL, "method", "rounds", "accuracy, %", "passes", "kB up", "kB down")
    return tabulate(rows, head, tablefmt="github")


def goals(done: Iterable[Done]) -> str:
    """Of each panel: how soon ours has what FedMeZO ends with, and what first order has of as many passes.

    FedMeZO begins from a fresh head; the others are those of the panel that begin from class means, the best
    of several. First order is shown at the evaluation whose passes are nearest to ours, and at its end. Means
    over the seeds; the last column has the fewest of a method.
    """
    panels: dict[tuple[str, str, str, int, str], dict[str, list[Done]]] = {}
    for run in done:
        panels.setdefault(run.panel, {}).setdefault(run.cell.method, []).append(run)
    rows = []
    for panel, methods in sorted(panels.items(), key=str):
        curves = {method: _curve(ones) for method, ones in methods.items()}
        ours, first, naive = (_best(curves, f"+{name}") for name in (OURS, FIRST_ORDER, NAIVE))
        if THESIS in curves and ours in curves and first in curves:
            verdicts = _verdicts(curves[THESIS], curves[ours], curves[first])
            end = f"{100 * curves[naive][-1]['accuracy']:.1f}" if naive in curves else ""
            seeds = min(len(methods[method]) for method in (THESIS, ours, first))
            rows.append((*panel, *verdicts, end, str(seeds)))
    head = ("FedMeZO, %", "passes", "ours has it by", "ours, %", "passes", "first order then", "at its end")
    names = (*PANEL, *head, "DistMeZO-naive", "seeds")
    return tabulate(rows, names, tablefmt="github", disable_numparse=True)


def _verdicts(thesis: list[Point], ours: list[Point], first: list[Point]) -> tuple[str, ...]:
    goal, whole = thesis[-1]["accuracy"], ours[-1]["passes"]
    soon = next((f"{point['passes']:.0f}" for point in ours if point["accuracy"] >= goal), "never")
    alike = min(first, key=lambda point: abs(point["passes"] - whole))
    return (
        f"{100 * goal:.1f}",
        f"{thesis[-1]['passes']:.0f}",
        soon,
        f"{100 * ours[-1]['accuracy']:.1f}",
        f"{whole:.0f}",
        f"{100 * alike['accuracy']:.1f} ({alike['passes']:.0f})",
        f"{100 * first[-1]['accuracy']:.1f} ({first[-1]['passes']:.0f})",
    )


def _curve(ones: Sequence[Done]) -> list[Point]:
    """The mean of runs that differ in their seed."""
    return [
        {name: mean(point[name] for point in points) for name in ("passes", "accuracy")}
        for points in zip(*(each.points for each in ones), strict=False)
    ]


def _best(curves: Mapping[str, list[Point]], name: str) -> str:
    """Of methods with this in their names, the one that ends highest; empty where there is none."""
    methods = (method for method in curves if name in method)
    return max(methods, key=lambda method: curves[method][-1]["accuracy"], default="")


def plot(done: Iterable[Done], path: Path) -> None:
    """Accuracy against passes, one line a cell's method, one panel for what is otherwise alike."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Done]] = {}
    for run in done:
        if run.cell.seed == 0:
            data, subset, partition, clients, share = run.panel
            title = f"{data} {subset}, {partition}, {clients} clients, {share}"
            panels.setdefault(title, []).append(run)
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for ax, (title, ones) in zip(axes[0], sorted(panels.items()), strict=True):
        for run in ones:
            passes, reached = ([point[name] for point in run.points] for name in ("passes", "accuracy"))
            ax.plot(passes, reached, label=run.cell.method)
        ax.set(title=title, xlabel="forward passes of each sample", ylabel="accuracy", xscale="log")
        ax.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _spread(values: list[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
