"""Where a run is: the rules of its rounds, who is there, what has been counted. Times in seconds.

What grows with the devices is held in persistent collections: an event changes a few nodes of them and
shares the others with the state before, so that it costs the same with ten devices as with many thousands.
They are in no order that means anything: whoever tells others of them sorts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.intake.limits import MOST_DEVICES
from device_runtime.aggregator.tasks.task import Late, Task

from . import pace
from .pace import NO_PROGRESS, Durations, Pace, Progress

Phase = Literal["wait", "collect", "merge", "evaluate", "publish", "done", "given up"]
SETTLE_S = 1.0
"""Seconds after a restart in which a round does not close early: who is online must first be heard of."""
RETRY_S = 1.0
"""Seconds after which a buffered run looks again for devices to ask, where it found too few."""
MAX_RETRY_S = 3600.0
"""Seconds after which a device that found a round full comes again, at most; at least RETRY_S."""
UNTIMED_S = 30 * 86400.0
"""Seconds of a round that has no deadline: it closes when all have answered."""
SILENT = 2
"""Deadlines that a device may let pass without a word; then no round waits for it until it is heard again."""


@dataclass(frozen=True)
class Rules:
    """When a round opens and closes; as in Task. `richest`: each kind with each of its forms, the richest
    first; `bound`: kinds that never count in a later round. No round takes more than `max_contributions`.

    `given`: each round is given from outside (moves.Give), and has the seconds that it was given with.
    """

    rounds: int
    round_deadline_s: float
    min_contributions: int = 1
    max_contributions: int = MOST_DEVICES
    min_devices: int = 1
    late: Late = "discard"
    waits_for_fast: bool = False
    richest: tuple[tuple[str, str], ...] = ()
    bound: frozenset[str] = frozenset()
    devices_per_round: int | None = None
    buffer_size: int = 0
    max_staleness: int = 5
    staleness_weight: float = 0.5
    untimed_rounds: int = 0
    pace: Pace | None = None
    stop_after: int = 0
    stop_gain: float = 0.0
    max_extensions: int = 5
    given: bool = False

    @classmethod
    def of(cls, task: Task) -> Rules:
        """Kinds that are bound to their own round (prototypes) count in no other."""
        return cls(
            rounds=task.rounds,
            round_deadline_s=task.round_deadline_s,
            min_contributions=task.min_contributions,
            min_devices=task.min_devices,
            late=task.late,
            waits_for_fast=task.waits_for_fast,
            richest=tuple((kind.name, form.form) for kind in task.kinds for form in kind.strategy.variants()),
            bound=frozenset(kind.name for kind in task.kinds if kind.strategy.own_round),
            devices_per_round=task.devices_per_round,
            buffer_size=task.buffer_size,
            max_staleness=task.max_staleness,
            staleness_weight=task.staleness_weight,
            untimed_rounds=task.untimed_rounds,
            pace=task.pace,
            stop_after=task.stop_after,
            stop_gain=task.stop_gain,
            max_extensions=task.max_extensions,
        )

    def deadline_s(self, number: int) -> float:
        """Seconds that round `number` has; the first rounds may have as many as they need."""
        return UNTIMED_S if number <= self.untimed_rounds else self.round_deadline_s

    def earliest(self, number: int) -> int:
        """The first round that still matters in round `number`: what comes for an earlier one is too late."""
        return number - (self.max_staleness if self.counts_late else 0)

    def rank(self, kind: str, form: str) -> int:
        """The place of a form of a kind in the order of preference, from 0; the last for an unknown one."""
        return self.richest.index((kind, form)) if (kind, form) in self.richest else len(self.richest)

    @property
    def counts_late(self) -> bool:
        """Whether a contribution to an earlier round may count in the open one."""
        return self.buffer_size > 0 or self.late == "count" or self.waits_for_fast


@dataclass(frozen=True)
class Presence:
    """What is known of a device: the life that it spoke from last, whether that is online, and ready.

    `silences`: deadlines that it has let pass since it was last heard. A will may never come: of a device
    that went while the broker was away, or that hangs.
    """

    boot: int
    online: bool
    ready: bool = True
    silences: int = 0

    @property
    def awaited(self) -> bool:
        """Whether a round may wait for it."""
        return self.online and self.ready and self.silences < SILENT


@dataclass(frozen=True)
class RoundsState:
    """`round` is the open or latest one, 0 before the first; times are in seconds of the events' clock."""

    rules: Rules
    phase: Phase = "wait"
    round: int = 0
    opened_s: float = 0.0
    closes_s: float = 0.0
    settles_s: float = 0.0
    contributions: int = 0
    counted: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    """How many contributions that count in this round each device has sent: more than one where some were
    made for earlier rounds. A minimum and a buffer are of devices.
    """
    had: int = 0
    """Contributions that the round had at its last deadline, 0 before the first."""
    fruitless: int = 0
    """Deadlines of this round in a row that brought no contribution, though devices were there."""
    devices: HashTrieMap[str, Presence] = field(default_factory=HashTrieMap)
    ready: HashTrieSet[str] = field(default_factory=HashTrieSet)
    """The devices that a round may wait for: Presence.awaited."""
    answered: HashTrieSet[str] = field(default_factory=HashTrieSet)
    """Devices that have contributed to this round, or been refused."""
    sat_out: HashTrieSet[str] = field(default_factory=HashTrieSet)
    waiting: HashTrieSet[str] = field(default_factory=HashTrieSet)
    """Whom the round waits for: those that are ready, and asked, and have neither answered nor sat out."""
    asked: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    """With cohorts: the latest round that each device was asked for, while that matters. Without: empty,
    everyone is asked.
    """
    behind: HashTrieMap[str, float] = field(default_factory=HashTrieMap)
    """With cohorts: devices at work on a round before this one, and since when nobody waits for them."""
    places: int = 0
    """With cohorts: devices that are to be asked still; there may have been none to ask."""
    due: bool = False
    """Whether there may be somebody to ask, or a place to fill, since that was tried last."""
    retries_s: float = inf
    """When that is to be tried again anyhow."""
    asked_s: HashTrieMap[str, float] = field(default_factory=HashTrieMap)
    """Where deadlines are learnt: when devices of a cohort were asked that were not asked at the opening.
    Where rounds wait for the fast: when each device was asked last, where that was not at an opening.
    """
    durations: HashTrieMap[int, int] = field(default_factory=HashTrieMap)
    """Where deadlines are learnt: how many devices needed how long in this round, by class (`pace`). Where
    rounds wait for the fast: the samples of devices with the richest updates, when the last round closed.
    """
    fast_s: float = inf
    """Where rounds wait for the fast: when this round closes if enough have contributed; inf: not known."""
    opened: HashTrieMap[int, float] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: when those opened, but for the first, that updates may come from."""
    needs: HashTrieMap[str, tuple[int, int, int]] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: of the last update of each device, in whatever round, the rank of its
    form, the class of how long it took, and its samples.
    """
    delivered: HashTrieMap[str, tuple[int, float]] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: the latest round that each device sent an update of, and when."""
    noted: HashTrieMap[tuple[str, str], int] = field(default_factory=HashTrieMap)
    """Which class each of this round's contributions, by device and kind, was counted in there."""
    measured: bool = True
    """Whether durations are known: not in a round that a restart has interrupted."""
    paces: tuple[Durations, ...] = ()
    """The durations of the last rounds."""
    progress: Progress = NO_PROGRESS
    given_up: frozenset[int] = frozenset()
    """Rounds that led to models which were given up: what comes late for them does not count."""

    @property
    def online(self) -> frozenset[str]:
        """A look at every device."""
        return frozenset(name for name, presence in self.devices.items() if presence.online)

    @property
    def full(self) -> bool:
        """Whether no more can count in this round."""
        return self.contributions >= self.rules.max_contributions

    def deadline_s(self, number: int) -> float:
        """Seconds that round `number` has, which is open or the next: learnt where deadlines are, and then
        doubled with each that was fruitless.
        """
        fixed = self.rules.deadline_s(number)
        if self.rules.pace is None or number <= self.rules.untimed_rounds:
            return fixed
        fruitless = self.fruitless if number == self.round else 0
        return min(fixed, 2.0**fruitless * pace.deadline_s(self.rules.pace, self.paces, fixed))

    def closing_s(self, number: int) -> float:
        """Seconds after which round `number`, open or the next, closes if enough have contributed; inf where
        it waits for all: of a cohort too little is known in the first rounds. Whoever needs no more than the
        deadline is at most `max_staleness` rounds late.
        """
        rules = self.rules
        if not rules.waits_for_fast or number <= rules.untimed_rounds:
            return inf
        if rules.devices_per_round in range(len(self.ready)) and len(self.paces) < pace.WINDOW:
            return inf
        return pace.closing_s(self.paces, self.deadline_s(number) / rules.max_staleness)

    @property
    def extensions_left(self) -> int | None:
        """How many more fruitless deadlines end the run; None where none do, or the next is a longer one."""
        rules = self.rules
        if not rules.max_extensions or rules.given:
            return None
        if self.deadline_s(self.round) < rules.deadline_s(self.round):
            return None
        return max(1, rules.max_extensions - self.fruitless)

    def is_asked(self, device: str) -> bool:
        """Whether a device may contribute to this round."""
        return self.rules.devices_per_round is None or self.asked.get(device) == self.round

    def concerns(self, device: str) -> bool:
        """Whether a device that comes is told of the open round: of a cohort, while it owes an answer."""
        if self.phase != "collect" or self.rules.devices_per_round is None:
            return self.phase == "collect"
        return self.is_asked(device) and device not in self.answered

    def remaining_s(self, now: float) -> float:
        """Seconds that a device which is told of the open round now has for it.

        Until the deadline; in a buffered run, where rounds close by their number, a whole one.
        """
        if self.phase != "collect":
            return 0.0
        if self.rules.buffer_size:
            return self.rules.deadline_s(self.round)
        return max(0.0, self.closes_s - now)

    def but(self, **changes: Any) -> RoundsState:
        """The state with these fields changed: dataclasses.replace in a tenth of its time."""
        after = object.__new__(RoundsState)
        after.__dict__.update(self.__dict__)
        after.__dict__.update(changes)
        return after


@dataclass(frozen=True)
class Saved:
    """Where a run was: the latest round, how far it was, whose contributions it has, who was asked when."""

    round: int
    phase: Literal["collect", "merge", "evaluate", "publish", "closed"]
    counted: Mapping[str, int] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    asked: Mapping[str, int] = field(default_factory=dict)
    paces: tuple[Durations, ...] = ()
    progress: Progress = NO_PROGRESS
    present: Mapping[str, int] = field(default_factory=dict)
    """Devices that were ready, and the life that each spoke from."""
    fruitless: int = 0
    """As in State."""
    given_up: frozenset[int] = frozenset()
