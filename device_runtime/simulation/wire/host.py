"""The real aggregator in virtual time: its service, told of events and of the clock."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.rounds.service import LINGER_S, Service
from device_runtime.aggregator.rounds.state import SETTLE_S
from device_runtime.aggregator.serving.process import QUEUE_LIMIT
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.listener import Happening
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Connected, Event
from device_runtime.broker.wire.topics import TopicError
from device_runtime.broker.wire.transfer import MAX_WAIT_S

from .broker import AGGREGATOR, Broker, Log
from .link import Ends, LinkCapacity, VirtualLink, Who

POLL_S = 0.25
"""Virtual seconds between looks at what is due, while blocks are on their way."""


@dataclass
class Outlet:
    """What the service publishes, until it has done all that it does at one moment.

    Then it goes out device by device between two words to all: a set of devices has no order of its own.
    """

    told: list[tuple[int, str, str, bytes, bool]] = field(default_factory=list)
    asked: bool = False
    """Whether blocks were asked for."""
    _words: int = 0

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        try:
            address = topics.parse(topic)
        except TopicError:  # a word to all
            self._words += 2
            self.told.append((self._words - 1, "", topic, payload, retain))
            return True
        self.asked = self.asked or address.leaf == "get"
        self.told.append((self._words, address.device, topic, payload, retain))
        return True

    def flush(self, publish: Callable[[str, bytes, bool], bool]) -> None:
        told, self.told, self._words = self.told, [], 0
        for _, _, topic, payload, retain in sorted(told, key=lambda one: one[:2]):
            publish(topic, payload, retain)


class Host:
    """The service of one task on one run folder, in each of its lives."""

    def __init__(self, task: Task, folder: Path, broker: Broker, log: Log) -> None:
        self.told: list[tuple[float, Happening]] = []
        """What the service told, and when."""
        self._task, self._folder, self._broker, self._log = task, folder, broker, log
        self._agenda = broker.agenda
        self._outlet = Outlet()
        self._service: Service | None = None
        self._link: VirtualLink | None = None
        self._due_s = inf
        self._polls_until = 0.0
        self._polls = False

    @property
    def finished(self) -> bool:
        return self._service is not None and self._service.finished

    @property
    def where(self) -> str:
        """For people."""
        if self._service is None:
            return "the aggregator is down"
        state = self._service.state
        return f"round {state.round}, {state.phase}, {len(state.online)} devices online"

    def start(self) -> None:
        """A (new) life. Raises what Service raises."""
        self._outlet = Outlet()
        self._due_s = inf
        clock = lambda: self._agenda.now  # noqa: E731
        ports = Ports(self._outlet, queue.SimpleQueue(), (self._tell,), clock, will_grace_s=0.0)
        self._service = Service(self._task, self._folder, ports)
        who = Who(AGGREGATOR, (topics.FROM_DEVICES,))
        self._link = VirtualLink(
            who, LinkCapacity(), self._broker, Ends(self._heard, clock, QUEUE_LIMIT), self._log
        )
        self._link.connect()

    def kill(self) -> None:
        """Only what is in its folder is left."""
        if self._service and self._link:
            self._service.close()
            self._link.cut()
        self._service = None

    def close(self) -> None:
        """Let go of the folder."""
        if self._service:
            self._service.close()

    def _tell(self, happening: Happening) -> None:
        self.told.append((self._agenda.now, happening))

    def _heard(self, event: Event) -> None:
        if self._service is None:
            return
        if event == Connected(first=True):
            self._service.start()
            self._poll_for(2 * SETTLE_S)
        self._service.handle(event)
        self._tick()

    def _tick(self) -> None:
        service = self._service
        if service is None or self._link is None:
            return
        service.tick()
        if self._outlet.asked:
            self._poll_for(2 * MAX_WAIT_S)
            self._outlet.asked = False
        self._outlet.flush(self._link.publish)
        state, now = service.state, self._agenda.now
        if state.phase == "done":
            self._poll_for(2 * LINGER_S)
        elif state.phase == "collect" and (due_s := now + state.remaining_s(now)) != self._due_s:
            self._due_s = due_s
            self._agenda.at(due_s, self._tick)

    def _poll_for(self, seconds: float) -> None:
        """What may be late is looked for so long."""
        self._polls_until = max(self._polls_until, self._agenda.now + seconds)
        if not self._polls:
            self._polls = True
            self._agenda.at(self._agenda.now + POLL_S, self._poll)

    def _poll(self) -> None:
        self._polls = self._agenda.now < self._polls_until
        if self._polls:
            self._agenda.at(self._agenda.now + POLL_S, self._poll)
        self._tick()
