"""Runs the aggregator's rounds in virtual time, and abandons runs that make no progress."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from device_runtime.aggregator.machine import events
from device_runtime.aggregator.machine.engine import RoundEngine, RoundPort
from device_runtime.aggregator.machine.events import Extend
from device_runtime.aggregator.machine.state import RoundsState, Rules
from device_runtime.aggregator.tasks.closing import FullBuffer, Progress
from device_runtime.aggregator.tasks.task import Task
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation.clock.sampling import DeviceSampler, OpenedRound, PendingUpdate
from device_runtime.simulation.errors import SimulationError

from .learning import ModelState
from .presence import FleetPresence, ReadyFleet

log = logging.getLogger(__name__)

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


WILL_S = 45.0
"""Seconds until the broker reports a lost device: one and a half keep-alives of 30 s."""
RETRY_S = 60.0
"""Virtual seconds until more devices are looked for, where too few could be asked."""


class SimulationLoop(RoundPort):
    """Both ports of the engine of rounds, in virtual time."""

    def __init__(self, task: Task, fleet: Fleet, asking: DeviceSampler, learning: ModelState) -> None:
        selected = asking.selected
        n = len(fleet) if selected is None else selected.count
        cohort = min(task.devices_per_round or n, n)  # without a cohort: always all devices
        rules = replace(Rules.of(task), devices_per_round=cohort, all_devices=n, min_devices=1)
        rules = replace(rules, max_extensions=0)  # ProgressGuard abandons runs instead
        self._asking, self._learning, self._ledger = asking, learning, learning.ledger
        self._agenda = VirtualTimeQueue()
        ready = ReadyFleet(fleet, None, None if selected is None else selected.trains)
        state = RoundsState(rules, devices=FleetPresence(fleet), ready=ready)
        self._engine = RoundEngine(state, self, self)
        self._flights: dict[events.ContributionId, PendingUpdate] = {}
        self._boots: dict[str, int] = {}
        self._guard = ProgressGuard(task, n)
        self._seq = self._serial = 0
        self._looking = False
        self._tick: Callable[[], None] = lambda: self._engine.feed(events.TimePassed(self._agenda.now))

    def run(self) -> None:
        """Runs all rounds. Raises SimulationError when the fleet cannot do them."""
        engine = self._engine
        engine.feed(events.TimePassed(self._agenda.now))
        while engine.state.phase != "done" and self._agenda.step():
            pass
        if engine.state.phase != "done":
            raise SimulationError(f"nothing more happens in round {engine.state.round}")
        now = self._agenda.now
        for flight in self._flights.values():
            self._ledger.ended(replace(flight, line=flight.line.until(now)), "unheard", now)

    def clock(self) -> float:
        return self._agenda.now

    def fetch(self, command: events.FetchContribution, state: RoundsState) -> events.Validated:
        """Accepts what a device sends; it is trained, and checked, when the round is merged."""
        return events.Validated(self._agenda.now, command.update)

    def store(self, command: events.StoreContribution, state: RoundsState) -> None:
        self._guard.kept()
        self._learning.keep(self._flights.pop(command.update))

    def reply(self, command: events.Reply, state: RoundsState) -> None:
        """Records an update that was not accepted; accepted ones are recorded when they are merged."""
        flight = self._flights.pop(command.update, None)
        if flight is not None:
            self._ledger.ended(flight, "late", self._agenda.now, why=command.reason)

    def announce(self, command: events.Announce, state: RoundsState) -> None:
        self._ledger.opened(command.round, self._agenda.now)
        self._set_deadline(state)

    def extend(self, command: events.Extend, state: RoundsState) -> None:
        self._guard.extended(command, self._agenda.now, len(self._flights))
        self._set_deadline(state)

    def _set_deadline(self, state: RoundsState) -> None:
        """Schedules the deadline of a round that was opened or extended."""
        self._serial += 1
        for when in (state.closes_at, state.fast_at):
            if self._agenda.now < when < inf:
                self._agenda.at(when, self._tick)

    def invite(self, command: events.Invite, state: RoundsState) -> tuple[str, ...]:
        """Asks as many of the wanted devices as can be found now, and others when they come."""
        flights = self._asking.ask(self._opening(), command.count)
        self._await(flights)

        def look_again() -> None:
            self._looking = False
            self._engine.state = self._engine.state.but(due=True)  # as when a device comes online
            self._tick()

        if len(flights) < command.count and not self._looking:
            self._looking = True
            self._agenda.at(self._agenda.now + RETRY_S, look_again)
        return tuple(flight.device for flight in flights)

    def _opening(self) -> OpenedRound:
        """The open round; in a buffered run each device has a whole deadline from when it is asked."""
        now, state = self._agenda.now, self._engine.state
        buffered = isinstance(state.rules.closing, FullBuffer)
        closes_at = now + state.rules.deadline_s(state.round) if buffered else state.closes_at
        return OpenedRound(state.round, now, closes_at, state.asked, self._serial, state.extended)

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
            self._agenda.at(line.ends_at, partial(self._end, update))
            for begin, end in line.gaps:
                if begin + WILL_S < end:
                    self._agenda.at(begin + WILL_S, partial(self._presence, flight.device, False))
                    if end < inf:
                        self._agenda.at(end, partial(self._presence, flight.device, True))
            if line.fate == "crashed" and line.back_at < inf:
                self._agenda.at(line.back_at, partial(self._restart, flight))

    def _end(self, update: events.ContributionId) -> None:
        """Ends the part of a device: its update arrives, or it sits out or is lost."""
        now, fate = self._agenda.now, self._flights[update].line.fate
        if fate is None:
            self._engine.feed(events.Announced(now, update))
            return
        flight = self._flights.pop(update)
        self._ledger.ended(flight, fate, now)
        if fate in ("sat out", "rested"):
            self._engine.feed(events.Planned(now, flight.device, flight.round, ""))

    def _presence(self, device: str, online: bool) -> None:
        """Reports a device as offline (its last will) or online (its hello)."""
        boot = self._boots.get(device, 0)
        self._engine.feed(events.DevicePresent(self._agenda.now, device, boot, online))

    def _restart(self, flight: PendingUpdate) -> None:
        """Restarts a crashed device, which is asked again if its answer for the open round is missing."""
        device = flight.device
        self._boots[device] = self._boots.get(device, 0) + 1
        self._presence(device, True)
        if self._engine.state.round == flight.round and self._engine.state.concerns(device):
            again = self._asking.again(self._opening(), flight.index)
            self._await(again)
            if not again:
                self._engine.feed(events.Planned(self._agenda.now, device, flight.round, ""))

    def merge(self, command: events.DoPhase) -> None:
        if command.early:
            log.debug("round %d: %s", command.round, command.early)
        self._learning.merge(command.round, self._agenda.now)

    def publish(self, number: int, state: RoundsState) -> tuple[float, Progress | None]:
        """Closes the round. Keeps the bases of earlier rounds whose late updates may still count."""
        learning, in_use = self._learning, set[int]()
        if state.rules.counts_late:
            oldest = state.round + 1 - state.rules.max_staleness
            in_use = {flight.round for flight in self._flights.values() if flight.round >= oldest}
        self._ledger.closed(number, self._agenda.now, learning.publish(number, in_use))
        return learning.score, None

    def evaluate(self, number: int) -> None:
        self._learning.evaluate(number)

    def give_up(self, command: events.GiveUp | events.GiveUpSums) -> None:
        raise SimulationError(f"round {command.round} brought no updates in {command.deadlines} deadlines")

    def finish(self, command: events.Finish, state: RoundsState) -> None:
        self._learning.finish(command.best)
