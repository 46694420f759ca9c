"""Runs the real aggregator's service in virtual time, on a simulated link."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import RunEvent
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.aggregator.rounds.service import LINGER_S, Service
from device_runtime.aggregator.serving.process import QUEUE_LIMIT
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Connected, Event
from device_runtime.broker.wire.topics import TopicError
from device_runtime.broker.wire.transfer import MAX_WAIT_S
from tests.simulation.wire.broker import AGGREGATOR, PacketLog, VirtualBroker
from tests.simulation.wire.link import ClientEnd, ClientIdentity, LinkCapacity, VirtualLink

POLL_S = 0.25
"""Virtual seconds between two ticks of the service, while blocks are in transit."""


@dataclass
class MessageBuffer:
    """Holds back the messages that the service publishes at one moment, to send them in a fixed order.

    Between two messages to all devices they are sorted by device, because the service's sets of devices have
    no order of their own.
    """

    waiting: list[tuple[int, str, str, bytes, bool]] = field(default_factory=list)
    blocks_requested: bool = False
    """Whether blocks were asked for."""
    _broadcasts: int = 0

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        try:
            address = topics.parse(topic)
        except TopicError:  # a message to all devices
            self._broadcasts += 2
            self.waiting.append((self._broadcasts - 1, "", topic, payload, retain))
            return True
        self.blocks_requested = self.blocks_requested or address.leaf == "get"
        self.waiting.append((self._broadcasts, address.device, topic, payload, retain))
        return True

    def flush(self, publish: Callable[[str, bytes, bool], bool]) -> None:
        waiting, self.waiting, self._broadcasts = self.waiting, [], 0
        for _, _, topic, payload, retain in sorted(waiting, key=lambda message: message[:2]):
            publish(topic, payload, retain)


class VirtualAggregator:
    """The service of one task on one run folder, through kills and restarts."""

    def __init__(self, task: Task, folder: Path, broker: VirtualBroker, log: PacketLog) -> None:
        self.events: list[tuple[float, RunEvent]] = []
        """The reports of the service, each with its virtual seconds."""
        self._task, self._folder, self._broker, self._log = task, folder, broker, log
        self._agenda = broker.agenda
        self._outlet = MessageBuffer()
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
        """The state of the run, for error messages."""
        if self._service is None:
            return "the aggregator is down"
        state = self._service.state
        return f"round {state.round}, {state.phase}, {len(state.online)} devices online"

    def start(self) -> None:
        """Starts the service, or starts it again after `kill`. Raises the errors of Service."""
        self._outlet = MessageBuffer()
        self._due_s = inf
        clock = lambda: self._agenda.now  # noqa: E731
        ports = Ports(self._outlet, queue.SimpleQueue(), (self._tell,), clock, will_grace_s=0.0)
        self._service = Service(self._task, self._folder, ports)
        who = ClientIdentity(AGGREGATOR, (topics.FROM_DEVICES,))
        self._link = VirtualLink(
            who, LinkCapacity(), self._broker, ClientEnd(self._hear, clock, QUEUE_LIMIT), self._log
        )
        self._link.connect()

    def kill(self) -> None:
        """Kills the service: only its folder is left."""
        if self._service and self._link:
            self._service.close()
            self._link.cut()
        self._service = None

    def close(self) -> None:
        """Closes the service, which releases the folder."""
        if self._service:
            self._service.close()

    def _tell(self, event: RunEvent) -> None:
        self.events.append((self._agenda.now, event))

    def _hear(self, event: Event) -> None:
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
        if self._outlet.blocks_requested:
            self._poll_for(2 * MAX_WAIT_S)
            self._outlet.blocks_requested = False
        self._outlet.flush(self._link.publish)
        state, now = service.state, self._agenda.now
        if state.phase == "done":
            self._poll_for(2 * LINGER_S)
        elif state.phase == "collect" and (due_s := now + state.remaining_s(now)) != self._due_s:
            self._due_s = due_s
            self._agenda.at(due_s, self._tick)

    def _poll_for(self, seconds: float) -> None:
        """Ticks the service every POLL_S for the next `seconds`, for what may be overdue."""
        self._polls_until = max(self._polls_until, self._agenda.now + seconds)
        if not self._polls:
            self._polls = True
            self._agenda.at(self._agenda.now + POLL_S, self._poll)

    def _poll(self) -> None:
        self._polls = self._agenda.now < self._polls_until
        if self._polls:
            self._agenda.at(self._agenda.now + POLL_S, self._poll)
        self._tick()
