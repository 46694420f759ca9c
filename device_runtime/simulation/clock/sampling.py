"""Draws the devices that are asked for an update, and works out what each of them then does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.drawing import (
    NO_UPDATES,
    UNIFORM,
    DrawCandidate,
    EarlierUpdates,
    drawn,
)
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.selection.choose import MAIN, RICHEST, ChoicePolicy, UploadTerms
from device_runtime.device.selection.resting import RestRule
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation.data.loading import MANY
from device_runtime.simulation.history.bases import BaseHistory
from device_runtime.strategies.interface.kind import AnyStrategy

from .devices import FleetState
from .selection import FleetSelection, traits
from .timeline import AskConditions, RoundDraws, Timeline

TRIES = 4
"""Random draws for each wanted device before the whole fleet is searched."""
TRIES_OF_MANY = 200
"""The same in fleets of more than MANY devices, which take long to search."""
CHUNK = 4096
"""The devices of a shuffled fleet that are looked at before the next are made Python numbers."""


@dataclass(frozen=True)
class PendingUpdate:
    """One asked device and its update from the base of round `round`; `samples`: those that it holds.

    `strategy` is the form of a kind that it chose; None, and `kind` empty, when it sits out.
    """

    index: int
    device: str
    group: str
    round: int
    asked_s: float
    kind: str
    strategy: AnyStrategy | None
    line: Timeline
    samples: int = 1


@dataclass(frozen=True)
class OpenedRound:
    """The open round at `now`: when it closes, and the round in which each device was asked last, by name.

    `serial` grows when a round opens or is extended: in between no device is asked twice. `extended`: it has
    more time than it opened with.
    """

    round: int
    now: float
    closes_at: float
    latest: Mapping[str, int]
    serial: int
    extended: bool = False


@dataclass(frozen=True)
class FleetInputs:
    """The devices and what they fetch: bundles while they wait to be asked, then each round's base.

    upload_terms: as in `choose`, while no kind was alone.
    selected: which devices train; None: all.
    updates: gives what counted of a device before a round, for drawing policies.
    """

    devices: FleetState
    bases: BaseHistory
    bundle_bytes: int
    policy: ChoicePolicy = RICHEST
    upload_terms: UploadTerms | None = None
    selected: FleetSelection | None = None
    updates: Callable[[str, int], EarlierUpdates] = lambda device, number: NO_UPDATES


class DeviceSampler:
    """Chooses the devices to ask with the run's seed; draws are numbered, so that a run can be repeated."""

    def __init__(self, task: Task, inputs: FleetInputs, seed: int) -> None:
        self._task, self._seed = task, seed
        self._devices, self._bases, self._bundle_bytes = inputs.devices, inputs.bases, inputs.bundle_bytes
        self._kinds: tuple[int, dict[tuple[str, ...], tuple[AnyStrategy, ...]]] = (0, {})
        self._fleet: tuple[int, Fleet] = (0, inputs.devices.fleet)
        self._policy, self._terms = inputs.policy, inputs.upload_terms
        self.selected, self._updates = inputs.selected, inputs.updates
        self._draws = 0
        self._recent: tuple[int, set[int]] = 0, set()  # the devices that were asked since `serial`

    def ask(self, opening: OpenedRound, count: int) -> list[PendingUpdate]:
        """Offers the round to `count` devices, or to as many as can be asked."""
        rng = self._stream()
        return self._flights(self._choose(opening, count, rng), opening, rng)

    def again(self, opening: OpenedRound, device: int) -> list[PendingUpdate]:
        """Offers the round again to a device that lost its update, if it can be asked now."""
        if not self._devices.ready(device, opening.now):
            return []
        return self._flights([device], opening, self._stream())

    def _stream(self) -> np.random.Generator:
        self._draws += 1
        return np.random.Generator(np.random.Philox(key=[self._seed, self._draws]))

    def _choose(self, opening: OpenedRound, count: int, rng: np.random.Generator) -> list[int]:
        """Draws among the devices that are ready and were not asked in this round, by the task's policy."""
        if self._task.draw != UNIFORM:
            return self._drawn(opening, count, rng)
        cohort: list[int] = []
        tried: set[int] = set()
        total = len(self._devices)
        tries = TRIES if total <= MANY else TRIES_OF_MANY
        for _ in range(0, tries, TRIES) if count < total // TRIES else ():
            for device in rng.integers(0, total, TRIES * count).tolist():
                if device not in tried:
                    tried.add(device)
                    if self._can(device, opening):
                        cohort.append(device)
                        if len(cohort) == count:
                            return cohort
        for device in _shuffled(self._idle(opening), rng):
            if len(cohort) == count:
                break
            if device not in tried and self._can(device, opening):
                cohort.append(device)
        return cohort

    def _drawn(self, opening: OpenedRound, count: int, rng: np.random.Generator) -> list[int]:
        """The devices that a policy other than the uniform one draws. Raises DrawingError, OwnCodeError."""
        fleet, number = self._devices.fleet, opening.round
        free = {fleet.name(i): i for i in self._idle(opening).tolist() if self._can(i, opening)}
        candidates = [
            DrawCandidate(traits(fleet, self._devices.samples, free[name]), self._updates(name, number))
            for name in sorted(free)
        ]
        return [free[name] for name in drawn(self._task.drawing, candidates, count, number, rng)]

    def _idle(self, opening: OpenedRound) -> NDArray[np.int64]:
        """Devices that take part, are there and not at work; they may lack charge, or be asked already."""
        idle = self._devices.idle(opening.now) & self._devices.fleet.present(opening.now)
        if self.selected is not None:
            idle &= self.selected.trains
        if self._recent[0] == opening.serial:
            idle[list(self._recent[1])] = False
        return np.flatnonzero(idle)

    def _can(self, device: int, opening: OpenedRound) -> bool:
        devices = self._devices
        if self.selected is not None and not self.selected.trains[device]:
            return False
        if not devices.ready(device, opening.now):
            return False
        return opening.latest.get(devices.fleet.name(device)) != opening.round

    def _flights(
        self, devices: list[int], opening: OpenedRound, rng: np.random.Generator
    ) -> list[PendingUpdate]:
        if self._recent[0] != opening.serial:
            self._recent = opening.serial, set()
        self._recent[1].update(devices)
        if self._fleet[0] != opening.round:
            self._fleet = opening.round, self._devices.open(opening.round)
        draws = self._devices.round_draws(np.array(devices, np.int64), rng)
        return [self._flight(device, opening, drawn) for device, drawn in zip(devices, draws, strict=True)]

    def _flight(self, device: int, opening: OpenedRound, draws: RoundDraws) -> PendingUpdate:
        number, fleet = self._fleet
        prefetched_bytes = self._bundle_bytes if self._devices.is_new(device) else 0
        bases, state = self._bases, self._devices.known(device)
        own_bases = state.bases
        if prefetched_bytes and number == 1:  # devices fetch round 1's base before it opens
            prefetched_bytes += bases.to_fetch(1, MAIN, own_bases)
            own_bases = bases.fetched(1, MAIN, own_bases)
        shortages = bases.of(number).shortages if self._task.rests and not opening.extended else None
        rest = None
        if shortages is not None:
            rest = RestRule.of(shortages, self._task.round_seed(number), fleet.name(device))
        conditions = AskConditions(
            now=opening.now,
            closes_at=opening.closes_at,
            down_bytes=lambda member: bases.to_fetch(number, member, own_bases),
            kinds=self._offered(number, fleet.members(device)),
            draws=draws,
            ledger=state.ledger,
            like=state.like,
            latency_s=fleet.latency_s(device),
            until=partial(fleet.until, device),
            back=partial(fleet.next, device),
            prefetched_bytes=prefetched_bytes,
            policy=self._policy,
            upload_terms=self._upload_terms(number),
            rest=rest,
        )
        line = self._devices.ask(device, conditions)
        if line.fetched:
            state.bases = bases.fetched(number, line.member, own_bases)
        chosen = line.outcome.plan.chosen
        kind, strategy = ("", None) if chosen is None else (chosen.kind, chosen.strategy)
        name, group = self._devices.fleet.name(device), fleet.group(device)
        samples = self._devices.samples(device)
        return PendingUpdate(device, name, group, number, opening.now, kind, strategy, line, samples)

    def _upload_terms(self, number: int) -> UploadTerms | None:
        """How updates of round `number` are sent; None: as their kinds say."""
        terms = self._terms
        return None if terms is None else replace(terms, alone=self._bases.alone(number))

    def _offered(self, number: int, members: tuple[str, ...]) -> tuple[AnyStrategy, ...]:
        """The kinds of round `number` for a device that trains only these members of a family; (): any."""
        if self._kinds[0] != number:
            self._kinds = number, {(): self._task.preferred(number)}
        by_members = self._kinds[1]
        if members not in by_members:
            limited = (_only(kind, members) for kind in by_members[()])
            by_members[members] = tuple(kind for kind in limited if kind is not None)
        return by_members[members]


def _shuffled(devices: NDArray[np.int64], rng: np.random.Generator) -> Iterator[int]:
    """The devices in a random order, without a Python number for each of them."""
    order = rng.permutation(devices)
    for begin in range(0, len(order), CHUNK):
        yield from order[begin : begin + CHUNK].tolist()


def _only(kind: AnyStrategy, members: tuple[str, ...]) -> AnyStrategy | None:
    """The kind with these of its members only; None where it has others, but none of them."""
    every: tuple[str, ...] = getattr(kind, "members", ())
    own = tuple(member for member in every if member in members)
    if not every:
        return kind
    return replace(kind, members=own) if own else None  # type: ignore[call-arg]
