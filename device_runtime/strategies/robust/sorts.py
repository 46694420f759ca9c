"""Groups a round's updates into comparable sorts, and bounds sorts that are too small to compare.

Nothing tells a false update from a true one in a sort of fewer than three devices (`settings.FEW`), but its
length can be seen. Such an update is shortened to three times the median length of the round's updates of all
sorts, one for each device (its latest), and to the length of the base. In a round of fewer than three devices
only the base bounds it. Scalars of absolute size are held to those whose step is as long as the base;
relative ones are bounded by `directions.step_size`. A class mean is held to three times the median length of
all class means of the round.
"""

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
from .norm_clip import clip_to_norm, length_of, norms
from .settings import LEAST_DEVICES
from .spool import Spool, SpooledUpdate, Start, signature, start_in

FROM_ZERO = {ZerothOrder.name: frozenset({"g"}), ClassMeans.name: frozenset({by_class.MEANS})}
"""By kind, the tensors that are no change of the base: they are compared as they are."""


@dataclass(frozen=True)
class Sorted:
    """An update to be compared with others of the same `sort`, by its change from `start`."""

    sort: Hashable
    update: TrainedUpdate
    start: Start


def sort_update(contribution: TrainedUpdate, member: str, base: Tensors) -> Sorted:
    """A contribution with its sort: its kind, the member of the family, and the names and shapes of tensors.

    For scalars, the round whose directions they are along too. `base` is the member's.
    """
    kind = contribution.kind
    update = by_class.as_means(contribution) if kind == ClassMeans.name else contribution
    start = start_in(base, FEW_SHOT, FROM_ZERO.get(kind, frozenset()))
    along = contribution.late if kind == ZerothOrder.name else None
    return Sorted((kind, member, along, signature(update.tensors, start)), update, start)


MOST = 4
"""Devices that a note names; of more it says how many."""


def device_list(devices: Sequence[str], kind: str) -> str:
    """Devices for a note that people read: a few names, how many more, and the kind they sent."""
    more = f" and {len(devices) - MOST} more" if len(devices) > MOST else ""
    return f"{', '.join(devices[:MOST])}{more} ({kind})"


def devices_of(rows: Sequence[SpooledUpdate]) -> str:
    """The devices of these updates, as `named`."""
    return device_list([row.device for row in rows], rows[0].told.kind)


TIMES = 3.0
"""The bound on lengths, in multiples of the median length."""
LEAST = 1.0
"""The smallest length of a base: a base of zeros could not learn anything otherwise."""


def length_of_base(base: Tensors) -> float:
    """The Euclidean norm over all tensors, at least LEAST."""
    squares = (float(np.square(value.astype(np.float64)).sum()) for value in base.values())
    return max(LEAST, sqrt(sum(squares)))


def usual_length(spools: Iterable[Spool]) -> float:
    """The median length of changes of the base over the round's devices; infinite for fewer than FEW."""
    latest: dict[str, tuple[float, float]] = {}
    for spool in spools:
        for row, length in zip(spool.rows, norms(spool), strict=True):
            made_for = inf if row.told.late is None else float(row.told.late.round)
            latest[row.device] = max(latest.get(row.device, (0.0, 0.0)), (made_for, float(length)))
    lengths = [length for _, length in latest.values()]
    return float(np.median(lengths)) if len(lengths) >= LEAST_DEVICES else inf


def shorten(spool: Spool, bound: float) -> str:
    """Shorten updates that are longer than `bound`. Returns a note for people, empty if there were none."""
    lengths, far = norms(spool), list[SpooledUpdate]()
    for row, length in zip(spool.rows, lengths, strict=True):
        if length > bound:
            spool.put(row, clip_to_norm(spool.values(row), spool.starts, float(length), bound))
            far.append(row)
    return f"{devices_of(far)} shortened from at most {lengths.max():.3g} to {bound:.3g}" if far else ""


def scalar_bound(kind: ZerothOrder, base_length: float, values: int) -> float:
    """The length |g| of scalars whose step is as long as the base; infinite for relative sizing.

    The step of n scalars on `values` weights is lr |g| sqrt(values) / n long, because random directions are
    nearly at right angles.
    """
    if kind.sizing == "relative":
        return inf
    return base_length * kind.num_z / (kind.lr * sqrt(max(1, values)))


def shorten_class_means(spool: Spool) -> str:
    """Shorten the means of classes that fewer than FEW devices have. Returns a note, as `shorten`."""
    classes = by_class.classes(spool)
    lengths = [
        length_of(spool.values(row, within.start, within.stop)) for within, rows in classes for row in rows
    ]
    if len(lengths) < LEAST_DEVICES:
        return ""
    bound, far = TIMES * float(np.median(lengths)), list[SpooledUpdate]()
    for within, rows in classes:
        for row in rows if len(rows) < LEAST_DEVICES else ():
            mean = spool.values(row, within.start, within.stop)
            if length_of(mean) > bound:
                mean = clip_to_norm(mean, np.zeros_like(mean), length_of(mean), bound)
                spool.put(row, mean, within.start)
                far.append(row)
    named = [row for i, row in enumerate(far) if row not in far[:i]]
    return f"means of {devices_of(named)} shortened to {bound:.3g}" if far else ""


def is_change(spool: Spool) -> bool:
    """Whether the updates of this sort are changes of the base."""
    return spool.rows[0].told.kind not in (ZerothOrder.name, ClassMeans.name)
