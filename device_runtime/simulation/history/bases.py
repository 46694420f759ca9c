"""The base models of a run, how they changed, and the bytes that a device fetches to get one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from device_runtime.broker.wire.messages import Shortages, Step
from device_runtime.broker.wire.step_log import MOST_SEGMENTS, SEGMENT, TAIL, TAIL_BYTES, numbers_bytes
from device_runtime.device.delivery.cache import MOST_REPLAYED
from device_runtime.device.selection.choose import MAIN
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.executors.job import aside_key, base_key
from device_runtime.strategies.interface.aggregator_half import NO_FAMILY, CarriedState
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.merging.merge import Merged
from device_runtime.strategies.statistics import closed_form, shortages

SEGMENT_BYTES = 45
"""Bytes that a segment of the step log takes in addition to its steps."""

Changed = tuple[bool, ...]


@dataclass(frozen=True)
class ShippedModel:
    """The weights that devices have with a bundle, in the parts of its checkpoint.

    `parts` are the names of their tensors, `sizes` the bytes to fetch each part.
    """

    weights: Tensors
    parts: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, bundle: Bundle) -> ShippedModel:
        weights, parts = bundle.weights(), bundle.manifest.parts()
        encoded = tensors.encoded_parts(weights, parts)
        names = tuple(tuple(spec.name for spec in part) for part in parts)
        return cls(weights, names, tuple(len(part) for part in encoded))

    def changed(self, before: Tensors, after: Tensors) -> Changed:
        """Whether each part has changed."""
        return tuple(not all(_same(before, after, name) for name in part) for part in self.parts)


@dataclass(frozen=True)
class BaseVersion:
    """The version of what a round distributes: the rounds in which each piece of it last changed.

    parts: for each model (the main one is ""), the round in which each part of its checkpoint last changed;
    0: the part is the bundle's.
    line: the round in which the main model's log of zeroth-order steps began; 0: with the bundle's weights.
    at: the number of steps in that log.
    log: the bytes of the numbers of those steps.
    steps: the number of steps since the checkpoint.
    moved: for each part of the main model, whether those steps changed it.
    aside: the round in which the tensors sent with the bases last changed; 0: there are none.
    aside_bytes: the bytes of those tensors.
    width: the number of scalars of the last step.
    alone: kinds of which the round before opened no masked sum, as in an offer.
    """

    parts: Mapping[str, tuple[int, ...]]
    line: int = 0
    at: int = 0
    log: int = 0
    steps: int = 0
    moved: Changed = ()
    aside: int = 0
    aside_bytes: int = 0
    width: int = 0
    alone: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundBase:
    """The weights that round `number` distributes: the main model, and smaller ones by name.

    `aside` are the tensors sent with them; `rare` and `shortages` as in an offer.
    """

    number: int
    weights: Tensors
    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    aside: Tensors = field(default_factory=lambda: NO_TENSORS)
    rare: tuple[int, ...] = ()
    shortages: Shortages | None = None

    def of(self, member: str) -> Tensors:
        """The base of this member of the family; "" is the main model."""
        return self.family[member] if member else self.weights

    def named(self) -> Iterator[tuple[str, Tensors]]:
        """All tensors, under the keys that jobs use."""
        yield base_key(self.number), self.weights
        for member, weights in self.family.items():
            yield base_key(self.number, member), weights
        if self.aside:
            yield aside_key(self.number), self.aside


@dataclass(frozen=True, slots=True)
class HeldBases:
    """The bases and steps that a device has fetched in addition to its bundles.

    rounds: for each model, the round whose base it fetched.
    at: the steps of the main model's log that it has replayed; -1: it has no place in that log.
    aside: the round of the tensors sent with the bases.
    """

    rounds: Mapping[str, int] = field(default_factory=lambda: NO_ROUNDS)
    at: int = -1
    aside: int = 0


NO_ROUNDS: Mapping[str, int] = {}
NO_BASES_HELD = HeldBases()


class BaseHistory:
    """The bases, kept as `merging.merge_round` does: checkpoints in parts, or steps since the last one."""

    def __init__(self, shipped: Mapping[str, ShippedModel], first: Tensors, carried: CarriedState) -> None:
        """`shipped` by member; round 1 distributes `first` and the tensors of `carried`."""
        self._shipped = shipped
        self._bases = {1: RoundBase(1, first, carried.family, carried.aside)}
        begun = {member: (0,) * len(model.parts) for member, model in shipped.items()}
        bundled = RoundBase(0, shipped[MAIN].weights, {m: s.weights for m, s in shipped.items() if m})
        self._history = [self._next(BaseVersion(begun), bundled, self._bases[1], None)]
        self._common = (0, MAIN), NO_BASES_HELD  # shared by all devices that fetched no other model

    def of(self, number: int) -> RoundBase:
        return self._bases[number]

    def tensors(self) -> dict[str, Tensors]:
        """The tensors of all bases that are kept, under the keys that jobs use."""
        return dict(named for base in self._bases.values() for named in base.named())

    def advance(self, number: int, merged: Merged, alone: tuple[str, ...] = ()) -> RoundBase:
        """Adds the base of the round after `number`, and returns it; `alone` as in its version."""
        old, version = self._bases[number], self._history[number - 1]
        carried = merged.carried
        pool, trained = (
            carried.memory.get(name, NO_TENSORS) for name in (closed_form.MEMORY, shortages.MEMORY)
        )
        rare, short = closed_form.rarest_classes(pool), shortages.class_shortages(pool, trained)
        new = RoundBase(number + 1, merged.base, carried.family, carried.aside, rare, short)
        steps = merged.steps if merged.replayable else None
        self._bases[number + 1] = new
        self._history.append(replace(self._next(version, old, new, steps), alone=alone))
        return new

    def alone(self, number: int) -> tuple[str, ...]:
        """The kinds of which the round before `number` opened no masked sum."""
        return self._history[number - 1].alone

    def _next(
        self, version: BaseVersion, old: RoundBase, new: RoundBase, steps: tuple[Step, ...] | None
    ) -> BaseVersion:
        """The version of `new`, which follows `old`.

        `steps` None: `new` was not made by zeroth-order steps, so a new log begins where it differs. There is
        a new checkpoint whenever a segment of the log is full.
        """
        changed = self._shipped[MAIN].changed(old.weights, new.weights)
        before = version.moved or (False,) * len(changed)
        moved = tuple(a or b for a, b in zip(before, changed, strict=True))
        parts = {
            member: _renewed(version.parts[member], self._shipped[member].changed(old.of(member), base), new)
            for member, base in new.family.items()
        }
        line, at, log, since = version.line, version.at, version.log, version.steps
        if steps is None:
            line, at, log = (line, at, log) if not any(changed) and not at else (new.number, 0, 0)
        else:
            at, log = at + len(steps), log + sum(map(numbers_bytes, steps))
            since += len(steps)
        if steps is None or at // SEGMENT > version.at // SEGMENT:
            since, main, moved = 0, _renewed(version.parts[MAIN], moved, new), ()
        else:
            main = version.parts[MAIN]
        aside, size = version.aside, version.aside_bytes
        if not _equal(old.aside, new.aside):
            aside, size = (new.number, len(tensors.encode(new.aside))) if new.aside else (0, 0)
        width = len(steps[-1].scalars) if steps else version.width
        return BaseVersion(
            {**version.parts, **parts, MAIN: main}, line, at, log, since, moved, aside, size, width
        )

    def replay(self, number: int, then: BaseVersion) -> None:
        """Adds what round `number` made, without its weights."""
        self._bases[number + 1] = RoundBase(number + 1, NO_TENSORS)
        self._history.append(then)

    def restore(self, bases: Iterable[RoundBase]) -> None:
        """Replaces all bases by these, which have weights."""
        self._bases = {base.number: base for base in bases}

    def kept(self) -> tuple[RoundBase, ...]:
        return tuple(self._bases.values())

    @property
    def history(self) -> tuple[BaseVersion, ...]:
        """The version that each round so far distributes."""
        return tuple(self._history)

    def keep(self, numbers: Iterable[int]) -> None:
        """Forgets the bases of all other rounds."""
        in_use = set(numbers)
        self._bases = {number: base for number, base in self._bases.items() if number in in_use}

    def to_fetch(self, number: int, member: str, own: HeldBases) -> int:
        """Bytes that a device fetches to train this member in round `number`; "" is the main model.

        Parts that it has already are not fetched. If that takes fewer bytes, it replays steps instead: from
        its place in the log, or from the bundle's weights if the log began there (`device.delivery.cache`).
        """
        version = self._history[number - 1]
        parts, own_parts = version.parts[member], self._parts_of(member, own)
        sizes = self._shipped[member].sizes
        size = (
            0
            if parts == own_parts
            else sum(size for size, new, old in zip(sizes, parts, own_parts, strict=True) if new != old)
        )
        if member == MAIN and version.at:
            size = self._cheapest(version, own, size + (self._log(version, version.steps) or 0))
        return size + (version.aside_bytes if version.aside != own.aside else 0)

    def _cheapest(self, version: BaseVersion, own: HeldBases, full_fetch: int) -> int:
        """Bytes of the main model's base: the fewer of a full fetch and of the steps that the device lacks.

        `full_fetch`: bytes of the checkpoint and of the steps since.
        """
        latest = self._history[own.rounds.get(MAIN, 1) - 1]
        has_place_in_log = own.at >= 0 and latest.line == version.line
        if not has_place_in_log and version.line:
            return full_fetch
        lacking = version.at - (own.at if has_place_in_log else 0)
        by_steps = self._log(version, lacking)
        if by_steps is None:
            return full_fetch
        elements = sum(self._shipped[MAIN].sizes) // 4
        too_long = lacking * version.width * elements > MOST_REPLAYED
        return full_fetch if too_long and lacking > version.steps else min(full_fetch, by_steps)

    def _log(self, version: BaseVersion, lacking: int) -> int | None:
        """Bytes of the last `lacking` steps, from the offer or from log segments; None: too many segments."""
        if lacking <= self._tail(version):
            return version.log - self._before(version, version.at - lacking).log
        first = (version.at - lacking) // SEGMENT
        last = (version.at - 1) // SEGMENT
        if last - first >= MOST_SEGMENTS:
            return None
        segments = SEGMENT_BYTES * (last - first + 1)
        return segments + version.log - self._before(version, first * SEGMENT).log

    def _tail(self, version: BaseVersion) -> int:
        """The number of latest steps that an offer carries."""
        count = min(TAIL, version.at)
        while count and version.log - self._before(version, version.at - count).log > TAIL_BYTES:
            count -= 1
        return count

    def _before(self, version: BaseVersion, at: int) -> BaseVersion:
        """The latest version of the same log with at most `at` steps."""
        history = self._history
        end = bisect_right(history, (version.line, at), key=lambda entry: (entry.line, entry.at))
        return history[end - 1]

    def fetched(self, number: int, member: str, own: HeldBases) -> HeldBases:
        """The device's state after it fetched this base.

        It knows its place in the step log only if the model that it fetched last is the main one.
        """
        version = self._history[number - 1]
        at = version.at if member == MAIN else -1
        if not own.rounds.keys() <= {member}:
            return HeldBases({**own.rounds, member: number}, at, version.aside)
        key = number, member
        if self._common[0] != key:
            self._common = key, HeldBases({member: number}, at, version.aside)
        return self._common[1]

    def _parts_of(self, member: str, own: HeldBases) -> tuple[int, ...]:
        number = own.rounds.get(member, 0)
        return self._history[number - 1].parts[member] if number else (0,) * len(self._shipped[member].parts)


def _renewed(parts: tuple[int, ...], changed: Changed, new: RoundBase) -> tuple[int, ...]:
    """The parts of a new checkpoint: those that changed are new in this round."""
    return tuple(new.number if other else old for old, other in zip(parts, changed, strict=True))


def _same(left: Tensors, other: Tensors, name: str) -> bool:
    return left[name] is other[name] or np.array_equal(left[name], other[name])


def _equal(left: Tensors, other: Tensors) -> bool:
    return left is other or (left.keys() == other.keys() and all(_same(left, other, name) for name in left))
