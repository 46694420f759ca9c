"""An MQTT broker without sockets: routes, keeps what is retained, speaks the last will of who vanishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from device_runtime.broker.wire.link_events import Received, Will
from device_runtime.simulation.clock.agenda import Agenda

from .subscriptions import Subscriptions

GRACE = 1.5
"""Keep-alive periods of silence after which a broker takes a client for gone (MQTT 3.1.1, 3.1.2.10)."""


class Client(Protocol):
    """The far end of a session."""

    @property
    def name(self) -> str: ...

    @property
    def filters(self) -> tuple[str, ...]:
        """Of topics that it subscribes to."""

    @property
    def will(self) -> Will | None: ...

    def carry(self, message: Received, connection: int) -> None:
        """Take a message towards the client, if this connection lasts so long."""


@dataclass(frozen=True)
class _Session:
    client: Client
    connection: int


class Broker:
    """What is published is routed at once; the way to it and from it takes time, and is the link's.

    Sessions are clean: what a client misses while it is away is not kept for it.
    """

    def __init__(self, agenda: Agenda, keepalive_s: float = 30.0) -> None:
        self.agenda = agenda
        self.retained: dict[str, bytes] = {}
        self._keepalive_s = keepalive_s
        self._sessions: dict[str, _Session] = {}
        self._subscriptions = Subscriptions()

    def open(self, client: Client, connection: int) -> None:
        """A client is here: it gets what is retained. An older session of its name ends with its will."""
        before = self._sessions.get(client.name)
        if before is not None:
            self._vanished(before)
        self._sessions[client.name] = _Session(client, connection)
        self._subscriptions.add(client.name, client.filters)
        for topic, payload in list(self.retained.items()):
            if self._subscriptions.wants(client.name, topic):
                client.carry(Received(topic, payload, retain=True), connection)

    def silent(self, client: Client, connection: int) -> None:
        """Nothing will come over this connection any more; the broker finds out after GRACE keep-alives."""

        def expired() -> None:
            session = self._sessions.get(client.name)
            if session is not None and (session.client, session.connection) == (client, connection):
                self._vanished(session)

        self.agenda.at(self.agenda.now + GRACE * self._keepalive_s, expired)

    def leave(self, client: Client) -> None:
        """The client says goodbye: its will is forgotten."""
        if client.name in self._sessions and self._sessions[client.name].client is client:
            del self._sessions[client.name]
            self._subscriptions.remove(client.name)

    def publish(self, message: Will) -> None:
        """Has arrived here: goes to all who want it now, and is kept where it is to be retained."""
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
