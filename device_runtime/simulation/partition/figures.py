"""Measures of how uneven a partition is, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
