"""One run on virtual time: feeds the aggregator's round machine, and does what it commands, in its order."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.rounds import events as moves
from device_runtime.aggregator.rounds import machine
from device_runtime.aggregator.rounds.events import Extend
from device_runtime.aggregator.rounds.state import Presence, RoundsState, Rules
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.learning import Learning
from device_runtime.simulation.ledger import RunLedger

from .asking import Asking, Flight, OpenedRound

log = logging.getLogger(__name__)

WILL_S = 45.0
"""Seconds until the broker says that a device is gone: one and a half keep-alives of 30 s."""
RETRY_S = 60.0
"""Virtual seconds after which more devices are looked for, where too few could be asked: some have come."""


@dataclass(frozen=True)
class DirectorParts:
    """What a run is made of: who is asked, who trains and merges, who writes it down."""

    asking: Asking
    learning: Learning
    ledger: RunLedger


class Director:
    """`run` is the whole of it. The service's shell does the same with sockets and a disk."""

    def __init__(self, task: Task, names: Sequence[str], parts: DirectorParts) -> None:
        """`names` of all devices of the fleet."""
        self._task = task
        asked = min(task.devices_per_round or len(names), len(names))  # always: all, where no cohort is drawn
        rules = replace(Rules.of(task), devices_per_round=asked, min_devices=1)
        rules = replace(rules, max_extensions=0)  # Patience ends a run
        self._parts = parts
        self._agenda = Agenda()
        self._state = _everybody_there(rules, names)
        self._events: deque[moves.Event] = deque()
        self._flights: dict[moves.Update, Flight] = {}
        self._boots: dict[str, int] = {}
        self._patience = Patience(task, len(names))
        self._seq = self._serial = 0
        self._looking = False

    def run(self) -> None:
        """All rounds. Raises SimulationError when the fleet cannot do them."""
        self._feed(moves.Tick(self._agenda.now))
        while self._state.phase != "done" and self._agenda.step():
            pass
        if self._state.phase != "done":
            raise SimulationError(f"nothing more happens in round {self._state.round}")
        for flight in self._flights.values():
            self._parts.ledger.ended(flight, "unheard", self._agenda.now)

    def _feed(self, event: moves.Event) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        while self._events:
            self._do(*machine.step(self._state, self._events.popleft()))

    def _do(self, state: RoundsState, commands: Sequence[moves.Command]) -> None:
        self._state = state
        for command in commands:
            match command:
                case moves.Fetch():
                    self._events.append(moves.Validated(self._agenda.now, command.update))
                case moves.StoreContribution():
                    self._patience.kept()
                    self._parts.learning.keep(self._flights.pop(command.update))
                case moves.Reply():
                    self._reply(command)
                case moves.Announce():
                    self._parts.ledger.opened(command.round, self._agenda.now)
                    self._set_deadline()
                case moves.Extend():
                    self._extend(command)
                case moves.Invite():
                    self._invite(command)
                case moves.DoPhase():
                    self._work(command)
                case moves.Finish():
                    self._parts.learning.finish(command.best)

    def _set_deadline(self) -> None:
        """A round has opened, or goes on."""
        self._serial += 1
        for when in (self._state.closes_s, self._state.fast_s):
            if self._agenda.now < when < inf:
                self._agenda.at(when, lambda: self._feed(moves.Tick(self._agenda.now)))

    def _extend(self, command: moves.Extend) -> None:
        self._patience.extended(command, self._agenda.now, len(self._flights))
        self._set_deadline()

    def _invite(self, command: moves.Invite) -> None:
        """Ask as many as can be found, and later those that come."""
        now = self._agenda.now
        flights = self._parts.asking.ask(self._opening(), command.count)
        self._events.appendleft(moves.Invited(now, command.round, tuple(f.device for f in flights)))
        self._await(flights)
        if len(flights) < command.count and not self._looking:
            self._looking = True
            self._agenda.at(now + RETRY_S, self._look_again)

    def _look_again(self) -> None:
        """As when a device comes: the places that are free may be filled."""
        self._looking = False
        self._state = self._state.but(due=True)
        self._feed(moves.Tick(self._agenda.now))

    def _opening(self) -> OpenedRound:
        """The open round; of a buffered run a device has its own whole deadline, whenever it is asked."""
        now, state = self._agenda.now, self._state
        closes_s = now + state.rules.deadline_s(state.round) if state.rules.buffer_size else state.closes_s
        return OpenedRound(state.round, now, closes_s, state.asked, self._serial)

    def _await(self, flights: Sequence[Flight]) -> None:
        """Put down when each is heard of, and between which times it is not."""
        self._patience.asked(self._agenda.now, len(flights))
        for flight in flights:
            line = flight.line
            self._seq += 1
            form = "" if flight.strategy is None else flight.strategy.form
            update = moves.Update(
                flight.device, flight.round, flight.kind, 0, self._seq, flight.samples, form
            )
            self._flights[update] = flight
            self._agenda.at(line.ends_s, partial(self._arrive if line.lost is None else self._lose, update))
            for begin, end in line.gaps:
                if begin + WILL_S < end:
                    self._agenda.at(begin + WILL_S, partial(self._presence, flight.device, False))
                    if end < inf:
                        self._agenda.at(end, partial(self._presence, flight.device, True))
            if line.lost == "crashed" and line.back_s < inf:
                self._agenda.at(line.back_s, partial(self._restart, flight))

    def _arrive(self, update: moves.Update) -> None:
        self._feed(moves.Announced(self._agenda.now, update))

    def _lose(self, update: moves.Update) -> None:
        """It sits out and says so, or it is gone."""
        flight, now = self._flights.pop(update), self._agenda.now
        if flight.line.lost is not None:
            self._parts.ledger.ended(flight, flight.line.lost, now)
        if flight.line.lost == "sat out":
            self._feed(moves.Planned(now, flight.device, flight.round, ""))

    def _presence(self, device: str, online: bool) -> None:
        """Its last will says that it is gone, or it says that it is there again."""
        boot = self._boots.get(device, 0)
        self._feed(moves.DevicePresent(self._agenda.now, device, boot, online))

    def _restart(self, flight: Flight) -> None:
        """A new life: it is told of a round that it still owes an answer, and begins again or sits out."""
        device = flight.device
        self._boots[device] = self._boots.get(device, 0) + 1
        self._presence(device, True)
        if self._state.round == flight.round and self._state.concerns(device):
            again = self._parts.asking.again(self._opening(), flight.index)
            self._await(again)
            if not again:
                self._feed(moves.Planned(self._agenda.now, device, flight.round, ""))

    def _reply(self, command: moves.Reply) -> None:
        """Kept updates are in the ledger once they are trained and merged."""
        flight = self._flights.pop(command.update, None)
        if flight is not None:
            self._parts.ledger.ended(flight, "late", self._agenda.now, why=command.reason)

    def _work(self, command: moves.DoPhase) -> None:
        learning, now = self._parts.learning, self._agenda.now
        worked = moves.PhaseDone(now, command.phase)
        if command.phase == "merge":
            if command.early:
                log.debug("round %d: %s", command.round, command.early)
            learning.merge(command.round, now)
        elif command.phase == "evaluate":
            learning.evaluate(command.round)
        else:
            self._parts.ledger.closed(command.round, now, learning.publish(command.round, self._in_use()))
            worked = replace(worked, score=learning.score)
        self._events.append(worked)

    def _in_use(self) -> set[int]:
        """The rounds, but the newest, that updates may come from and count: their bases are needed yet."""
        state = self._state
        if not state.rules.counts_late:
            return set()
        oldest = state.round + 1 - state.rules.max_staleness
        return {flight.round for flight in self._flights.values() if flight.round >= oldest}


def _everybody_there(rules: Rules, names: Sequence[str]) -> RoundsState:
    """Before the first round, with every device known; whether one can be asked is for the fleet to say."""
    here = Presence(0, online=True)
    return RoundsState(rules, devices=HashTrieMap(dict.fromkeys(names, here)), ready=HashTrieSet(names))


# FROM agenda: Virtual time: what happens when, in the order of time and, at one moment, in the order it was
# put down.

Action = Callable[[], None]


class Agenda:
    """`now` is in virtual seconds; it moves only when the next entry is done."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def at(self, when: float, action: Action) -> None:
        """Put it down; what should have been before now is done now."""
        self._count += 1
        heapq.heappush(self._entries, (max(when, self.now), self._count, action))

    def step(self) -> bool:
        """Do the next entry; whether there was one."""
        if not self._entries:
            return False
        self.now, _, action = heapq.heappop(self._entries)
        action()
        return True


# FROM patience: When a run is given up: nobody can be asked any more, or whoever is asked is asked in vain.

MOST_EXTENSIONS = 1000
"""Deadlines in a row that may pass with devices asked, and no update; then the fleet cannot do the task."""
MOST_ASKS = 100
"""Times that each device of the fleet, on average, may be asked in vain."""
ALONE_S = 2 * 86_400.0
"""Seconds in which nobody can be asked, after which nobody will be: devices come and go by the day."""


class Patience:
    """Told of a run as it goes; `extended` raises SimulationError when it is at an end."""

    def __init__(self, task: Task, devices: int) -> None:
        self._task, self._devices = task, devices
        self._extensions = self._asks = self._asks_then = 0
        self._asked_s = 0.0

    def asked(self, now: float, count: int) -> None:
        """So many devices were asked."""
        if count:
            self._asked_s, self._asks = now, self._asks + count

    def kept(self) -> None:
        """An update counts."""
        self._extensions = self._asks = self._asks_then = 0

    def extended(self, extended: Extend, now: float, at_work: int) -> None:
        """A deadline has passed with too few updates, and `at_work` devices are at work."""
        task, what = self._task, f"round {extended.round} has {extended.contributions} of "
        what += f"{self._task.min_contributions} updates"
        if self._asks > self._asks_then:
            self._extensions, self._asks_then = self._extensions + 1, self._asks
        if self._extensions >= MOST_EXTENSIONS or self._asks >= MOST_ASKS * self._devices:
            raise SimulationError(
                f"{what}: devices were asked {self._asks} times in vain since the last one, "
                f"in {self._extensions} times {task.round_deadline_s:g} s; the fleet cannot do this task"
            )
        if not at_work and now - self._asked_s > max(ALONE_S, 2 * task.round_deadline_s):
            raise SimulationError(
                f"{what}: no device could be asked for {(now - self._asked_s) / 3600:.0f} hours; the fleet "
                "is away, at work, or has empty batteries"
            )
