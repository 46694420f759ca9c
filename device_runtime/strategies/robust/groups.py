"""Groups a round's comparable updates, and bounds the updates of groups that are too small to compare.

In a group of fewer than three devices (`settings.LEAST_DEVICES`) a false update cannot be told from a true
one, but its length can be bounded. Such an update is shortened to three times the median length of the
round's updates of all groups (one for each device, its latest), and to the length of the base. In a round of
fewer than three devices only the base bounds it. Scalars of absolute size are bounded by those whose step is
as long as the base, scalars of relative size by `directions.replaying`. A class mean is bounded by three
times the median length of all class means of the round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import ComparedAs
from device_runtime.strategies.interface.device_half import FEW_SHOT, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code

from . import by_class
from .rules import clip_to_norm, length_of, norms
from .settings import LEAST_DEVICES
from .spool import Spool, SpooledUpdate, Start, signature, start_in

FROM_ZERO: Mapping[ComparedAs | None, frozenset[str]] = {
    "scalars": frozenset({"g"}),
    "class-means": frozenset({by_class.MEANS}),
}
"""The tensors that are no change of the base: they are compared as they are."""


@dataclass(frozen=True)
class GroupedUpdate:
    """An update to be compared with others of the same `group`, by its change from `start`."""

    group: Hashable
    update: Update
    start: Start


def group_update(update: Update, kind: AnyStrategy, member: str, base: Tensors) -> GroupedUpdate:
    """An update with its group: the kind, the member of the family, and the tensors' names and shapes.

    Scalars are also grouped by the round whose directions they are along. `base` is the member's.
    """
    with own_code(type(kind)):
        compared = capabilities.comparable(kind, update, base)
    if capabilities.compared_as(kind) == "class-means":
        compared = by_class.as_means(compared)
    start = start_in(base, FEW_SHOT, FROM_ZERO.get(capabilities.compared_as(kind), frozenset()))
    along = update.late if capabilities.compared_as(kind) == "scalars" else None
    return GroupedUpdate((kind.name, member, along, signature(compared.tensors, start)), compared, start)


MOST = 4
"""The most devices that a note names; it gives the number of the others."""


def device_list(devices: Sequence[str], kind: str) -> str:
    """Devices for a note: a few names, the number of the others, and the kind they sent."""
    more = f" and {len(devices) - MOST} more" if len(devices) > MOST else ""
    return f"{', '.join(devices[:MOST])}{more} ({kind})"


def devices_of(rows: Sequence[SpooledUpdate]) -> str:
    """The devices of these updates, as in `device_list`."""
    return device_list([row.device for row in rows], rows[0].metadata.kind)


TIMES = 3.0
"""The bound on lengths, in multiples of the median length."""
LEAST = 1.0
"""The smallest length of a base: a base of zeros could not learn anything otherwise."""


def length_of_base(base: Tensors) -> float:
    """The Euclidean norm over all tensors, at least LEAST."""
    squares = (float(np.square(value.astype(np.float64)).sum()) for value in base.values())
    return max(LEAST, sqrt(sum(squares)))


def median_length(spools: Iterable[Spool]) -> float:
    """The median length of changes of the base over the round's devices; infinite if they are too few."""
    latest: dict[str, tuple[float, float]] = {}
    for spool in spools:
        for row, length in zip(spool.rows, norms(spool), strict=True):
            made_for = inf if row.metadata.late is None else float(row.metadata.late.round)
            latest[row.device] = max(latest.get(row.device, (0.0, 0.0)), (made_for, float(length)))
    lengths = [length for _, length in latest.values()]
    return float(np.median(lengths)) if len(lengths) >= LEAST_DEVICES else inf


def shorten(spool: Spool, bound: float) -> str:
    """Shorten updates that are longer than `bound`. Returns a note, empty if there were none."""
    lengths, far = norms(spool), list[SpooledUpdate]()
    for row, length in zip(spool.rows, lengths, strict=True):
        if length > bound:
            spool.put(row, clip_to_norm(spool.values(row), spool.starts, float(length), bound))
            far.append(row)
    return f"{devices_of(far)} shortened from at most {lengths.max():.3g} to {bound:.3g}" if far else ""


def shorten_class_means(spool: Spool) -> str:
    """Shorten the means of classes that too few devices have. Returns a note, as `shorten`."""
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
    """Whether the updates of this group are changes of the base."""
    return spool.compared_as not in FROM_ZERO
