"""Groups a round's comparable updates, applies a task's robust rule to them, and bounds small groups.

In a group of fewer than three devices (`rules.LEAST_DEVICES`) a false update cannot be told from a true
one, but its length can be bounded. Such an update is shortened to three times the median length of the
round's updates of all groups (one for each device, its latest), and to the length of the base. In a round of
fewer than three devices only the base bounds it. Scalars of absolute size are bounded by those whose step is
as long as the base, scalars of relative size by `directions.replaying`. A class mean is bounded by three
times the median length of all class means of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt

import numpy as np

from device_runtime.models.bundles.tensors import Tensors, Vector
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import ComparedAs
from device_runtime.strategies.interface.device_half import FEW_SHOT, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code

from . import by_class, rules
from .rules import (
    LEAST_DEVICES,
    Robust,
    bound_of,
    bounds_in,
    clip_to_norm,
    length_of,
    median,
    norms,
    trimmed_mean,
    weighted_median,
)
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


FAR = 3.0
"""A note is made of a change that is more than FAR times the bound, when it is shortened."""

Screened = Iterator[tuple[Update, float]]


@dataclass(frozen=True)
class UpdateGroup:
    """Comparable updates with a weight for each update; `samples`: those of the round's median device."""

    spool: Spool
    weights: Sequence[float]
    samples: float

    @property
    def kind(self) -> str:
        return self.spool.rows[0].metadata.kind

    @property
    def rows(self) -> Iterator[tuple[SpooledUpdate, float]]:
        """Each update with its weight."""
        return zip(self.spool.rows, self.weights, strict=True)

    def unchanged(self) -> Screened:
        """The updates with their values as sent, and the weights of this group."""
        for row, weight in self.rows:
            yield self.spool.update(row, self.spool.values(row)), weight

    def replaced(self, values: Vector) -> Screened:
        """The updates, all with these values, and the weights of this group."""
        for row, weight in self.rows:
            yield self.spool.update(row, values), weight


class RobustRule:
    """The rule of a task; `note` is called with a text about what it rejected or could not do."""

    def __init__(self, robust: Robust, note: Callable[[str], None]) -> None:
        self._robust, self._note = robust, note

    def apply(self, group: UpdateGroup) -> Screened:
        """Yields every update after the rule, with its weight, in order."""
        rule, spool = self._robust.rule, group.spool
        if spool.compared_as == "class-means":
            return self._class_means(group)
        if rule == "norm-clip":
            return self._clipped(group)
        if rule == "value-clip":
            return self._value_clipped(group)
        if rule in ("krum", "multi-krum") and spool.starts.size and self._has_enough_for_krum(group):
            return self._selected(group)
        if rule == "weighted-median":
            return group.replaced(_middle(spool, partial(weighted_median, weights=list(group.weights))))
        return group.replaced(_middle(spool, self._value_rule()))

    def _value_rule(self) -> Callable[[Vector], Vector]:
        """The rule as (devices, values) -> (values,): the median also for Krum with too few updates."""
        return (
            partial(trimmed_mean, share=self._robust.trim) if self._robust.rule == "trimmed-mean" else median
        )

    def _class_means(self, group: UpdateGroup) -> Screened:
        spool, most = group.spool, by_class.median_counts(group.spool)
        ruled = by_class.apply_rule(spool, self._robust, self._value_rule())
        for (row, values), weight in zip(ruled, group.weights, strict=True):
            yield by_class.as_sums(spool.update(row, values), most, group.samples), weight

    def _clipped(self, group: UpdateGroup) -> Screened:
        spool, lengths = group.spool, norms(group.spool)
        fixed = (
            None if spool.compared_as in FROM_ZERO else self._robust.clip
        )  # a bound on changes of the base
        bound = bound_of(lengths, fixed, self._robust.clip_factor)
        far = [row for row, length in zip(spool.rows, lengths, strict=True) if length > FAR * bound]
        if far:
            most = float(lengths.max())
            self._note(f"norm-clip shortened {devices_of(far)} from at most {most:.3g} to {bound:.3g}")
        for (row, weight), length in zip(group.rows, lengths, strict=True):
            values = clip_to_norm(spool.values(row), spool.starts, float(length), bound)
            yield spool.update(row, values), weight

    def _value_clipped(self, group: UpdateGroup) -> Screened:
        spool = group.spool
        bounds = bounds_in(spool, self._robust.clip, self._robust.clip_factor)
        far = []
        for row, weight in group.rows:
            values = spool.values(row)
            far += [row] if bounds.is_far(values, FAR) else []
            yield spool.update(row, bounds.hold(values)), weight
        if far:
            self._note(f"value-clip clipped {devices_of(far)}, far from the others")

    def _has_enough_for_krum(self, group: UpdateGroup) -> bool:
        """Whether there are enough updates for Krum; if not, the median replaces it, and there is a note."""
        liars, count = self._robust.byzantine or 0, len(group.spool)
        enough = rules.most_liars(count) >= liars
        if not enough and count >= LEAST_DEVICES:
            self._note(
                f"{self._robust.rule} needs {2 * liars + 3} {group.kind} to withstand {liars} lying devices, "
                f"not {count}: the median replaces it"
            )
        return enough

    def _selected(self, group: UpdateGroup) -> Screened:
        """The updates that Krum selects; their weights add up to those of the whole group."""
        spool, weights = group.spool, group.weights
        byzantine, count = self._robust.byzantine, len(spool)
        liars = rules.most_liars(count) if byzantine is None else byzantine
        many = 1 if self._robust.rule == "krum" else count - liars
        places = rules.selected(rules.krum_scores(spool, liars), many)
        more = sum(weights) / sum(weights[place] for place in places)
        rows = [spool.rows[place] for place in places]
        if many == 1:
            self._note(f"krum selected {devices_of(rows)} of {count}")
        elif liars:
            self._note(f"multi-krum rejected {devices_of([row for row in spool.rows if row not in rows])}")
        for place in places:
            row = spool.rows[place]
            yield spool.update(row, spool.values(row)), weights[place] * more


def _middle(spool: Spool, rule: Callable[[Vector], Vector]) -> Vector:
    middle = np.empty_like(spool.starts)
    for where, values in spool.blocks():
        middle[where] = rule(values)
    return middle
