"""The screen between the updates of a round and their folding: it applies a rule to those of one sort.

Updates of one kind, of one member of the family and with the same tensors are compared with each other; what
a kind sends beside the model's own tensors (feature maps, prototypes) goes with its update as it came. The
rules treat devices alike, whatever number of samples they say: within a group a weight above the median
counts as the median, nobody weighs more than with as many samples as the round's median device has, also who
is alone in its group, and of a device's several updates of one sort, of which some are late, only the latest
counts.
Folding is given an update for each device still, so that every kind's own merging is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType

import numpy as np

from models.tensors import Vector
from strategies.class_means import ClassMeans
from strategies.device_half import Contribution
from strategies.folding import Folding
from strategies.merge import Merged
from strategies.zeroth_order import ZerothOrder

from . import by_class, krum
from .median import median, weighted_median
from .named import named, of
from .norm_clip import bound_of, clipped, norms
from .scalars import BY_LENGTH, Usual, usual
from .settings import FEW, Robust
from .sorts import FROM_ZERO, sorted_out
from .spool import Spool
from .trimmed_mean import trimmed_mean
from .value_clip import bounds_in

FAR = 3.0
"""Times the bound: a change that is longer is told of when it is shortened."""

Screened = Iterator[tuple[Contribution, float]]


class Screen:
    """Before one round's `folding`. With the rule "none" it is not there. A context: files go at its end."""

    def __init__(self, folding: Folding, robust: Robust, scratch: Path | None = None) -> None:
        """`scratch` is a folder on a disk, for as many bytes as all updates have; None: the system's."""
        self._folding, self._robust, self._scratch = folding, robust, scratch
        self._spools: dict[Hashable, Spool] = {}
        self._samples: dict[str, float] = {}
        self._notes: list[str] = []

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for spool in self._spools.values():
            spool.close()

    def add(self, contribution: Contribution, weight: float, device: str) -> None:
        """One more, which then may be forgotten. In a fixed order, as for Folding. Raises OSError."""
        contribution = replace(contribution, device=device)
        if self._robust.rule == "none":
            self._folding.add(contribution, weight)
            return
        one = sorted_out(contribution, *self._folding.trained(contribution))
        if one.sort not in self._spools:
            self._spools[one.sort] = Spool(one.update.tensors, one.start, self._scratch)
        if not self._spools[one.sort].add(one.update, weight, device):
            self._note(f"{device} ({contribution.kind}) is not finite and is left out")
            return
        self._samples[device] = max(self._samples.get(device, 0.0), self._folding.counted(contribution))

    def merged(self) -> tuple[Merged, str]:
        """As Folding's; with what the rule left out, or could not do. Raises OSError."""
        for spool in self._spools.values():
            for contribution, weight in self._screened(spool) if len(spool) else ():
                self._folding.add(contribution, weight)
        merged, odd = self._folding.merged()
        return merged, "; ".join([*self._notes, odd] if odd else self._notes)

    def _screened(self, spool: Spool) -> Screened:
        told, rule = spool.rows[0].told, self._robust.rule
        if spool.earlier:
            self._note(f"{spool.earlier} {told.kind} of devices that sent a later one too do not count")
        late = told.kind == ZerothOrder.name and told.late is not None
        left_out = late and rule not in BY_LENGTH
        if len(spool) < FEW and (left_out or not late):
            of = f" of round {told.late.round}" if told.late else ""
            text = f"{len(spool)} {told.kind}{of} too few for {rule} to tell who lies"
            self._note(f"{text}, and left out" if left_out else text)
            if left_out:
                return iter(())
        beside = told.kind == ZerothOrder.name and len(self._sorts(told.kind)) > 1
        return self._as_usual(spool) if late or beside else self._ruled(spool)

    def _sorts(self, kind: str) -> list[Spool]:
        return [each for each in self._spools.values() if each.rows and each.rows[0].told.kind == kind]

    def _ruled(self, spool: Spool) -> Screened:
        rule, kind = self._robust.rule, spool.rows[0].told.kind
        if kind == ClassMeans.name:
            return self._class_means(spool)
        if rule == "norm-clip":
            return self._clipped(spool)
        if rule == "value-clip":
            return self._held(spool)
        if rule in ("krum", "multi-krum") and spool.starts.size and self._stands(spool):
            return self._selected(spool)
        if rule == "weighted-median":
            weighted = partial(weighted_median, weights=self._weights(spool))
            return self._replaced(spool, _middle(spool, weighted))
        return self._replaced(spool, _middle(spool, self._value_rule()))

    def _as_usual(self, spool: Spool) -> Screened:
        """Scalars of a round that has others, along other directions."""
        rule, kind = self._robust.rule, spool.rows[0].told.kind
        by_length = rule == "norm-clip" or (rule == "value-clip" and len(spool) < FEW)
        far = []
        for update, weight in self._as_they_came(spool) if by_length else self._ruled(spool):
            far += [update.device] if self._usual.is_far(update, FAR) else []
            yield self._usual.held(update, 1.0 if by_length else FAR), weight
        if far:
            self._note(f"{rule} shortened {named(far, kind)}, longer than others of the round")

    def _as_they_came(self, spool: Spool) -> Screened:
        for row, weight in zip(spool.rows, self._weights(spool), strict=True):
            yield spool.update(row, spool.values(row)), weight

    @cached_property
    def _usual(self) -> Usual:
        """Of all scalars of the round, when all have come."""
        found = usual(self._sorts(ZerothOrder.name), self._robust)
        if found.devices < FEW:
            self._note(f"{found.devices} {ZerothOrder.name} too few for {self._robust.rule} to tell who lies")
        return found

    def _value_rule(self) -> Callable[[Vector], Vector]:
        """What stands for the values of all devices: also where Krum cannot."""
        return (
            partial(trimmed_mean, share=self._robust.trim) if self._robust.rule == "trimmed-mean" else median
        )

    @property
    def _usual_samples(self) -> float:
        """Of the round's median device: the most that any of its updates counts as."""
        return float(np.median(list(self._samples.values())))

    def _weights(self, spool: Spool) -> list[float]:
        """Of each row, none above the group's median, nor above what the usual number of samples weighs."""
        most, usual = float(np.median([row.weight for row in spool.rows])), self._usual_samples
        counted = [max(1.0, self._folding.counted(row.told)) for row in spool.rows]
        return [
            min(row.weight, most, row.weight * usual / samples)
            for row, samples in zip(spool.rows, counted, strict=True)
        ]

    def _replaced(self, spool: Spool, middle: Vector) -> Screened:
        for row, weight in zip(spool.rows, self._weights(spool), strict=True):
            yield spool.update(row, middle), weight

    def _class_means(self, spool: Spool) -> Screened:
        weights, most, usual = self._weights(spool), by_class.usual_counts(spool), self._usual_samples
        ruled = by_class.ruled(spool, self._robust, self._value_rule())
        for (row, values), weight in zip(ruled, weights, strict=True):
            yield by_class.as_sums(spool.update(row, values), most, usual), weight

    def _clipped(self, spool: Spool) -> Screened:
        lengths, kind = norms(spool), spool.rows[0].told.kind
        fixed = None if kind in FROM_ZERO else self._robust.clip  # a bound on changes of the base
        bound = bound_of(lengths, fixed, self._robust.clip_factor)
        far = [row for row, length in zip(spool.rows, lengths, strict=True) if length > FAR * bound]
        if far:
            most = float(lengths.max())
            self._note(f"norm-clip shortened {of(far)} from at most {most:.3g} to {bound:.3g}")
        for row, weight, length in zip(spool.rows, self._weights(spool), lengths, strict=True):
            values = clipped(spool.values(row), spool.starts, float(length), bound)
            yield spool.update(row, values), weight

    def _held(self, spool: Spool) -> Screened:
        bounds = bounds_in(spool, self._robust.clip, self._robust.clip_factor)
        far = []
        for row, weight in zip(spool.rows, self._weights(spool), strict=True):
            values = spool.values(row)
            far += [row] if bounds.is_far(values, FAR) else []
            yield spool.update(row, bounds.hold(values)), weight
        if far:
            self._note(f"value-clip held {of(far)}, far from where the others are")

    def _stands(self, spool: Spool) -> bool:
        """Whether there are enough updates for Krum; the median takes its place where there are not."""
        liars, count = self._robust.byzantine, len(spool)
        enough = krum.most_liars(count) >= (liars or 0)
        if not enough and count >= FEW:
            kind = spool.rows[0].told.kind
            self._note(
                f"{self._robust.rule} needs {2 * (liars or 0) + 3} {kind} to stand {liars or 0} liars, "
                f"here are {count}: the median in its place"
            )
        return enough

    def _selected(self, spool: Spool) -> Screened:
        """Those that are taken weigh as much as the whole group, beside other kinds."""
        given, count = self._robust.byzantine, len(spool)
        liars = krum.most_liars(count) if given is None else given
        many = 1 if self._robust.rule == "krum" else count - liars
        places = krum.selected(krum.scores(spool, liars), many)
        weights = self._weights(spool)
        more = sum(weights) / sum(weights[place] for place in places)
        kept = [spool.rows[place] for place in places]
        if many == 1:
            self._note(f"krum took {of(kept)} of {count}")
        elif liars:
            self._note(f"multi-krum left out {of([row for row in spool.rows if row not in kept])}")
        for place in places:
            row = spool.rows[place]
            yield spool.update(row, spool.values(row)), weights[place] * more

    def _note(self, text: str) -> None:
        self._notes.append(text)


def _middle(spool: Spool, rule: Callable[[Vector], Vector]) -> Vector:
    middle = np.empty_like(spool.starts)
    for where, values in spool.blocks():
        middle[where] = rule(values)
    return middle
