"""Plots what each kind took as bars. Needs matplotlib, of the extra `simulation`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot

from .measurement import MeasuredSpread, MeasurementRow


def plot(rows: Sequence[MeasurementRow], path: Path, title: str) -> None:
    """Seconds, joules and peak memory of each kind that was made, with the predictions. Raises OSError."""
    complete = [row for row in rows if row.runs]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
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
    pyplot.close(figure)
