"""Draws how far local models drift apart and what they predict: thesis 002, figures 6.7-6.9 and 4.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.report.canvas import Drawing, panels, stroke

from .probes import ProbeLine

MAP = "cividis"
"""A colour map with even steps for any colour vision."""
MOST_KINDS = 4
MOST_VECTORS = 30
"""The most classes of a heat map that is drawn as vectors, cell by cell; larger ones are rasterized."""

Probed = Mapping[str, Sequence[ProbeLine]]
"""The probed rounds of each policy."""


def drift(probed: Probed) -> Drawing | None:
    """Draws the mean CKA over pairs by round, in a panel for each level; None if no models were compared."""
    lines = [line for of_policy in probed.values() for line in of_policy]
    levels = list(dict.fromkeys(level for line in lines for level in line.means))
    if not levels:
        return None
    figure, axes = panels(1, len(levels), 3.3, sharey=True)
    for on, level in zip(axes[0], levels, strict=True):
        for policy, of_policy in probed.items():
            means = {line.round: line.means[level] for line in of_policy if level in line.means}
            look = stroke(policy)
            style = {"marker": look.marker, "color": look.colour, "linestyle": look.dashes}
            on.plot(list(means), list(means.values()), label=policy, **style)
        on.set(title=_of_level(level), xlabel="round", ylim=(None, 1.02))
        on.set_xticks(sorted({line.round for line in lines}))
    axes[0, 0].set_ylabel("linear CKA, mean over pairs")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return Drawing("drift", "Drift of local models", "", figure)


def similarity(probed: Probed) -> Drawing | None:
    """Draws the CKA of every pair of models in the last probed round of each policy."""
    lines = {
        policy: next((line for line in reversed(of_policy) if line.cka), None)
        for policy, of_policy in probed.items()
    }
    compared = {policy: line for policy, line in lines.items() if line is not None}
    if not compared:
        return None
    levels = list(next(iter(compared.values())).cka)
    figure, axes = panels(len(levels), len(compared), 0.5 + 2.7 * len(levels))
    drawn = None
    least = min(float(np.nanmin(matrix)) for line in compared.values() for matrix in line.cka.values())
    lowest = float(np.floor(10 * min(least, 0.9)) / 10)
    for column, (policy, line) in enumerate(compared.items()):
        for row, level in enumerate(levels):
            on = axes[row, column]
            drawn = on.pcolormesh(line.cka[level], cmap=MAP, vmin=lowest, vmax=1, edgecolors="face")
            title = f"{policy}\nround {line.round}" if row == 0 else ""
            _square(on, title, [str(n + 1) for n in range(len(line.devices))])
            on.set_ylabel(_of_level(level) if column == 0 else "")
    figure.colorbar(drawn, ax=axes, label="linear CKA", shrink=0.8)
    return Drawing("similarity", "Similarity of local models", "", figure)


def predictions(probed: Probed, labels: Sequence[str]) -> Drawing | None:
    """Draws the mean logits of one local model of each kind: stripes are a bias to its own classes.

    They are those of the middle probed round, of the policy that has the most kinds.
    """
    middle = [lines[len(lines) // 2] for lines in probed.values() if lines]
    heats = max(middle, key=lambda line: len(line.heat)).heat[:MOST_KINDS] if middle else ()
    if not heats:
        return None
    columns = max(2, len(heats))
    figure, axes = panels(1, columns, 9.0 / columns * 0.86 + 0.4)
    for on, heat in zip(axes[0], heats, strict=False):
        rasterized = len(heat.matrix) > MOST_VECTORS
        drawn = on.pcolormesh(heat.matrix, cmap=MAP, edgecolors="face", rasterized=rasterized)
        _square(on, f"{heat.kind}, {heat.device}", labels)
        on.set_xlabel("predicted class")
        figure.colorbar(drawn, ax=on, shrink=0.75, label="mean logit")
    axes[0, 0].set_ylabel("true class")
    for unused in axes[0, len(heats) :]:
        unused.set_visible(False)
    return Drawing("predictions", "Mean logits of local models by class", "", figure)


def _square(on: Any, title: str, names: Sequence[str]) -> None:
    on.set_aspect("equal")
    on.invert_yaxis()
    on.set_title(title, fontsize=9)
    on.grid(visible=False)
    ticks: NDArray[np.int64] = np.arange(0, len(names), -(-len(names) // 12))
    short = [names[tick][:8] for tick in ticks]
    on.set_xticks(ticks + 0.5, short, fontsize=7.5, rotation=90 if max(map(len, short)) > 2 else 0)
    on.set_yticks(ticks + 0.5, short, fontsize=7.5)


def _of_level(level: str) -> str:
    return "features the head takes" if level == "head" else f"level {level}"
