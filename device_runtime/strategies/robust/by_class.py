"""Class means under a rule: devices are compared class by class, those that have it, by their mean features.

Sums of features grow with the samples behind them, and devices have different classes: neither sums nor
distances between devices say who lies. So the rules of values (median, trimmed mean, value-clip by the
spread) are applied to each class's mean over the devices that have the class, and norm-clip shortens a
class's mean to the median length of those. Krum, which would pick whoever has the commonest classes, and the
weighted median, as weights are of devices and not of classes, give way to the median. Counts are what devices
say: one above the median of those that have the class counts as that, and all of a device together as no more
than the samples of the round's median device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.training.device_half import TrainedUpdate

from . import coordinate_wise
from .norm_clip import bound_of, clipped, length_of
from .settings import Robust
from .spool import Spool, SpooledUpdate

MEANS = "means"
"""In place of `sums`, float32 (classes, width)."""


def as_means(update: TrainedUpdate) -> TrainedUpdate:
    """A contribution of class means with its means in place of its sums; 0 for a class it does not have."""
    content = dict(update.tensors)
    counts = np.maximum(content["counts"], 1)[:, None]
    content[MEANS] = (content.pop("sums").astype(np.float64) / counts).astype(np.float32)
    return replace(update, tensors=content)


def as_sums(update: TrainedUpdate, most: NDArray[np.int32], most_samples: float) -> TrainedUpdate:
    """The other way, with no more samples of a class than `most` (classes,), and `most_samples` in all.

    Those above are the same shares of fewer samples; a class that is there keeps one.
    """
    content = dict(update.tensors)
    counts = np.minimum(content["counts"], most)
    share = min(1.0, most_samples / max(1, int(counts.sum())))
    content["counts"] = np.maximum(np.rint(share * counts), counts > 0).astype(np.int32)
    sums = content.pop(MEANS).astype(np.float64) * content["counts"][:, None]
    return replace(update, tensors={**content, "sums": sums.astype(np.float32)})


def usual_counts(spool: Spool) -> NDArray[np.int32]:
    """The median count of each class, int32 (classes,), of those that have it; 0 where nobody has."""
    having = [column[column > 0] for column in counts_in(spool).T]
    return np.array([np.median(counts) if counts.size else 0 for counts in having]).astype(np.int32)


def ruled(
    spool: Spool, robust: Robust, rule: Callable[[Vector], Vector]
) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update as the rule of the task leaves it; `rule` is the one of values."""
    if robust.rule == "norm-clip":
        return shortened(spool, robust.clip_factor)
    if robust.rule == "value-clip":
        return held(spool, robust.clip_factor)
    middle = middles(spool, rule)
    return ((row, middle) for row in spool.rows)


def middles(spool: Spool, rule: Callable[[Vector], Vector]) -> Vector:
    """The rule's value of every class's mean, flat; 0 for a class that nobody has."""
    middle = np.zeros_like(spool.starts)
    for within, rows in classes(spool):
        for where, values in spool.blocks(rows, within):
            middle[where] = rule(values)
    return middle


def shortened(spool: Spool, factor: float) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update with no mean longer than `factor` times the class's median length."""
    bounds = []
    for within, rows in classes(spool):
        lengths = [length_of(spool.values(row, within.start, within.stop)) for row in rows]
        bounds.append((within, bound_of(lengths, None, factor)))
    for row in spool.rows:
        values = spool.values(row)
        for within, bound in bounds:
            mean = values[within]
            values[within] = clipped(mean, np.zeros_like(mean), length_of(mean), bound)
        yield row, values


def held(spool: Spool, factor: float) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update with the values of each mean within `factor` spreads of those of its class."""
    low, high = np.zeros_like(spool.starts), np.zeros_like(spool.starts)
    for within, rows in classes(spool):
        for where, values in spool.blocks(rows, within):
            about = coordinate_wise.bounds(values, factor)
            low[where], high[where] = about.middle - about.reach, about.middle + about.reach
    for row in spool.rows:
        yield row, np.clip(spool.values(row), low, high)


def classes(spool: Spool) -> list[tuple[slice, list[SpooledUpdate]]]:
    """Where each class's mean lies, and who has the class; classes that nobody has are left out."""
    counts = counts_in(spool)
    labels = counts.shape[1]
    width = spool.starts.size // labels
    having = [[row for row, own in zip(spool.rows, counts, strict=True) if own[c]] for c in range(labels)]
    return [(slice(c * width, (c + 1) * width), rows) for c, rows in enumerate(having) if rows]


def counts_in(spool: Spool) -> NDArray[Any]:
    """What every device says that it has of each class, (devices, classes)."""
    return np.stack([spool.rest(row)["counts"] for row in spool.rows])
