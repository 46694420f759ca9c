"""One run on virtual time: feeds the aggregator's round machine, and does what it commands, in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from rpds import HashTrieMap, HashTrieSet

from aggregator import machine, moves
from aggregator.state import Presence, Rules, State
from aggregator.task import Task

from .agenda import Agenda
from .asking import Asking, Flight
from .errors import SimulationError
from .learning import Learning
from .ledger import Ledger
from .records import Lost
from .timeline import WILL_S

MOST_EXTENSIONS = 1000
"""Deadlines in a row that may pass without enough updates; then the fleet cannot do the task."""
RETRY_S = 60.0
"""Virtual seconds after which more devices are looked for, where too few could be asked."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of: who is asked, who trains and merges, who writes it down."""

    asking: Asking
    learning: Learning
    ledger: Ledger


class Director:
    """`run` is the whole of it. The service's shell does the same with sockets and a disk."""

    def __init__(self, task: Task, names: Sequence[str], parts: Parts) -> None:
        """`names` of all devices of the fleet."""
        self._task = task
        rules = _rules(task, len(names))
        self._parts = parts
        self._agenda = Agenda()
        self._state = _everybody_there(rules, names)
        self._events: deque[moves.Event] = deque()
        self._flights: dict[moves.Update, Flight] = {}
        self._seq = 0
        self._extensions = 0

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

    def _do(self, state: State, commands: Sequence[moves.Command]) -> None:
        self._state = state
        for command in commands:
            match command:
                case moves.Announce():
                    self._parts.ledger.opened(command.round, self._agenda.now)
                    self._set_deadline()
                case moves.Extend():
                    self._extend(command)
                case moves.Invite():
                    self._invite(command)
                case moves.Fetch():
                    self._events.append(moves.Believed(self._agenda.now, command.update, known=False))
                case moves.Keep():
                    self._extensions = 0
                    self._parts.learning.keep(self._flights.pop(command.update))
                case moves.Reply():
                    self._reply(command)
                case moves.Work():
                    self._work(command)

    def _set_deadline(self) -> None:
        closes_s = self._state.closes_s
        self._agenda.at(closes_s, lambda: self._feed(moves.Tick(self._agenda.now)))

    def _extend(self, command: moves.Extend) -> None:
        self._extensions += 1
        if self._extensions > MOST_EXTENSIONS:
            raise SimulationError(
                f"round {command.round} was extended {MOST_EXTENSIONS} times and has {command.contributions} "
                f"of {self._task.min_contributions} updates: no device of the fleet can do this task in "
                f"{self._task.round_deadline_s:g} s"
            )
        self._set_deadline()

    def _invite(self, command: moves.Invite) -> None:
        """Ask as many as can be found; those that were not there are looked for again."""
        now = self._agenda.now
        buffered = self._state.rules.buffer_size > 0
        closes_s = now + self._task.round_deadline_s if buffered else self._state.closes_s
        flights = self._parts.asking.ask(command.round, command.count, (now, closes_s))
        if buffered and len(flights) < command.count:
            self._agenda.at(now + RETRY_S, lambda: self._feed(moves.Tick(self._agenda.now)))
        names = tuple(flight.device for flight in flights)
        self._events.appendleft(moves.Invited(now, command.round, names))
        for flight in flights:
            self._await(flight)

    def _await(self, flight: Flight) -> None:
        line = flight.line
        if line.lost is None:
            self._seq += 1
            update = moves.Update(flight.device, flight.round, flight.kind, 0, self._seq)
            self._flights[update] = flight
            self._agenda.at(line.ends_s, partial(self._arrive, update))
        else:
            self._agenda.at(line.ends_s, partial(self._lose, flight, line.lost))

    def _arrive(self, update: moves.Update) -> None:
        self._feed(moves.Announced(self._agenda.now, update, known=False))

    def _lose(self, flight: Flight, how: Lost) -> None:
        """It sits out and says so, or is gone: then its last will says so, until it is back."""
        now, device = self._agenda.now, flight.device
        self._parts.ledger.ended(flight, how, now)
        if how == "sat out":
            self._feed(moves.Planned(now, device, flight.round, ""))
            return
        self._agenda.at(now + WILL_S, partial(self._presence, device, False))
        if flight.line.back_s < inf:
            self._agenda.at(flight.line.back_s, partial(self._presence, device, True))

    def _presence(self, device: str, online: bool) -> None:
        self._feed(moves.Present(self._agenda.now, device, 0, online))

    def _reply(self, command: moves.Reply) -> None:
        """Kept updates are in the ledger once they are trained and merged."""
        flight = self._flights.pop(command.update, None)
        if flight is not None:
            self._parts.ledger.ended(flight, "late", self._agenda.now, why=command.reason)

    def _work(self, command: moves.Work) -> None:
        learning, now = self._parts.learning, self._agenda.now
        if command.phase == "merge":
            learning.merge(command.round, now)
        elif command.phase == "evaluate":
            learning.evaluate(command.round)
        else:
            in_use = {flight.round for flight in self._flights.values()}
            self._parts.ledger.closed(command.round, now, learning.publish(command.round, in_use))
        self._events.append(moves.Worked(now, command.phase))


def _everybody_there(rules: Rules, names: Sequence[str]) -> State:
    """Before the first round, with every device known; whether one can be asked is for the fleet to say."""
    here = Presence(0, online=True)
    return State(rules, devices=HashTrieMap(dict.fromkeys(names, here)), ready=HashTrieSet(names))


def _rules(task: Task, devices: int) -> Rules:
    """As for the service, but that devices are always asked: all of the fleet where no cohort is drawn."""
    return Rules(
        rounds=task.rounds,
        round_deadline_s=task.round_deadline_s,
        min_contributions=task.min_contributions,
        late=task.late,
        bound=frozenset(kind.name for kind in task.kinds if kind.strategy.own_round),
        devices_per_round=min(task.devices_per_round or devices, devices),
        buffer_size=task.buffer_size,
        max_staleness=task.max_staleness,
        staleness_weight=task.staleness_weight,
    )
