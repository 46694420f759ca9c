"""Connections of HTTP, and WebSockets that they become: who asks nothing, or does not read, holds none."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from weakref import WeakSet

import h11
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

CONNECTIONS = 256
"""At one time, so that the files of the loop can always be opened; for one more an answered one goes."""
LEAVING = 64
"""So many may be going at one time; with more, a new one is closed at once."""
IDLE_S = 10
"""Seconds after which a connection that asks nothing is closed."""
HANDSHAKE_S = 60
"""Seconds after which the event loop closes one whose TLS has not begun."""
SLOW_S = 120.0
"""Seconds after which a connection is cut that does not take what was written: some 64 KiB, with TLS 400."""
LAST_S = 20.0
"""Seconds for the end of a WebSocket, and for what was written before it."""
MOST_FRAMES = 1024
"""Of one message; where each is empty, its size is no bound."""


class Taking(asyncio.Protocol):
    """Beside a protocol of uvicorn: what is written is taken in time, or the connection is cut."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(SLOW_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._taken()

    def _taken(self) -> None:
        if self._stuck:
            self._stuck.cancel()


class Bounded(Taking, H11Protocol):
    """Connections that are too many, or ask nothing, are closed; those that only begin TLS count, too.

    A browser holds six, and opens one again that was closed when all was answered; one whose request is lost
    is a page without its program.
    """

    beginning: ClassVar[WeakSet[Bounded]] = WeakSet()

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Raises ConnectionAbortedError where too many begin: the event loop then closes this one."""
        super().__init__(*args, **settings)
        if len(self.beginning) >= CONNECTIONS:
            raise ConnectionAbortedError(f"{CONNECTIONS} connections that ask nothing yet")
        self.beginning.add(self)
        self._begun = self.loop.call_later(HANDSHAKE_S, self.beginning.discard, self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begun.cancel()
        self.beginning.discard(self)
        super().connection_made(transport)
        self._answered: object = None
        if len(self.connections) > CONNECTIONS and not self._another_goes():
            transport.abort()
            return
        self._look = self.loop.call_later(IDLE_S, self._idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if look := getattr(self, "_look", None):
            look.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """What speaks on is no idle asker; it is among `connections` still."""
        self._look.cancel()
        super().handle_websocket_upgrade(event)

    def _another_goes(self) -> bool:
        """One that has all that it asked for, if there is one."""
        if len(self.connections) > CONNECTIONS + LEAVING:
            return False
        for one in self.connections:
            if isinstance(one, Bounded) and one._rests():
                one.transport.close()
                return True
        return False

    def _rests(self) -> bool:
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self.transport.is_closing()

    def _idle(self) -> None:
        """Close what has asked nothing new since the last look."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy and self.cycle is self._answered:
            self.transport.close()
            return
        self._answered = self.cycle
        self._look = self.loop.call_later(IDLE_S, self._idle)


class Spoken(Taking, WebSocketsSansIOProtocol):
    """WebSockets. A message is at most `ws_max_size` bytes; the next is read when it was taken."""

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > MOST_FRAMES:
            self.transport.abort()

    def handle_ping(self) -> None:
        """Who pings and does not read has no answers that wait."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.transport.abort()

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            self.loop.call_later(LAST_S, self.transport.abort)
        await super().send(message)
