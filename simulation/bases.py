"""The base models of a run: the newest, those that somebody trains from yet, and what fetching one takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from aggregator.merging import MAX_STEPS, TAIL
from device_runtime.choose import MAIN
from models import tensors
from models.bundle import Bundle
from models.tensors import Tensors
from strategies.kind import ALONE, NOTHING, Carried
from strategies.merge import Merged

from .executors.job import aside_key, base_key

STEP_BYTES = 70
"""A zeroth-order step in an offer or a log (measured; see docs/wire.md)."""

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
class Version:
    """What a round distributes, in few words.

    parts: of each model, the main one's by "", the round in which each part of its checkpoint was new (0: it
    is the bundle's). steps: zeroth-order, since the main one's checkpoint; moved: which parts they changed.
    aside: the round since which this is sent beside the bases (0: nothing is), and its bytes.
    """

    parts: Mapping[str, tuple[int, ...]]
    steps: int = 0
    moved: Changed = ()
    aside: int = 0
    aside_bytes: int = 0


@dataclass(frozen=True)
class Base:
    """What round `number` distributes: the main model, smaller ones by name, and what is beside them."""

    number: int
    weights: Tensors
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    aside: Tensors = field(default_factory=lambda: NOTHING)

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
    """What a device holds beside its bundles: of each model the round whose base it fetched, and how many
    steps it took on the main one's checkpoint; the round of what it was sent beside them.
    """

    rounds: Mapping[str, int] = field(default_factory=lambda: NO_ROUNDS)
    steps: int = 0
    aside: int = 0


NO_ROUNDS: Mapping[str, int] = {}
NOTHING_HELD = Held()


class Bases:
    """As `aggregator.merging` keeps them: checkpoints in parts, or only zeroth-order steps since the last."""

    def __init__(self, shipped: Mapping[str, Shipped], first: Tensors, carried: Carried) -> None:
        """`shipped` by member; round 1 distributes `first`, and what `carried` has."""
        self._shipped = shipped
        self._kept = {1: Base(1, first, carried.family, carried.aside)}
        begun = {member: (0,) * len(model.parts) for member, model in shipped.items()}
        bundled = Base(0, shipped[MAIN].weights, {m: s.weights for m, s in shipped.items() if m})
        self._history = [self._next(Version(begun), bundled, self._kept[1], MAX_STEPS + 1)]
        self._common = (0, MAIN), NOTHING_HELD  # one for all who never fetched another model

    def of(self, number: int) -> Base:
        return self._kept[number]

    def tensors(self) -> dict[str, Tensors]:
        """Everything that is kept, as jobs name it."""
        return dict(named for base in self._kept.values() for named in base.named())

    def advance(self, number: int, merged: Merged) -> Base:
        """What the round after `number` distributes."""
        old, version = self._kept[number], self._history[number - 1]
        new = Base(number + 1, merged.base, merged.carried.family, merged.carried.aside)
        steps = version.steps + len(merged.steps) if merged.replayable else MAX_STEPS + 1
        self._kept[number + 1] = new
        self._history.append(self._next(version, old, new, steps))
        return new

    def _next(self, version: Version, old: Base, new: Base, steps: int) -> Version:
        """Of `new`, after `old`; more steps than MAX_STEPS make a new checkpoint."""
        changed = self._shipped[MAIN].changed(old.weights, new.weights)
        before = version.moved or (False,) * len(changed)
        moved = tuple(a or b for a, b in zip(before, changed, strict=True))
        parts = {
            member: _renewed(version.parts[member], self._shipped[member].changed(old.of(member), base), new)
            for member, base in new.family.items()
        }
        if steps > MAX_STEPS:
            steps, main, moved = 0, _renewed(version.parts[MAIN], moved, new), ()
        else:
            main = version.parts[MAIN]
        aside, size = version.aside, version.aside_bytes
        if not _equal(old.aside, new.aside):
            aside, size = (new.number, len(tensors.encode(new.aside))) if new.aside else (0, 0)
        return Version({**version.parts, **parts, MAIN: main}, steps, moved, aside, size)

    def replay(self, number: int, then: Version) -> None:
        """What round `number` made, without the weights."""
        self._kept[number + 1] = Base(number + 1, NOTHING)
        self._history.append(then)

    def restore(self, bases: Iterable[Base]) -> None:
        """These, and no others, with their weights."""
        self._kept = {base.number: base for base in bases}

    def kept(self) -> tuple[Base, ...]:
        return tuple(self._kept.values())

    @property
    def history(self) -> tuple[Version, ...]:
        """Of what each round so far distributes."""
        return tuple(self._history)

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all others."""
        wanted = set(numbers)
        self._kept = {number: base for number, base in self._kept.items() if number in wanted}

    def to_fetch(self, number: int, member: str, held: Held) -> int:
        """Bytes for a device to train this member, or the main model, in round `number`.

        Parts that are as it has them are not fetched. The last few steps stand in the offer; a device that
        lacks more fetches the log of all of them.
        """
        version = self._history[number - 1]
        parts, there = version.parts[member], self._parts_of(member, held)
        sizes = self._shipped[member].sizes
        size = (
            0
            if parts == there
            else sum(size for size, new, old in zip(sizes, parts, there, strict=True) if new != old)
        )
        if member == MAIN and version.steps:
            taken = held.steps if parts == there else 0
            lacking = version.steps - taken
            size += STEP_BYTES * (lacking if lacking <= TAIL else version.steps)
        return size + (version.aside_bytes if version.aside != held.aside else 0)

    def fetched(self, number: int, member: str, held: Held) -> Held:
        """What the device then holds; only on the model that it trained last it knows the steps it took."""
        version = self._history[number - 1]
        steps = version.steps if member == MAIN else 0
        if not held.rounds.keys() <= {member}:
            return Held({**held.rounds, member: number}, steps, version.aside)
        key = number, member
        if self._common[0] != key:
            self._common = key, Held({member: number}, steps, version.aside)
        return self._common[1]

    def _parts_of(self, member: str, held: Held) -> tuple[int, ...]:
        number = held.rounds.get(member, 0)
        return self._history[number - 1].parts[member] if number else (0,) * len(self._shipped[member].parts)


def _renewed(parts: tuple[int, ...], changed: Changed, new: Base) -> tuple[int, ...]:
    """A checkpoint is made anew: its parts that are not what they were are this round's."""
    return tuple(new.number if other else old for old, other in zip(parts, changed, strict=True))


def _same(one: Tensors, other: Tensors, name: str) -> bool:
    return one[name] is other[name] or np.array_equal(one[name], other[name])


def _equal(one: Tensors, other: Tensors) -> bool:
    return one is other or (one.keys() == other.keys() and all(_same(one, other, name) for name in one))
