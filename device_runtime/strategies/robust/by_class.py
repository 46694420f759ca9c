"""Robust rules for class means: compares the mean features of a class over the devices that have it.

Sums of features grow with the number of samples, and devices have different classes, so neither sums nor
distances between devices show which device lies. The rules for values (median, trimmed mean, value-clip by
the spread) are therefore applied to each class's mean over the devices that have the class, and norm-clip
shortens a class's mean to the median length of these. The median replaces Krum, which would pick the device
with the most common classes, and the weighted median, because weights are of devices and not of classes.
Counts are claimed by devices: a count above the class's median counts as the median, and all counts of a
device together as at most the samples of the round's median device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.interface.device_half import Update

from . import rules
from .rules import Robust, bound_of, clip_to_norm, length_of
from .spool import Spool, SpooledUpdate

MEANS = "means"
"""The name of a tensor of means, float32 (classes, width), that replaces `sums`."""


def as_means(update: Update) -> Update:
    """A contribution of class means with means in place of sums; 0 for a class that it does not have."""
    content = dict(update.tensors)
    counts = np.maximum(content["counts"], 1)[:, None]
    content[MEANS] = (content.pop("sums").astype(np.float64) / counts).astype(np.float32)
    return replace(update, tensors=content)


def as_sums(update: Update, most: NDArray[np.int32], most_samples: float) -> Update:
    """The inverse of `as_means`, with counts limited to `most` (classes,) by class and `most_samples` in all.

    Counts above the total are reduced in proportion; a class that has samples keeps at least one.
    """
    content = dict(update.tensors)
    counts = np.minimum(content["counts"], most)
    share = min(1.0, most_samples / max(1, int(counts.sum())))
    content["counts"] = np.maximum(np.rint(share * counts), counts > 0).astype(np.int32)
    sums = content.pop(MEANS).astype(np.float64) * content["counts"][:, None]
    return replace(update, tensors={**content, "sums": sums.astype(np.float32)})


def median_counts(spool: Spool) -> NDArray[np.int32]:
    """The median count of each class over the devices that have it, int32 (classes,); 0 if none has."""
    having = [column[column > 0] for column in counts_in(spool).T]
    return np.array([np.median(counts) if counts.size else 0 for counts in having]).astype(np.int32)


def apply_rule(
    spool: Spool, robust: Robust, rule: Callable[[Vector], Vector]
) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update with its values after the task's rule; `rule` maps (devices, values) to (values,)."""
    if robust.rule == "norm-clip":
        return shortened(spool, robust.clip_factor)
    if robust.rule == "value-clip":
        return clip_values(spool, robust.clip_factor)
    middle = rule_means(spool, rule)
    return ((row, middle) for row in spool.rows)


def rule_means(spool: Spool, rule: Callable[[Vector], Vector]) -> Vector:
    """Every class's mean by the rule, flat; 0 for a class that no device has."""
    middle = np.zeros_like(spool.starts)
    for within, rows in classes(spool):
        for where, values in spool.blocks(rows, within):
            middle[where] = rule(values)
    return middle


def shortened(spool: Spool, factor: float) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update with each mean shortened to at most `factor` times the class's median length."""
    bounds = []
    for within, rows in classes(spool):
        lengths = [length_of(spool.values(row, within.start, within.stop)) for row in rows]
        bounds.append((within, bound_of(lengths, None, factor)))
    for row in spool.rows:
        values = spool.values(row)
        for within, bound in bounds:
            mean = values[within]
            values[within] = clip_to_norm(mean, np.zeros_like(mean), length_of(mean), bound)
        yield row, values


def clip_values(spool: Spool, factor: float) -> Iterator[tuple[SpooledUpdate, Vector]]:
    """Every update with the values of each mean clipped to `factor` spreads around the class's median."""
    low, high = np.zeros_like(spool.starts), np.zeros_like(spool.starts)
    for within, rows in classes(spool):
        for where, values in spool.blocks(rows, within):
            about = rules.bounds(values, factor)
            low[where], high[where] = about.middle - about.reach, about.middle + about.reach
    for row in spool.rows:
        yield row, np.clip(spool.values(row), low, high)


def classes(spool: Spool) -> list[tuple[slice, list[SpooledUpdate]]]:
    """The place of each class's mean, and the updates that have the class; without classes that none has."""
    counts = counts_in(spool)
    labels = counts.shape[1]
    width = spool.starts.size // labels
    having = [[row for row, own in zip(spool.rows, counts, strict=True) if own[c]] for c in range(labels)]
    return [(slice(c * width, (c + 1) * width), rows) for c, rows in enumerate(having) if rows]


def counts_in(spool: Spool) -> NDArray[Any]:
    """The counts that every device claims, (devices, classes)."""
    return np.stack([spool.rest(row)["counts"] for row in spool.rows])
