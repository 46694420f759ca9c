"""The base models of a run: the newest, those that somebody trains from yet, and what fetching one takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from device_runtime.broker.wire.messages import Step
from device_runtime.broker.wire.step_log import MOST_SEGMENTS, SEGMENT, TAIL, TAIL_BYTES, numbers_bytes
from device_runtime.client.cache.base_route import MOST_REPLAYED
from device_runtime.client.selection.choose import MAIN
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.merging.aggregator_half import ALONE, Carried
from device_runtime.strategies.merging.merge import Merged
from device_runtime.strategies.statistics import closed_form
from device_runtime.strategies.training.device_half import NOTHING

from .executors.job import aside_key, base_key

SEGMENT_BYTES = 45
"""What steps have in common, in a blob of the log."""

Changed = tuple[bool, ...]


@dataclass(frozen=True)
class Shipped:
    """A model as devices have it with its bundle; in parts, each with the bytes that fetching it takes."""

    weights: Tensors
    parts: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, bundle: Bundle) -> Shipped:
        weights, parts = bundle.weights(), bundle.manifest.parts()
        encoded = tensors.encoded_parts(weights, parts)
        names = tuple(tuple(spec.name for spec in part) for part in parts)
        return cls(weights, names, tuple(len(part) for part in encoded))

    def changed(self, before: Tensors, after: Tensors) -> Changed:
        """Which parts are not the same any more."""
        return tuple(not all(_same(before, after, name) for name in part) for part in self.parts)


@dataclass(frozen=True)
class BaseVersion:
    """What a round distributes, in few words.

    parts: of each model, the main one's by "", the round in which each part of its checkpoint was new (0: it
    is the bundle's). line: the round in which the main one's line of zeroth-order steps began (0: with the
    bundle's weights); at: how many were taken on it, and log: bytes of their numbers; steps: since its
    checkpoint; moved: which parts they changed. aside: the round since which this is sent beside the bases
    (0: nothing is), and its bytes. width: scalars of the last step.
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


@dataclass(frozen=True)
class RoundBase:
    """What round `number` distributes: the main model, smaller ones by name, and what is beside them.

    `rare` as in an offer.
    """

    number: int
    weights: Tensors
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    aside: Tensors = field(default_factory=lambda: NOTHING)
    rare: tuple[int, ...] = ()

    def of(self, member: str) -> Tensors:
        """The base of this member, or of the main model."""
        return self.family[member] if member else self.weights

    def named(self) -> Iterator[tuple[str, Tensors]]:
        """All of it, as jobs name it."""
        yield base_key(self.number), self.weights
        for member, weights in self.family.items():
            yield base_key(self.number, member), weights
        if self.aside:
            yield aside_key(self.number), self.aside


@dataclass(frozen=True, slots=True)
class Held:
    """What a device holds beside its bundles: of each model the round whose base it fetched, and where it
    stands on the main one's line (-1: nowhere); the round of what it was sent beside them.
    """

    rounds: Mapping[str, int] = field(default_factory=lambda: NO_ROUNDS)
    at: int = -1
    aside: int = 0


NO_ROUNDS: Mapping[str, int] = {}
NOTHING_HELD = Held()


class Bases:
    """As `merging.merge_round` keeps them: checkpoints in parts, or zeroth-order steps since the last."""

    def __init__(self, shipped: Mapping[str, Shipped], first: Tensors, carried: Carried) -> None:
        """`shipped` by member; round 1 distributes `first`, and what `carried` has."""
        self._shipped = shipped
        self._kept = {1: RoundBase(1, first, carried.family, carried.aside)}
        begun = {member: (0,) * len(model.parts) for member, model in shipped.items()}
        bundled = RoundBase(0, shipped[MAIN].weights, {m: s.weights for m, s in shipped.items() if m})
        self._history = [self._next(BaseVersion(begun), bundled, self._kept[1], None)]
        self._common = (0, MAIN), NOTHING_HELD  # one for all who never fetched another model

    def of(self, number: int) -> RoundBase:
        return self._kept[number]

    def tensors(self) -> dict[str, Tensors]:
        """Everything that is kept, as jobs name it."""
        return dict(named for base in self._kept.values() for named in base.named())

    def advance(self, number: int, merged: Merged) -> RoundBase:
        """What the round after `number` distributes."""
        old, version = self._kept[number], self._history[number - 1]
        carried = merged.carried
        rare = closed_form.rare(carried.memory.get(closed_form.MEMORY, NOTHING))
        new = RoundBase(number + 1, merged.base, carried.family, carried.aside, rare)
        steps = merged.steps if merged.replayable else None
        self._kept[number + 1] = new
        self._history.append(self._next(version, old, new, steps))
        return new

    def _next(
        self, version: BaseVersion, old: RoundBase, new: RoundBase, steps: tuple[Step, ...] | None
    ) -> BaseVersion:
        """Of `new`, after `old`; None: it is not made by steps, and what is not as it was begins a line.

        There is a new checkpoint whenever a segment of the log is full.
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
        """What round `number` made, without the weights."""
        self._kept[number + 1] = RoundBase(number + 1, NOTHING)
        self._history.append(then)

    def restore(self, bases: Iterable[RoundBase]) -> None:
        """These, and no others, with their weights."""
        self._kept = {base.number: base for base in bases}

    def kept(self) -> tuple[RoundBase, ...]:
        return tuple(self._kept.values())

    @property
    def history(self) -> tuple[BaseVersion, ...]:
        """Of what each round so far distributes."""
        return tuple(self._history)

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all others."""
        wanted = set(numbers)
        self._kept = {number: base for number, base in self._kept.items() if number in wanted}

    def to_fetch(self, number: int, member: str, held: Held) -> int:
        """Bytes for a device to train this member, or the main model, in round `number`.

        Parts that are as it has them are not fetched. From where it stands on the line, or from the bundle's
        weights where that began with them, it goes by steps if they are fewer bytes (`ways`).
        """
        version = self._history[number - 1]
        parts, there = version.parts[member], self._parts_of(member, held)
        sizes = self._shipped[member].sizes
        size = (
            0
            if parts == there
            else sum(size for size, new, old in zip(sizes, parts, there, strict=True) if new != old)
        )
        if member == MAIN and version.at:
            size = self._by_steps(version, held, size + (self._log(version, version.steps) or 0))
        return size + (version.aside_bytes if version.aside != held.aside else 0)

    def _by_steps(self, version: BaseVersion, held: Held, anew: int) -> int:
        """The main model's base by the cheaper way; `anew`: bytes of that from its checkpoint on."""
        latest = self._history[held.rounds.get(MAIN, 1) - 1]
        stands = held.at >= 0 and latest.line == version.line
        if not stands and version.line:
            return anew
        lacking = version.at - (held.at if stands else 0)
        by_steps = self._log(version, lacking)
        if by_steps is None:
            return anew
        elements = sum(self._shipped[MAIN].sizes) // 4
        too_long = lacking * version.width * elements > MOST_REPLAYED
        return anew if too_long and lacking > version.steps else min(anew, by_steps)

    def _log(self, version: BaseVersion, lacking: int) -> int | None:
        """Bytes of the last so many steps: of the offer, or of the segments that have them, if there are."""
        if lacking <= self._tail(version):
            return version.log - self._before(version, version.at - lacking).log
        first = (version.at - lacking) // SEGMENT
        last = (version.at - 1) // SEGMENT
        if last - first >= MOST_SEGMENTS:
            return None
        segments = SEGMENT_BYTES * (last - first + 1)
        return segments + version.log - self._before(version, first * SEGMENT).log

    def _tail(self, version: BaseVersion) -> int:
        """Steps that stand in an offer."""
        count = min(TAIL, version.at)
        while count and version.log - self._before(version, version.at - count).log > TAIL_BYTES:
            count -= 1
        return count

    def _before(self, version: BaseVersion, at: int) -> BaseVersion:
        """The latest on its line that is no further."""
        history = self._history
        end = bisect_right(history, (version.line, at), key=lambda one: (one.line, one.at))
        return history[end - 1]

    def fetched(self, number: int, member: str, held: Held) -> Held:
        """What the device then holds; only on the model that it trained last it knows where it stands."""
        version = self._history[number - 1]
        at = version.at if member == MAIN else -1
        if not held.rounds.keys() <= {member}:
            return Held({**held.rounds, member: number}, at, version.aside)
        key = number, member
        if self._common[0] != key:
            self._common = key, Held({member: number}, at, version.aside)
        return self._common[1]

    def _parts_of(self, member: str, held: Held) -> tuple[int, ...]:
        number = held.rounds.get(member, 0)
        return self._history[number - 1].parts[member] if number else (0,) * len(self._shipped[member].parts)


def _renewed(parts: tuple[int, ...], changed: Changed, new: RoundBase) -> tuple[int, ...]:
    """A checkpoint is made anew: its parts that are not what they were are this round's."""
    return tuple(new.number if other else old for old, other in zip(parts, changed, strict=True))


def _same(one: Tensors, other: Tensors, name: str) -> bool:
    return one[name] is other[name] or np.array_equal(one[name], other[name])


def _equal(one: Tensors, other: Tensors) -> bool:
    return one is other or (one.keys() == other.keys() and all(_same(one, other, name) for name in one))
