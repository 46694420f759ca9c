"""Runs the aggregator's round machine in virtual time, and abandons runs that make no progress."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.machine import events
from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import Extend
from device_runtime.aggregator.machine.state import Presence, RoundsState, Rules
from device_runtime.aggregator.tasks.closing import FullBuffer
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.clock.sampling import DeviceSampler, OpenedRound, PendingUpdate
from device_runtime.simulation.errors import SimulationError

from .learning import ModelState
from .ledger import RunLedger

log = logging.getLogger(__name__)

WILL_S = 45.0
"""Seconds until the broker reports a lost device: one and a half keep-alives of 30 s."""
RETRY_S = 60.0
"""Virtual seconds until more devices are looked for, where too few could be asked."""


@dataclass(frozen=True)
class SimulationParts:
    """The parts of a run: choosing devices, training and merging, writing the records."""

    asking: DeviceSampler
    learning: ModelState
    ledger: RunLedger


class SimulationLoop:
    """Feeds events to the round machine and does its commands, as the aggregator's service does with I/O."""

    def __init__(self, task: Task, names: Sequence[str], parts: SimulationParts) -> None:
        """`names` are those of all devices of the fleet."""
        self._task = task
        cohort = min(task.devices_per_round or len(names), len(names))  # without a cohort: always all devices
        rules = replace(Rules.of(task), devices_per_round=cohort, all_devices=len(names), min_devices=1)
        rules = replace(rules, max_extensions=0)  # ProgressGuard abandons runs instead
        self._parts = parts
        self._agenda = VirtualTimeQueue()
        self._state = _initial_state(rules, names)
        self._events: deque[events.Event] = deque()
        self._flights: dict[events.ContributionId, PendingUpdate] = {}
        self._boots: dict[str, int] = {}
        self._guard = ProgressGuard(task, len(names))
        self._seq = self._serial = 0
        self._looking = False

    def run(self) -> None:
        """Runs all rounds. Raises SimulationError when the fleet cannot do them."""
        self._feed(events.TimePassed(self._agenda.now))
        while self._state.phase != "done" and self._agenda.step():
            pass
        if self._state.phase != "done":
            raise SimulationError(f"nothing more happens in round {self._state.round}")
        now = self._agenda.now
        for flight in self._flights.values():
            self._parts.ledger.ended(replace(flight, line=flight.line.until(now)), "unheard", now)

    def _feed(self, event: events.Event) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        while self._events:
            self._do(*machine.step(self._state, self._events.popleft()))

    def _do(self, state: RoundsState, commands: Sequence[events.Command]) -> None:
        self._state = state
        for command in commands:
            match command:
                case events.FetchContribution():
                    self._events.append(events.Validated(self._agenda.now, command.update))
                case events.StoreContribution():
                    self._guard.kept()
                    self._parts.learning.keep(self._flights.pop(command.update))
                case events.Reply():
                    self._reply(command)
                case events.Announce():
                    self._parts.ledger.opened(command.round, self._agenda.now)
                    self._set_deadline()
                case events.Extend():
                    self._extend(command)
                case events.Invite():
                    self._invite(command)
                case events.DoPhase():
                    self._work(command)
                case events.Finish():
                    self._parts.learning.finish(command.best)

    def _set_deadline(self) -> None:
        """Schedules the deadline of a round that was opened or extended."""
        self._serial += 1
        for when in (self._state.closes_s, self._state.fast_s):
            if self._agenda.now < when < inf:
                self._agenda.at(when, lambda: self._feed(events.TimePassed(self._agenda.now)))

    def _extend(self, command: events.Extend) -> None:
        self._guard.extended(command, self._agenda.now, len(self._flights))
        self._set_deadline()

    def _invite(self, command: events.Invite) -> None:
        """Asks as many of the wanted devices as can be found now, and others when they come."""
        now = self._agenda.now
        flights = self._parts.asking.ask(self._opening(), command.count)
        self._events.appendleft(events.Invited(now, command.round, tuple(f.device for f in flights)))
        self._await(flights)
        if len(flights) < command.count and not self._looking:
            self._looking = True
            self._agenda.at(now + RETRY_S, self._look_again)

    def _look_again(self) -> None:
        """Tries again to fill the free places of the round, as when a device comes online."""
        self._looking = False
        self._state = self._state.but(due=True)
        self._feed(events.TimePassed(self._agenda.now))

    def _opening(self) -> OpenedRound:
        """The open round; in a buffered run each device has a whole deadline from when it is asked."""
        now, state = self._agenda.now, self._state
        buffered = isinstance(state.rules.closing, FullBuffer)
        closes_s = now + state.rules.deadline_s(state.round) if buffered else state.closes_s
        return OpenedRound(state.round, now, closes_s, state.asked, self._serial)

    def _await(self, flights: Sequence[PendingUpdate]) -> None:
        """Schedules when each device answers or is lost, and when it goes offline and comes back."""
        self._guard.asked(self._agenda.now, len(flights))
        for flight in flights:
            line = flight.line
            self._seq += 1
            form = "" if flight.strategy is None else flight.strategy.variant
            update = events.ContributionId(
                flight.device, flight.round, flight.kind, 0, self._seq, flight.samples, form
            )
            self._flights[update] = flight
            self._agenda.at(line.ends_s, partial(self._arrive if line.fate is None else self._lose, update))
            for begin, end in line.gaps:
                if begin + WILL_S < end:
                    self._agenda.at(begin + WILL_S, partial(self._presence, flight.device, False))
                    if end < inf:
                        self._agenda.at(end, partial(self._presence, flight.device, True))
            if line.fate == "crashed" and line.back_s < inf:
                self._agenda.at(line.back_s, partial(self._restart, flight))

    def _arrive(self, update: events.ContributionId) -> None:
        self._feed(events.Announced(self._agenda.now, update))

    def _lose(self, update: events.ContributionId) -> None:
        """Ends the part of a device that sits out or is lost."""
        flight, now = self._flights.pop(update), self._agenda.now
        if flight.line.fate is not None:
            self._parts.ledger.ended(flight, flight.line.fate, now)
        if flight.line.fate == "sat out":
            self._feed(events.Planned(now, flight.device, flight.round, ""))

    def _presence(self, device: str, online: bool) -> None:
        """Reports a device as offline (its last will) or online (its hello)."""
        boot = self._boots.get(device, 0)
        self._feed(events.DevicePresent(self._agenda.now, device, boot, online))

    def _restart(self, flight: PendingUpdate) -> None:
        """Restarts a crashed device, which is asked again if its answer for the open round is missing."""
        device = flight.device
        self._boots[device] = self._boots.get(device, 0) + 1
        self._presence(device, True)
        if self._state.round == flight.round and self._state.concerns(device):
            again = self._parts.asking.again(self._opening(), flight.index)
            self._await(again)
            if not again:
                self._feed(events.Planned(self._agenda.now, device, flight.round, ""))

    def _reply(self, command: events.Reply) -> None:
        """Records an update that was not accepted; accepted ones are recorded when they are merged."""
        flight = self._flights.pop(command.update, None)
        if flight is not None:
            self._parts.ledger.ended(flight, "late", self._agenda.now, why=command.reason)

    def _work(self, command: events.DoPhase) -> None:
        learning, now = self._parts.learning, self._agenda.now
        event = events.PhaseDone(now, command.phase)
        if command.phase == "merge":
            if command.early:
                log.debug("round %d: %s", command.round, command.early)
            learning.merge(command.round, now)
        elif command.phase == "evaluate":
            learning.evaluate(command.round)
        elif command.phase == "publish":  # nothing is to be done to unmask: no helper is asked
            self._parts.ledger.closed(command.round, now, learning.publish(command.round, self._in_use()))
            event = replace(event, score=learning.score)
        self._events.append(event)

    def _in_use(self) -> set[int]:
        """The earlier rounds whose late updates may still count, so that their bases are needed."""
        state = self._state
        if not state.rules.counts_late:
            return set()
        oldest = state.round + 1 - state.rules.max_staleness
        return {flight.round for flight in self._flights.values() if flight.round >= oldest}


def _initial_state(rules: Rules, names: Sequence[str]) -> RoundsState:
    """The state before the first round, with every device known and ready.

    Whether a device can be asked is for the simulated fleet to say.
    """
    here = Presence(0, online=True)
    return RoundsState(rules, devices=HashTrieMap(dict.fromkeys(names, here)), ready=HashTrieSet(names))


Action = Callable[[], None]


class VirtualTimeQueue:
    """A queue of timed actions in virtual time; those of one moment are done in the order they were added.

    `now` is in virtual seconds; it moves only when the next action is done.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def at(self, when: float, action: Action) -> None:
        """Adds an action; one for a time before now is done now."""
        self._count += 1
        heapq.heappush(self._entries, (max(when, self.now), self._count, action))

    def step(self) -> bool:
        """Does the next action; returns whether there was one."""
        if not self._entries:
            return False
        self.now, _, action = heapq.heappop(self._entries)
        action()
        return True


MOST_EXTENSIONS = 1000
"""Deadlines in a row that may pass without an update of the asked devices; then the run is abandoned."""
MOST_ASKS = 100
"""Times that each device, on average, may be asked without an update; then the run is abandoned."""
ALONE_S = 2 * 86_400.0
"""Seconds without a device that can be asked, after which the run is abandoned.

Two days, because devices come and go by the day.
"""


class ProgressGuard:
    """Abandons a run in which no device can be asked, or asked devices send no updates.

    `extended` then raises SimulationError.
    """

    def __init__(self, task: Task, devices: int) -> None:
        self._task, self._devices = task, devices
        self._extensions = self._asks = self._asks_then = 0
        self._asked_s = 0.0

    def asked(self, now: float, count: int) -> None:
        """Notes that `count` devices were asked."""
        if count:
            self._asked_s, self._asks = now, self._asks + count

    def kept(self) -> None:
        """Notes an update that counts."""
        self._extensions = self._asks = self._asks_then = 0

    def extended(self, extended: Extend, now: float, at_work: int) -> None:
        """Notes a deadline that passed with too few updates while `at_work` devices are at work."""
        task, what = self._task, f"round {extended.round} has {extended.contributions} of "
        what += f"{self._task.min_contributions} updates"
        if self._asks > self._asks_then:
            self._extensions, self._asks_then = self._extensions + 1, self._asks
        if self._extensions >= MOST_EXTENSIONS or self._asks >= MOST_ASKS * self._devices:
            raise SimulationError(
                f"{what}: devices were asked {self._asks} times in vain since the last one, in "
                f"{self._extensions} deadlines of {task.round_deadline_s:g} s; the fleet cannot do this task"
            )
        if not at_work and now - self._asked_s > max(ALONE_S, 2 * task.round_deadline_s):
            raise SimulationError(
                f"{what}: no device could be asked for {(now - self._asked_s) / 3600:.0f} hours; all are "
                "unavailable, at work, or out of battery"
            )
