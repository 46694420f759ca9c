"""Which updates of a round are of one sort, and can be compared with each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.training.device_half import TrainedUpdate
from device_runtime.strategies.training.tensor_update import FEW_SHOT
from device_runtime.strategies.zeroth_order import ZerothOrder

from . import by_class
from .norm_clip import clipped, length_of, norms
from .settings import FEW
from .spool import Spool, SpooledUpdate, Start, signature, start_in

FROM_ZERO = {ZerothOrder.name: frozenset({"g"}), ClassMeans.name: frozenset({by_class.MEANS})}
"""Tensors that are no change of the base, by kind: they are compared as they are."""


@dataclass(frozen=True)
class Sorted:
    """An update as it is compared with others: with those of the same `sort`, from `start`."""

    sort: Hashable
    update: TrainedUpdate
    start: Start


def sorted_out(contribution: TrainedUpdate, member: str, base: Tensors) -> Sorted:
    """By kind, the member of the family that it is of, and its tensors; scalars also by the round whose
    directions they are along. `base` is the member's.
    """
    kind = contribution.kind
    update = by_class.as_means(contribution) if kind == ClassMeans.name else contribution
    start = start_in(base, FEW_SHOT, FROM_ZERO.get(kind, frozenset()))
    along = contribution.late if kind == ZerothOrder.name else None
    return Sorted((kind, member, along, signature(update.tensors, start)), update, start)


# FROM named: Devices in a note for people: a few by name, and how many more.

MOST = 4


def named(devices: Sequence[str], kind: str) -> str:
    """And what they sent."""
    more = f" and {len(devices) - MOST} more" if len(devices) > MOST else ""
    return f"{', '.join(devices[:MOST])}{more} ({kind})"


def of(rows: Sequence[SpooledUpdate]) -> str:
    """Whose these are."""
    return named([row.device for row in rows], rows[0].told.kind)


# FROM few: Bounds for updates of a sort that is too small to compare: of fewer than three devices.
#
# What such an update says cannot be told from a lie, but its length can be seen. It is shortened to three
# times
# the median length of the round's updates of all sorts, one for each device (its latest), and to the length
# of
# the base. In a round of fewer than three devices only the base bounds it. Scalars of absolute size are
# held to
# those whose step is as long as the base; relative ones are bounded by `directions.step_size`. A class mean
# is
# held to three times the median length of all class means of the round.

TIMES = 3.0
"""Times the median length."""
LEAST = 1.0
"""The length of a base of zeros, from which nothing could be learnt else."""


def length_of_base(base: Tensors) -> float:
    """Euclidean, over all tensors."""
    squares = (float(np.square(value.astype(np.float64)).sum()) for value in base.values())
    return max(LEAST, sqrt(sum(squares)))


def usual_length(spools: Iterable[Spool]) -> float:
    """The median length of changes of the base over the round's devices; infinite with too few devices."""
    latest: dict[str, tuple[float, float]] = {}
    for spool in spools:
        for row, length in zip(spool.rows, norms(spool), strict=True):
            made_for = inf if row.told.late is None else float(row.told.late.round)
            latest[row.device] = max(latest.get(row.device, (0.0, 0.0)), (made_for, float(length)))
    lengths = [length for _, length in latest.values()]
    return float(np.median(lengths)) if len(lengths) >= FEW else inf


def shorten(spool: Spool, bound: float) -> str:
    """Shorten updates that are longer than `bound`. Returns what was done, empty where nothing was."""
    lengths, far = norms(spool), list[SpooledUpdate]()
    for row, length in zip(spool.rows, lengths, strict=True):
        if length > bound:
            spool.put(row, clipped(spool.values(row), spool.starts, float(length), bound))
            far.append(row)
    return f"{of(far)} shortened from at most {lengths.max():.3g} to {bound:.3g}" if far else ""


def scalar_bound(kind: ZerothOrder, base_length: float, values: int) -> float:
    """The length of scalars whose step is as long as the base of so many `values`: lr |g| sqrt(values) / n,
    as random directions of n scalars are at right angles.
    """
    if kind.sizing == "relative":
        return inf
    return base_length * kind.num_z / (kind.lr * sqrt(max(1, values)))


def shorten_class_means(spool: Spool) -> str:
    """Shorten the means of classes that fewer than three devices have. Returns as `shorten`."""
    classes = by_class.classes(spool)
    lengths = [
        length_of(spool.values(row, within.start, within.stop)) for within, rows in classes for row in rows
    ]
    if len(lengths) < FEW:
        return ""
    bound, far = TIMES * float(np.median(lengths)), list[SpooledUpdate]()
    for within, rows in classes:
        for row in rows if len(rows) < FEW else ():
            mean = spool.values(row, within.start, within.stop)
            if length_of(mean) > bound:
                mean = clipped(mean, np.zeros_like(mean), length_of(mean), bound)
                spool.put(row, mean, within.start)
                far.append(row)
    named = [row for i, row in enumerate(far) if row not in far[:i]]
    return f"means of {of(named)} shortened to {bound:.3g}" if far else ""


def is_change(spool: Spool) -> bool:
    """Whether its updates are changes of the base."""
    return spool.rows[0].told.kind not in (ZerothOrder.name, ClassMeans.name)
