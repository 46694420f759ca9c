"""A client's simulated link to the broker: bytes per second and latency each way, QoS 1, losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from device_runtime.broker.wire.link_events import (
    Connected,
    Disconnected,
    Event,
    Received,
    Will,
    packet_bytes,
    qos_of,
)
from device_runtime.broker.wire.messages import MESSAGE_LIMIT, MessageError
from tests.simulation.wire.broker import PacketLog, PassedPacket, VirtualBroker, checksum

OPENING_TRIPS = 3
"""Round trips until a client is subscribed: TCP, CONNECT, SUBSCRIBE."""


@dataclass(frozen=True)
class LinkCapacity:
    """A link's bandwidth in bytes per second each way, and its latency in seconds each way."""

    up: float = inf
    down: float = inf
    latency_s: float = 0.0


@dataclass(frozen=True)
class ClientEnd:
    """The client's end of a link: the receiver of events, its clock, and the limit of waiting messages.

    The `clock` of a device at work may be ahead of the agenda; its messages then leave at that time.
    """

    deliver: Callable[[Event], None]
    clock: Callable[[], float]
    queue_limit: int = 4096


@dataclass(frozen=True)
class ClientIdentity:
    """A client as the broker knows it; its link sends `greeting` first at each connection."""

    name: str
    filters: tuple[str, ...] = ()
    will: Will | None = None
    greeting: Will | None = None


class VirtualLink:
    """A simulated `broker.wire.link.Link`, with one packet at a time in each direction.

    A message that the broker has not acknowledged when the connection is lost is sent again on the next.
    """

    def __init__(
        self, who: ClientIdentity, line: LinkCapacity, broker: VirtualBroker, ends: ClientEnd, log: PacketLog
    ) -> None:
        self.who, self.line = who, line
        self._broker, self._agenda, self._ends, self._log = broker, broker.agenda, ends, log
        self._waiting: dict[int, Will] = {}
        self._serial = 0
        self._connection = 0
        self._connections = 0
        self._gone = self._down = False
        self._free_s = {"up": 0.0, "down": 0.0}

    @property
    def name(self) -> str:
        return self.who.name

    @property
    def filters(self) -> tuple[str, ...]:
        return self.who.filters

    @property
    def will(self) -> Will | None:
        return self.who.will

    @property
    def url(self) -> str:
        return "a simulated broker"

    @property
    def connected(self) -> bool:
        return self._connection > 0

    # The client's side.

    def connect(self) -> None:
        """Connects, which takes OPENING_TRIPS; then sends the waiting messages."""
        self._down = False
        self._agenda.at(self._agenda.now + 2 * OPENING_TRIPS * self.line.latency_s, self._opened)

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """As `broker.wire.link.Link.publish`. Raises MessageError for more than MESSAGE_LIMIT bytes."""
        if len(payload) > MESSAGE_LIMIT:
            raise MessageError(
                f"{len(payload)} bytes on {topic}: at most {MESSAGE_LIMIT} go into one message"
            )
        if len(self._waiting) >= self._ends.queue_limit:
            return False
        message, now = Will(topic, payload, retain), self._ends.clock()
        if now > self._agenda.now:
            self._agenda.at(now, lambda: self._queue(message))
        else:
            self._queue(message)
        return True

    def unacknowledged(self, topic: str = "") -> int:
        """As `broker.wire.link.Link.unacknowledged`."""
        return sum(topic in ("", message.topic) for message in self._waiting.values())

    def close(self, farewell: Will) -> None:
        """Sends this message and disconnects without a last will; unacknowledged messages are dropped."""
        self._waiting.clear()
        if not self.connected:
            self._gone = True
            return
        self._queue(farewell)
        self._agenda.at(self._free_s["up"] + self.line.latency_s, lambda: self._broker.leave(self))

    def lose(self) -> None:
        """Loses the connection; the client knows at once, the broker only when keep-alives are missing."""
        self._down = True
        if not self.connected:
            return
        self._broker.silent(self, self._connection)
        self._connection = 0
        if not self._gone:
            self._ends.deliver(Disconnected("the line is down"))

    def cut(self) -> None:
        """Ends the link with its client's process: waiting messages are lost."""
        self._gone = True
        self._waiting.clear()
        self.lose()

    # Packets on the link.

    def carry(self, message: Received, connection: int) -> None:
        """Delivers a message to the client; see `broker.Client`."""

        def came() -> None:
            if connection == self._connection:
                self._note(False, message.topic, message.payload)
                self._ends.deliver(message)

        self._agenda.at(self._passes("down", message.topic, message.payload), came)

    def _opened(self) -> None:
        if self._gone or self._down or self.connected:
            return
        self._connections += 1
        self._connection = self._connections
        self._free_s = {"up": self._agenda.now, "down": self._agenda.now}
        left = [serial for serial, message in self._waiting.items() if _lasts(message)]
        self._waiting = {serial: self._waiting[serial] for serial in left}
        if self.who.greeting:
            self._queue(self.who.greeting)
        for serial in left:
            self._send(serial)
        self._ends.deliver(Connected(self._connections == 1))
        self._broker.open(self, self._connection)

    def _queue(self, message: Will) -> None:
        if self._gone or not (self.connected or _lasts(message)):
            return
        self._serial += 1
        self._waiting[self._serial] = message
        if self.connected:
            self._send(self._serial)

    def _send(self, serial: int) -> None:
        message, connection = self._waiting[serial], self._connection

        def came() -> None:
            if connection == self._connection:
                self._note(True, message.topic, message.payload)
                self._broker.publish(message)
                self._agenda.at(self._agenda.now + self.line.latency_s, acknowledged)

        def acknowledged() -> None:
            if connection == self._connection:
                self._waiting.pop(serial, None)

        self._agenda.at(self._passes("up", message.topic, message.payload), came)

    def _passes(self, way: str, topic: str, payload: bytes) -> float:
        """When a packet that is sent now arrives at the other end."""
        rate = self.line.up if way == "up" else self.line.down
        begins = max(self._agenda.now, self._free_s[way])
        self._free_s[way] = begins + packet_bytes(topic, payload) / rate
        return self._free_s[way] + self.line.latency_s

    def _note(self, up: bool, topic: str, payload: bytes) -> None:
        size = packet_bytes(topic, payload)
        self._log.add(PassedPacket(self._agenda.now, self.name, up, topic, size, checksum(payload)))


def _lasts(message: Will) -> bool:
    """Whether a client keeps the message until it is acknowledged (QoS above 0)."""
    return qos_of(message.topic, message.payload) > 0
