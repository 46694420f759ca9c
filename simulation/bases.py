"""The base models of a run: the newest, those that somebody trains from yet, and what fetching one takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.merging import MAX_STEPS, TAIL
from models.tensors import Tensors
from strategies.merge import Merged

from .executors.job import base_key

STEP_BYTES = 70
"""A zeroth-order step in an offer or a log (measured; see docs/wire.md)."""


@dataclass(frozen=True)
class Base:
    """What round `number` distributes: the weights, the round of their last checkpoint, the steps since."""

    number: int
    weights: Tensors
    checkpoint: int
    steps: int


class Bases:
    """As `aggregator.merging` keeps them: a checkpoint, or only zeroth-order steps since the last one."""

    def __init__(self, weights: Tensors, weights_bytes: int) -> None:
        """Round 1 distributes the bundle's own weights, which every device has with the bundle."""
        self._kept = {1: Base(1, weights, 1, 0)}
        self._history = [(1, 0)]
        self._weights_bytes = weights_bytes

    def of(self, number: int) -> Base:
        return self._kept[number]

    def weights(self) -> dict[str, Tensors]:
        """Of every base that is kept, as jobs name them."""
        return {base_key(number): base.weights for number, base in self._kept.items()}

    def advance(self, number: int, merged: Merged) -> Base:
        """The base of the round after `number`."""
        old = self._kept[number]
        steps = old.steps + len(merged.steps)
        if merged.replayable and steps <= MAX_STEPS:
            new = Base(number + 1, merged.base, old.checkpoint, steps)
        else:
            new = Base(number + 1, merged.base, number + 1, 0)
        self._kept[number + 1] = new
        self._history.append((new.checkpoint, new.steps))
        return new

    def replay(self, number: int, then: tuple[int, int]) -> None:
        """The base after round `number`, without its weights: (checkpoint, steps)."""
        self._kept[number + 1] = Base(number + 1, {}, *then)
        self._history.append(then)

    def restore(self, bases: Iterable[Base]) -> None:
        """These, and no others, with their weights."""
        self._kept = {base.number: base for base in bases}

    def kept(self) -> tuple[Base, ...]:
        return tuple(self._kept.values())

    @property
    def history(self) -> tuple[tuple[int, int], ...]:
        """(checkpoint, steps) of the base of each round so far."""
        return tuple(self._history)

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all others."""
        wanted = set(numbers)
        self._kept = {number: base for number, base in self._kept.items() if number in wanted}

    def to_fetch(self, base: Base, checkpoint: int, steps: int) -> int:
        """Bytes for a device that holds these steps after this checkpoint.

        The last few steps stand in the offer; a device that lacks more fetches the log of all of them.
        """
        size = 0
        if checkpoint != base.checkpoint:
            steps, size = 0, self._weights_bytes
        lacking = base.steps - steps
        return size + STEP_BYTES * (lacking if lacking <= TAIL else base.steps)
