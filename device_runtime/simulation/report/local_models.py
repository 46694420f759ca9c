"""Draws how far local models drift apart and what they predict: thesis 002, figures 6.7-6.9 and 4.4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.compare.figures import FinishedRun
from device_runtime.simulation.metrics.probes import PredictionHeatMap, ProbeLine

from .canvas import ComparedRuns, Drawing, panels, stroke

MAP = "cividis"
"""A colour map with even steps for any colour vision."""
MOST_KINDS = 4
MOST_VECTORS = 30
"""The most classes of a heat map that is drawn as vectors, cell by cell; larger ones are rasterized."""


def drift(compared: ComparedRuns) -> Drawing | None:
    """Draws the mean CKA over pairs by round, in a panel for each level; None if no models were compared."""
    levels = _levels(compared)
    if not levels:
        return None
    figure, axes = panels(1, len(levels), 3.3, sharey=True)
    for on, level in zip(axes[0], levels, strict=True):
        for policy in compared.policies:
            _means(on, policy, [_by_round(run, level) for run in compared.of(policy)])
        on.set(title=_of_level(level), xlabel="round", ylim=(None, 1.02))
        on.set_xticks(sorted({probe.round for run in compared.runs for probe in run.probes}))
    axes[0, 0].set_ylabel("linear CKA, mean over pairs")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    text = (
        "How alike the features of up to ten locally updated models are on the same test samples: 1 is equal "
        "but for rotation and scale, less is drift. Only updates of more than the head are compared."
    )
    return Drawing("drift", "Drift of local models", text, figure)


def similarity(compared: ComparedRuns) -> Drawing | None:
    """Draws the CKA of every pair of models in the last probed round of each policy's first seed."""
    lines = {policy: line for policy in compared.policies if (line := _last_compared(compared.of(policy)[0]))}
    if not lines:
        return None
    levels = list(next(iter(lines.values())).cka)
    figure, axes = panels(len(levels), len(lines), 0.5 + 2.7 * len(levels))
    drawn = None
    lowest = min(_floor(line) for line in lines.values())
    for column, (policy, line) in enumerate(lines.items()):
        for row, level in enumerate(levels):
            on = axes[row, column]
            drawn = on.pcolormesh(_matrix(line.cka[level]), cmap=MAP, vmin=lowest, vmax=1, edgecolors="face")
            title = f"{policy}\nround {line.round}" if row == 0 else ""
            _square(on, title, [str(n + 1) for n in range(len(line.devices))])
            on.set_ylabel(_of_level(level) if column == 0 else "")
    figure.colorbar(drawn, ax=axes, label="linear CKA", shrink=0.8)
    text = "Every local model against every other of the same round, numbered; brighter is more alike."
    return Drawing("similarity", "Similarity of local models", text, figure)


def predictions(compared: ComparedRuns) -> Drawing | None:
    """Draws the mean logits of one local model of each kind: stripes are a bias to its own classes."""
    heats = _heats(compared)
    if not heats:
        return None
    columns = max(2, len(heats))
    figure, axes = panels(1, columns, 9.0 / columns * 0.86 + 0.4)
    for on, heat in zip(axes[0], heats, strict=False):
        matrix = _matrix(heat.matrix)
        drawn = on.pcolormesh(matrix, cmap=MAP, edgecolors="face", rasterized=len(matrix) > MOST_VECTORS)
        _square(on, f"{heat.kind}, {heat.device}", compared.labels)
        on.set_xlabel("said of")
        figure.colorbar(drawn, ax=on, shrink=0.75, label="mean logit")
    axes[0, 0].set_ylabel("true class")
    for unused in axes[0, len(heats) :]:
        unused.set_visible(False)
    text = (
        "The mean logit that test samples of each class (rows) are given for each class (columns), by the "
        "model that one device made of the base with each kind of update. Stripes: a bias to what it has."
    )
    return Drawing("predictions", "What local models say of each class", text, figure)


def _levels(compared: ComparedRuns) -> list[str]:
    levels = [level for run in compared.runs for probe in run.probes for level in probe.means]
    return list(dict.fromkeys(levels))


def _by_round(run: FinishedRun, level: str) -> dict[int, float]:
    means = {probe.round: probe.means.get(level) for probe in run.probes}
    return {number: value for number, value in means.items() if value is not None}


def _means(on: Any, policy: str, runs: Sequence[dict[int, float]]) -> None:
    rounds = sorted({number for run in runs for number in run})
    if not rounds:
        return
    look = stroke(policy)
    values = np.array([[run.get(number, np.nan) for number in rounds] for run in runs])
    on.plot(
        rounds,
        np.nanmean(values, 0),
        marker=look.marker,
        color=look.colour,
        linestyle=look.dashes,
        label=policy,
    )
    if len(runs) > 1:
        low, high = np.nanmin(values, 0), np.nanmax(values, 0)
        on.fill_between(rounds, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _last_compared(run: FinishedRun) -> ProbeLine | None:
    return next((probe for probe in reversed(run.probes) if probe.cka), None)


def _heats(compared: ComparedRuns) -> list[PredictionHeatMap]:
    """The heat maps of the middle probed round, of the policy that has the most kinds."""
    probes = [compared.of(policy)[0].probes for policy in compared.policies]
    middle = [lines[len(lines) // 2] for lines in probes if lines]
    best = max(middle, key=lambda line: len(line.heat), default=None)
    return list(best.heat[:MOST_KINDS]) if best else []


def _matrix(rows: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    return np.array([[np.nan if value is None else value for value in row] for row in rows], np.float64)


def _floor(line: ProbeLine) -> float:
    """The lowest CKA, rounded down to a tenth, at most 0.9."""
    least = min(float(np.nanmin(_matrix(matrix))) for matrix in line.cka.values())
    return float(np.floor(10 * min(least, 0.9)) / 10)


def _square(on: Any, title: str, names: Sequence[str]) -> None:
    on.set_aspect("equal")
    on.invert_yaxis()
    on.set_title(title, fontsize=9)
    on.grid(visible=False)
    step = -(-len(names) // 12)
    ticks = range(0, len(names), step)
    short = [names[tick][:8] for tick in ticks]
    on.set_xticks(
        [t + 0.5 for t in ticks], short, fontsize=7.5, rotation=90 if max(map(len, short)) > 2 else 0
    )
    on.set_yticks([t + 0.5 for t in ticks], short, fontsize=7.5)


def _of_level(level: str) -> str:
    return "features the head takes" if level == "head" else f"level {level}"
