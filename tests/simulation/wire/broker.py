"""An MQTT broker without sockets: topic filters, retained messages, last wills, and a log of packets."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from paho.mqtt.client import topic_matches_sub

from device_runtime.broker.wire.link_events import Received, Will
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue

GRACE = 1.5
"""Keep-alive periods of silence after which a broker takes a client for lost (MQTT 3.1.1, 3.1.2.10)."""
AGGREGATOR = "aggregator"
"""The aggregator's name as a client: no device's topics are below it."""
checksum = zlib.crc32


class Client(Protocol):
    """The client of a session."""

    @property
    def name(self) -> str: ...

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters that it subscribes to."""

    @property
    def will(self) -> Will | None: ...

    def carry(self, message: Received, connection: int) -> None:
        """Delivers a message to the client, if this connection lasts until then."""


@dataclass(frozen=True)
class _Session:
    client: Client
    connection: int


class VirtualBroker:
    """Routes messages at once; the time to and from the broker is that of the links.

    Sessions are clean: messages are not kept for a client that is offline.
    """

    def __init__(self, agenda: VirtualTimeQueue, keepalive_s: float = 30.0) -> None:
        self.agenda = agenda
        self.retained: dict[str, bytes] = {}
        self._keepalive_s = keepalive_s
        self._sessions: dict[str, _Session] = {}
        self._subscriptions = Subscriptions()

    def open(self, client: Client, connection: int) -> None:
        """Connects a client, which gets the retained messages.

        An older session of the same name ends, and its last will is published.
        """
        before = self._sessions.get(client.name)
        if before is not None:
            self._vanished(before)
        self._sessions[client.name] = _Session(client, connection)
        self._subscriptions.add(client.name, client.filters)
        for topic, payload in list(self.retained.items()):
            if self._subscriptions.wants(client.name, topic):
                client.carry(Received(topic, payload, retain=True), connection)

    def silent(self, client: Client, connection: int) -> None:
        """Marks a connection as lost, which the broker notices after GRACE keep-alives."""

        def expired() -> None:
            session = self._sessions.get(client.name)
            if session is not None and (session.client, session.connection) == (client, connection):
                self._vanished(session)

        self.agenda.at(self.agenda.now + GRACE * self._keepalive_s, expired)

    def leave(self, client: Client) -> None:
        """Disconnects a client properly, so that its last will is not published."""
        if client.name in self._sessions and self._sessions[client.name].client is client:
            del self._sessions[client.name]
            self._subscriptions.remove(client.name)

    def publish(self, message: Will) -> None:
        """Routes an arrived message to its subscribers, and keeps it if it is to be retained."""
        if message.retain:
            if message.payload:
                self.retained[message.topic] = message.payload
            else:
                self.retained.pop(message.topic, None)
        for name in self._subscriptions.of(message.topic):
            session = self._sessions[name]
            session.client.carry(Received(message.topic, message.payload), session.connection)

    def _vanished(self, session: _Session) -> None:
        self.leave(session.client)
        if session.client.will is not None:
            self.publish(session.client.will)


class Subscriptions:
    """The topic filters of clients, by name; `+` and `#` as in MQTT 3.1.1, section 4.7.

    Filters without wildcards, or with only `/#` at the end, are found without trying every subscriber's.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, ...]] = {}
        self._exact: dict[str, dict[str, None]] = {}
        self._patterns: dict[tuple[str, str], None] = {}

    def add(self, client: str, filters: tuple[str, ...]) -> None:
        """Replaces the filters of this client."""
        self.remove(client)
        self._of[client] = filters
        for pattern in filters:
            if "+" in pattern or "#" in pattern.removesuffix("/#"):
                self._patterns[pattern, client] = None
            else:
                self._exact.setdefault(pattern, {})[client] = None

    def remove(self, client: str) -> None:
        for pattern in self._of.pop(client, ()):
            self._patterns.pop((pattern, client), None)
            if pattern in self._exact:
                self._exact[pattern].pop(client, None)

    def wants(self, client: str, topic: str) -> bool:
        return any(topic_matches_sub(pattern, topic) for pattern in self._of.get(client, ()))

    def of(self, topic: str) -> tuple[str, ...]:
        """The clients that get this topic, each once, sorted by name."""
        clients = {client for pattern in _literal(topic) for client in self._exact.get(pattern, ())}
        clients.update(client for pattern, client in self._patterns if topic_matches_sub(pattern, topic))
        return tuple(sorted(clients))


def _literal(topic: str) -> Iterator[str]:
    """Yields the filters without `+` that match: the topic itself, and each level above it with `/#`."""
    yield topic
    parts = topic.split("/")
    for levels in range(1, len(parts) + 1):
        yield "/".join(parts[:levels]) + "/#"


@dataclass(frozen=True)
class PassedPacket:
    """One PUBLISH packet of `size` bytes that arrived at `at_s`: `up` at the broker, else at the client.

    `checksum` is the payload's CRC-32.
    """

    at_s: float
    client: str
    up: bool
    topic: str
    size: int
    checksum: int


class PacketLog:
    """All PUBLISH packets of a run, in the order of arrival."""

    def __init__(self) -> None:
        self.passed: list[PassedPacket] = []

    def add(self, passed: PassedPacket) -> None:
        self.passed.append(passed)
