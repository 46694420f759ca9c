"""Measures of how uneven a partition is, their tables, and pictures of them.

A picture has each client where they are few, distributions where they are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PartitionShape:
    """Measures of a partition into k devices.

    counts: (k, classes), the samples of each class on each device.
    samples: the number of samples of the whole data set.
    sizes: (k,), the number of samples of each device.
    classes: (k,), the number of classes of which it has any.
    effective: (k,), its effective number of classes: the exponential of its label distribution's entropy.
    distance: (k,), total variation between its label distribution and that of all samples given out, 0
    (alike) to 1; twice this is what Zhao et al. 2018 (arXiv:1806.00582) call the earth mover's distance.
    groups: (k,), its group of the fleet; empty where groups have nothing to do with the data.
    """

    counts: Ints
    samples: int
    sizes: Ints
    classes: Ints
    effective: Floats
    distance: Floats
    groups: tuple[str, ...] = ()


NAMED = 12
"""The most classes that a row of the table names."""


def shape(y: Ints, parts: Sequence[Ints], labels: int, groups: Sequence[str] = ()) -> PartitionShape:
    """Measures the division of labels `y` (n,), from 0 to labels - 1, into `parts`, none of them empty."""
    sizes = np.array([len(part) for part in parts], np.int64)
    owners = np.repeat(np.arange(len(parts)), sizes)
    cells = owners * labels + y[np.concatenate(parts)]
    counts = np.bincount(cells, minlength=len(parts) * labels).reshape(len(parts), labels)
    shares = counts / sizes[:, None]
    entropy = -(shares * np.log(np.where(counts, shares, 1.0))).sum(1)
    together = counts.sum(0) / counts.sum()
    distance = np.abs(shares - together).sum(1) / 2
    return PartitionShape(
        counts, len(y), sizes, (counts > 0).sum(1), np.exp(entropy), distance, tuple(groups)
    )


def table(about: PartitionShape) -> list[tuple[str, ...]]:
    """Table rows of: measure, least, median, most, mean."""
    rows = (
        ("samples of a client", about.sizes, "{:g}"),
        ("classes of a client", about.classes, "{:g}"),
        ("effective classes", about.effective, "{:.2f}"),
        ("distance from all (0 to 1)", about.distance, "{:.3f}"),
    )
    return [
        (name, *(form.format(figure) for figure in (v.min(), np.median(v), v.max())), f"{v.mean():.3g}")
        for name, v, form in rows
    ]


def by_group(about: PartitionShape, labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Table rows of: group, its clients, their samples, their classes."""
    rows: list[tuple[str, ...]] = []
    for name in sorted(set(about.groups)):
        counts = about.counts[[group == name for group in about.groups]]
        classes = [label for label, count in zip(labels, counts.sum(0), strict=True) if count]
        what = ", ".join(classes) if len(classes) <= NAMED else f"{len(classes)} of {len(labels)}"
        rows.append((name, f"{len(counts):,}", f"{counts.sum():,}", what))
    return rows


FEW = 50  # clients that are shown one by one
NAMES_FIT = 25  # classes whose names fit beside an axis
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
        height = 2.6 + 0.24 * min(len(labels), NAMES_FIT) if len(about.sizes) <= FEW else 6.0
        figure = Figure(figsize=(10, height), layout="constrained")
        if len(about.sizes) <= FEW:
            _each_client(figure, about, labels)
        else:
            _distributions(figure, about, labels)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        figure.savefig(path, format="png", dpi=130)


def _each_client(figure: Any, about: PartitionShape, labels: Sequence[str]) -> None:
    top, bottom = figure.subplots(
        2, 1, sharex=True, height_ratios=(1, 0.6 + 0.2 * min(len(labels), NAMES_FIT))
    )
    clients = np.arange(len(about.sizes))
    colours = np.full(len(clients), COLOUR)
    for name, colour, members in _groups(about):
        colours[members] = colour
        top.bar(clients[members], about.sizes[members], color=colour, width=0.7, label=name)
    _legend(top, about)
    top.set(ylabel="samples")
    top.grid(axis="y")
    if len(labels) <= NAMES_FIT:
        _bubbles(bottom, about.counts, colours)
    else:
        _map(figure, bottom, about.counts)
    _classes(bottom.yaxis, labels)
    bottom.set(xlabel="client", ylabel="" if len(labels) <= NAMES_FIT else "class")
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
    if len(labels) <= NAMES_FIT:
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
    if len(labels) <= NAMES_FIT:
        axes.set_xticks(range(len(labels)), labels, **_turned(labels))
    else:
        axes.set_xlabel("class")


def _turned(labels: Sequence[str]) -> dict[str, Any]:
    """Turns long names by an angle, so that they end at their tick."""
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
