"""Applies the robust rule of a task to a group of comparable updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies.interface.device_half import Update

from . import by_class, rules
from .groups import FROM_ZERO, devices_of
from .rules import bound_of, bounds_in, clip_to_norm, median, norms, trimmed_mean, weighted_median
from .settings import LEAST_DEVICES, Robust
from .spool import Spool, SpooledUpdate

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
