"""The state of the round machine: rules, devices, and counted contributions. Times in seconds.

Fields that grow with the devices are persistent collections: an event changes a few of their nodes and shares
the others with the state before, so that it costs about the same with ten devices as with many thousands.
Their order has no meaning: code that shows them to others sorts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, Protocol

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.limits import MOST_DEVICES
from device_runtime.aggregator.tasks import closing
from device_runtime.aggregator.tasks.closing import (
    NO_PROGRESS,
    AllDevices,
    Closing,
    Durations,
    FastDevices,
    FullBuffer,
    LearntDeadline,
    Progress,
)
from device_runtime.aggregator.tasks.task import Late, Task

Phase = Literal["wait", "collect", "unmask", "merge", "evaluate", "publish", "done", "given up"]
SETTLE_S = 1.0
"""Seconds after a restart in which a round does not close early, as presence must arrive first."""
RETRY_S = 1.0
"""Seconds after which a buffered run looks again for devices to ask, where it found too few."""
MAX_RETRY_S = 3600.0
"""Seconds, at most, after which a device that found a round full tries again; at least RETRY_S."""
UNMASK_RETRY_S = 5
"""Seconds after which a device sends an update again that came while a round was unmasked."""
UNTIMED_S = 30 * 86400.0
"""Seconds of a round that has no deadline: it closes when all have answered."""
EVERY = 10**9
"""More devices than there are: a round that draws so many asks all that take part."""
MISSED_DEADLINES = 2
"""Deadlines that a device may miss without a message; then no round waits for it until it sends one."""


@dataclass(frozen=True)
class Rules:
    """When a round opens and closes; fields as in Task, and these.

    richest: pairs of kind and form, the richest first.
    bound: kinds that never count in a later round.
    all_devices: as many as all, where rounds that ask all draw a cohort too: in simulations, and where some
    devices take no part; else None.
    max_contributions: the most contributions of a round.
    given: each round is given from outside (`events.Give`), with its deadline.
    masked: updates are masked, and mask helpers are asked for sums before a round is merged.
    """

    rounds: int
    round_deadline_s: float
    closing: Closing = field(default_factory=AllDevices)
    min_contributions: int = 1
    max_contributions: int = MOST_DEVICES
    min_devices: int = 1
    late: Late = "discard"
    richest: tuple[tuple[str, str], ...] = ()
    bound: frozenset[str] = frozenset()
    devices_per_round: int | None = None
    ask_all_rounds: int = 0
    all_devices: int | None = None
    max_staleness: int = 5
    untimed_rounds: int = 0
    stop_after: int = 0
    stop_gain: float = 0.0
    max_extensions: int = 5
    given: bool = False
    masked: bool = False

    @classmethod
    def of(cls, task: Task) -> Rules:
        """The rules of a task."""
        settings = {rule.name: getattr(task, rule.name) for rule in fields(cls) if hasattr(task, rule.name)}
        if task.participants:  # the offer to all would reach those that are left out
            settings |= {"devices_per_round": task.devices_per_round or EVERY, "all_devices": EVERY}
        return cls(
            **settings,
            richest=tuple(
                (kind.name, form.variant) for kind in task.kinds for form in kind.strategy.variants()
            ),
            bound=frozenset(kind.name for kind in task.kinds if kind.strategy.traits.own_round),
            masked=task.masks is not None,
        )

    def deadline_s(self, number: int, paces: Iterable[Durations] = (), fruitless: int = 0) -> float:
        """Seconds that round `number` has; the first rounds may have as many as they need.

        A learnt deadline is that of the last rounds' durations, `paces`, and at most the fixed one, as also
        without any. It doubles with each fruitless one.
        """
        if number <= self.untimed_rounds:
            return UNTIMED_S
        most_s = self.round_deadline_s
        if not isinstance(self.closing, LearntDeadline):
            return most_s
        return min(most_s, 2.0**fruitless * closing.deadline_s(self.closing, paces, most_s))

    def cohort(self, number: int) -> int | None:
        """The number of devices to ask in round `number`; None: all, without a draw."""
        return self.all_devices if 0 < number <= self.ask_all_rounds else self.devices_per_round

    def earliest(self, number: int) -> int:
        """The first round whose contributions are not too late in round `number`."""
        return number - (self.max_staleness if self.counts_late else 0)

    def rank(self, kind: str, form: str) -> int:
        """The place of a form in `richest`, from 0; an unknown form comes after all others."""
        return self.richest.index((kind, form)) if (kind, form) in self.richest else len(self.richest)

    @property
    def counts_late(self) -> bool:
        """Whether a contribution to an earlier round may count in the open one."""
        return self.late == "count" or self.closing.counts_late


@dataclass(frozen=True)
class Presence:
    """What is known of a device: the process (`boot`) that was last heard, whether it is online, and ready.

    `silences`: deadlines that it missed since it was last heard. They are counted because a last will may
    never come: of a device that left while the broker was away, or that hangs.
    """

    boot: int
    online: bool
    ready: bool = True
    silences: int = 0

    @property
    def awaited(self) -> bool:
        """Whether a round may wait for it."""
        return self.online and self.ready and self.silences < MISSED_DEADLINES


class DevicePresences(Protocol):
    """The presence of devices by name, a persistent map: an HashTrieMap, or a view of a simulated fleet."""

    def __getitem__(self, device: str, /) -> Presence: ...
    def __contains__(self, device: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def get(self, device: str, /) -> Presence | None: ...
    def items(self) -> Iterable[tuple[str, Presence]]: ...
    def insert(self, device: str, presence: Presence, /) -> DevicePresences: ...
    def discard(self, device: str, /) -> DevicePresences: ...


class DeviceNames(Protocol):
    """Names of devices, a persistent set: an HashTrieSet, or a view of a simulated fleet."""

    def __contains__(self, device: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def insert(self, device: str, /) -> DeviceNames: ...
    def discard(self, device: str, /) -> DeviceNames: ...


_NO_PRESENCES: HashTrieMap[str, Presence] = HashTrieMap()
_NO_NAMES: HashTrieSet[str] = HashTrieSet()


@dataclass(frozen=True)
class RoundsState:
    """The state of a run. `round` is the open or latest round, 0 before the first.

    Times are in seconds of the events' clock.
    """

    rules: Rules
    phase: Phase = "wait"
    round: int = 0
    opened_at: float = 0.0
    closes_at: float = 0.0
    """When the open round's deadline ends, or that of the mask helpers while the round is unmasked."""
    settles_at: float = 0.0
    contributions: int = 0
    counted: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    """The number of contributions of each device that were accepted in this round.

    It is more than one where some were made for earlier rounds; the `newest` is merged. `min_contributions`
    and a buffer's size count devices.
    """
    newest: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    """The latest round for which each device sent a contribution that counts in this round.

    Of several contributions of a device only this one is merged.
    """
    had: int = 0
    """The number of contributions at the round's last deadline; 0 before the first deadline."""
    fruitless: int = 0
    """This round's deadlines in a row that brought no contribution though devices were there.

    While the round is unmasked: deadlines in a row that brought no answer of a mask helper.
    """
    devices: DevicePresences = field(default_factory=lambda: _NO_PRESENCES)
    ready: DeviceNames = field(default_factory=lambda: _NO_NAMES)
    """The devices that a round may wait for: Presence.awaited."""
    answered: HashTrieSet[str] = field(default_factory=HashTrieSet)
    """Devices that have contributed to this round, or been refused."""
    sat_out: HashTrieSet[str] = field(default_factory=HashTrieSet)
    waiting: DeviceNames = field(default_factory=lambda: _NO_NAMES)
    """Devices that the round waits for: ready, asked, and neither answered nor sat out."""
    asked: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    """With cohorts: the latest round that each device was asked for, as long as that matters.

    Without cohorts, and in rounds that ask all, devices are not recorded here: all are asked.
    """
    behind: HashTrieMap[str, float] = field(default_factory=HashTrieMap)
    """With cohorts: devices at work on an earlier round, and the time since when no round waits for them."""
    places: int = 0
    """With cohorts: the number of devices still to be asked; there may have been none to ask."""
    due: bool = False
    """Whether a device to ask, or a free place, may have appeared since the last draw."""
    retries_at: float = inf
    """When to draw again in any case."""
    asked_at: HashTrieMap[str, float] = field(default_factory=HashTrieMap)
    """When devices were asked.

    Where deadlines are learnt: only devices of a cohort that were not asked when the round opened. Where
    rounds wait for the fast: the last time of each device, if it was not when a round opened.
    """
    durations: HashTrieMap[int, int] = field(default_factory=HashTrieMap)
    """Durations by class (`pace`).

    Where deadlines are learnt: the number of devices in each class in this round. Where rounds wait for the
    fast: the samples of devices that sent the richest updates, as of when the last round closed.
    """
    fast_at: float = inf
    """Where rounds wait for the fast: when this round closes if enough have contributed; inf: not known."""
    opened: HashTrieMap[int, float] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: when each round opened whose updates may still come, except round 1."""
    needs: HashTrieMap[str, tuple[int, int, int]] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: each device's last update, of any round.

    Values: the rank of its form, the class of its duration, and its samples.
    """
    delivered: HashTrieMap[str, tuple[int, float]] = field(default_factory=HashTrieMap)
    """Where rounds wait for the fast: the latest round for which each device sent an update, and when."""
    noted: HashTrieMap[tuple[str, str], int] = field(default_factory=HashTrieMap)
    """The class of `durations` in which a contribution to this round was counted, by device and kind."""
    measured: bool = True
    """Whether durations are known; not in a round that a restart has interrupted."""
    paces: tuple[Durations, ...] = ()
    """The durations of the last rounds."""
    progress: Progress = NO_PROGRESS
    given_up: frozenset[int] = frozenset()
    """Rounds that a rollback discarded: late contributions made for them do not count."""

    @property
    def online(self) -> frozenset[str]:
        """The devices that are online. Looks at every device."""
        return frozenset(name for name, presence in self.devices.items() if presence.online)

    @property
    def full(self) -> bool:
        """Whether the round takes no more contributions."""
        return self.contributions >= self.rules.max_contributions

    def deadline_s(self, number: int) -> float:
        """The deadline of round `number`, the open or the next one, in seconds."""
        return self.rules.deadline_s(number, self.paces, self.fruitless if number == self.round else 0)

    @property
    def extended(self) -> bool:
        """Whether the open round has more time than it opened with."""
        return self.closes_at - self.opened_at > 1.001 * self.deadline_s(self.round)

    def closing_s(self, number: int) -> float:
        """Seconds after which round `number`, the open or the next one, closes if enough have contributed.

        Infinite where it waits for all: in the first rounds, and with cohorts for longer, because too little
        is known of the devices. It is long enough that a device which needs no more than the deadline is at
        most `max_staleness` rounds late.
        """
        rules = self.rules
        if not isinstance(rules.closing, FastDevices) or number <= rules.untimed_rounds:
            return inf
        if rules.devices_per_round in range(len(self.ready)) and len(self.paces) < closing.WINDOW:
            return inf
        return closing.closing_s(self.paces, self.deadline_s(number) / rules.max_staleness)

    @property
    def extensions_left(self) -> int | None:
        """The number of fruitless deadlines after which the run ends.

        None where the run does not end by them, or the next deadline is a longer one.
        """
        rules = self.rules
        if not rules.max_extensions or rules.given:
            return None
        if self.deadline_s(self.round) < rules.deadline_s(self.round):
            return None
        return max(1, rules.max_extensions - self.fruitless)

    def is_asked(self, device: str) -> bool:
        """Whether a device may contribute to this round."""
        return self.rules.cohort(self.round) is None or self.asked.get(device) == self.round

    def concerns(self, device: str) -> bool:
        """Whether a device that comes is offered the open round: with cohorts, if asked and yet to answer."""
        if self.phase != "collect" or self.rules.cohort(self.round) is None:
            return self.phase == "collect"
        return self.is_asked(device) and device not in self.answered

    def remaining_s(self, now: float) -> float:
        """Seconds that a device has for the open round if it is offered now.

        They end at the deadline; in a buffered run, whose rounds close by their number of devices, a device
        always has a full deadline.
        """
        if self.phase != "collect":
            return 0.0
        if isinstance(self.rules.closing, FullBuffer):
            return self.rules.deadline_s(self.round)
        return max(0.0, self.closes_at - now)

    def but(self, **changes: Any) -> RoundsState:
        """The state with these fields changed; takes a tenth of the time of dataclasses.replace."""
        after = object.__new__(RoundsState)
        after.__dict__.update(self.__dict__)
        after.__dict__.update(changes)
        return after


@dataclass(frozen=True)
class Saved:
    """The saved state of a run: its latest round and phase, contributions, and devices asked and present."""

    round: int
    phase: Literal["collect", "unmask", "merge", "evaluate", "publish", "closed"]
    counted: Mapping[str, int] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    asked: Mapping[str, int] = field(default_factory=dict)
    paces: tuple[Durations, ...] = ()
    progress: Progress = NO_PROGRESS
    present: Mapping[str, int] = field(default_factory=dict)
    """Devices that were ready, and the process (`boot`) of each that was heard."""
    fruitless: int = 0
    """As in RoundsState."""
    given_up: frozenset[int] = frozenset()
    newest: Mapping[str, int] = field(default_factory=dict)
