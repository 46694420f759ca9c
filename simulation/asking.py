"""Which devices are asked, and what each of them then does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aggregator.task import Task
from strategies.kind import AnyStrategy

from .bases import Bases
from .devices import Devices
from .timeline import Asked, Luck, Timeline

TRIES = 4
"""Draws for each device that is wanted before the whole fleet is looked through."""


@dataclass(frozen=True)
class Flight:
    """One device at work: asked in round `round` for an update from that round's base.

    `strategy` is the form of a kind that it chose; None, and `kind` empty, when it sits out.
    """

    index: int
    device: str
    group: str
    round: int
    asked_s: float
    down_bytes: int
    kind: str
    strategy: AnyStrategy | None
    line: Timeline


class Asking:
    """Draws devices with the run's seed; every draw is numbered, so that a run can be repeated."""

    def __init__(self, task: Task, devices: Devices, bases: Bases, seed: int) -> None:
        self._task, self._devices, self._bases, self._seed = task, devices, bases, seed
        self._kinds: tuple[int, tuple[AnyStrategy, ...]] = (0, ())
        self._last: dict[int, int] = {}
        self._draws = 0

    def ask(self, number: int, count: int, times: tuple[float, float]) -> list[Flight]:
        """Up to `count` devices, offered round `number`; `times`: now, and when the round closes."""
        now, closes_s = times
        self._draws += 1
        rng = np.random.Generator(np.random.Philox(key=[self._seed, self._draws]))
        chosen = self._choose(number, count, now, rng)
        for device in chosen.tolist():
            self._last[device] = number
        luck = self._devices.chances(chosen, rng)
        return [
            self._flight(device, number, (now, closes_s), drawn)
            for device, drawn in zip(chosen.tolist(), luck, strict=True)
        ]

    def _choose(self, number: int, count: int, now: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Uniformly among those that are ready and were not asked in this round yet."""
        found: list[int] = []
        seen: set[int] = set()
        total = len(self._devices)
        if count < total // TRIES:
            for device in rng.integers(0, total, TRIES * count).tolist():
                if device not in seen:
                    seen.add(device)
                    if self._can(device, number, now):
                        found.append(device)
                        if len(found) == count:
                            return np.array(found, np.int64)
        there = np.flatnonzero(self._devices.fleet.present(now))
        for device in rng.permutation(there).tolist():
            if len(found) == count:
                break
            if device not in seen and self._can(device, number, now):
                found.append(device)
        return np.array(found, np.int64)

    def _can(self, device: int, number: int, now: float) -> bool:
        return self._last.get(device) != number and self._devices.ready(device, now)

    def _flight(self, device: int, number: int, times: tuple[float, float], luck: Luck) -> Flight:
        base, known, fleet = self._bases.of(number), self._devices.known(device), self._devices.fleet
        down_bytes = self._bases.to_fetch(base, known.checkpoint, known.steps)
        asked = Asked(
            now=times[0],
            closes_s=times[1],
            down_bytes=down_bytes,
            kinds=self._offered(number),
            luck=luck,
            latency_s=fleet.latency_s(device),
            until=partial(fleet.until, device),
            back=partial(fleet.next, device),
        )
        line = self._devices.ask(device, asked)
        if line.lost != "crashed":
            known.checkpoint, known.steps = base.checkpoint, base.steps
        chosen = line.outcome.plan.chosen
        kind, strategy = ("", None) if chosen is None else (chosen.kind, chosen.strategy)
        return Flight(
            device,
            fleet.name(device),
            fleet.group(device),
            number,
            times[0],
            down_bytes,
            kind,
            strategy,
            line,
        )

    def _offered(self, number: int) -> tuple[AnyStrategy, ...]:
        if self._kinds[0] != number:
            self._kinds = (number, tuple(kind.strategy for kind in self._task.offered(number)))
        return self._kinds[1]
