"""Draws a partition: each client where they are few, distributions where they are many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .figures import PartitionShape

FEW = 50  # clients that are shown one by one
NAMED = 25  # classes whose names fit beside an axis
LARGEST = 220.0  # points squared, of the largest bubble
COLOUR, OTHER, INK, FAINT = "#0072b2", "#d55e00", "#1b2430", "#d3d9e0"
OF_GROUPS = (COLOUR, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f")

LOOK = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.axisbelow": True,
    "grid.color": FAINT,
}


def draw(about: PartitionShape, labels: Sequence[str], title: str, path: Path) -> None:
    """Writes the picture as PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK):
        height = 2.6 + 0.24 * min(len(labels), NAMED) if len(about.sizes) <= FEW else 6.0
        figure = Figure(figsize=(10, height), layout="constrained")
        if len(about.sizes) <= FEW:
            _each_client(figure, about, labels)
        else:
            _distributions(figure, about, labels)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        figure.savefig(path, format="png", dpi=130)


def _each_client(figure: Any, about: PartitionShape, labels: Sequence[str]) -> None:
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1, 0.6 + 0.2 * min(len(labels), NAMED)))
    clients = np.arange(len(about.sizes))
    colours = np.full(len(clients), COLOUR)
    for name, colour, members in _groups(about):
        colours[members] = colour
        top.bar(clients[members], about.sizes[members], color=colour, width=0.7, label=name)
    _legend(top, about)
    top.set(ylabel="samples")
    top.grid(axis="y")
    if len(labels) <= NAMED:
        _bubbles(bottom, about.counts, colours)
    else:
        _map(figure, bottom, about.counts)
    _classes(bottom.yaxis, labels)
    bottom.set(xlabel="client", ylabel="" if len(labels) <= NAMED else "class")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    bottom.set_xlim(-0.7, len(clients) - 0.3)


def _groups(about: PartitionShape) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """Name, colour and clients, bool (k,), of each group of the fleet; one of all clients without groups."""
    groups = np.array(about.groups or [""] * len(about.sizes))
    names = sorted(set(about.groups)) or [""]
    return [(name, OF_GROUPS[n % len(OF_GROUPS)], groups == name) for n, name in enumerate(names)]


def _legend(axes: Any, about: PartitionShape) -> None:
    if about.groups:
        axes.legend(title="group of the fleet", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _bubbles(axes: Any, counts: NDArray[np.int64], colours: NDArray[Any]) -> None:
    """Draws a bubble for each client and class: its area is the samples; `colours` (k,) by client."""
    client, label = np.nonzero(counts)
    room = min(1.0, 22 / max(len(counts), 1))  # bubbles of neighbours do not hide each other
    areas = counts[client, label] / counts.max() * LARGEST * room
    axes.scatter(client, label, s=areas, color=colours[client], linewidths=0)
    axes.set_title(f"samples of each class: an area; the largest is {counts.max():,}")
    axes.grid(linewidth=0.5)
    axes.set_ylim(counts.shape[1] - 0.4, -0.6)


def _map(figure: Any, axes: Any, counts: NDArray[np.int64]) -> None:
    shades = axes.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest")
    figure.colorbar(shades, ax=axes, label="samples", pad=0.01)
    axes.set_title("samples of each class")


def _classes(axis: Any, labels: Sequence[str]) -> None:
    if len(labels) <= NAMED:
        axis.set_ticks(range(len(labels)), labels)


def _distributions(figure: Any, about: PartitionShape, labels: Sequence[str]) -> None:
    axes = figure.subplots(2, 2)
    _sizes(axes[0, 0], about.sizes)
    span = np.linspace(1, len(labels), 41) if len(labels) > 1 else 10
    _histogram(axes[0, 1], about.effective, span, "effective number of classes of a client")
    _histogram(
        axes[1, 0],
        about.distance,
        np.linspace(0, 1, 41),
        "distance of its labels from all (0 alike, 1 apart)",
    )
    _used(axes[1, 1], about, labels)


def _sizes(axes: Any, sizes: NDArray[np.int64]) -> None:
    """A histogram of sizes in whole numbers, on a log scale where the largest is far from the smallest."""
    low, high = int(sizes.min()), int(sizes.max())
    bins: Any
    if high > 20 * low:
        bins = np.unique(np.round(np.geomspace(low, high + 1, 41))) - 0.5
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    elif high - low <= 40:
        bins = np.arange(low, high + 2) - 0.5
    else:
        bins = np.linspace(low - 0.5, high + 0.5, 41)
    _histogram(axes, sizes, bins, "samples of a client")
    if low == high:
        axes.set_xlim(low - 3, high + 3)
        axes.xaxis.get_major_locator().set_params(integer=True)


def _histogram(axes: Any, values: NDArray[Any], bins: Any, name: str) -> None:
    axes.hist(values, bins, color=COLOUR)
    middle = float(np.median(values))
    axes.axvline(middle, color=OTHER, linewidth=1.5)
    axes.set_title(f"median {middle:.3g}", color=OTHER, loc="right", fontweight="normal")
    axes.set(xlabel=name, ylabel="clients")
    axes.grid(axis="y")


def _used(axes: Any, about: PartitionShape, labels: Sequence[str]) -> None:
    """Draws the samples of each class that all clients hold together."""
    below = np.zeros(len(labels))
    for name, colour, members in _groups(about):
        heights = about.counts[members].sum(0)
        axes.bar(range(len(labels)), heights, bottom=below, color=colour, label=name)
        below += heights
    _legend(axes, about)
    axes.set(ylabel="samples with clients, together")
    axes.grid(axis="y")
    if len(labels) <= NAMED:
        axes.set_xticks(range(len(labels)), labels, **_turned(labels))
    else:
        axes.set_xlabel("class")


def _turned(labels: Sequence[str]) -> dict[str, Any]:
    """Turns long names by an angle, so that they end at their tick."""
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
