"""HTTP connections and WebSockets with limits: one that requests, sends or reads too slowly is ended."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from device_runtime.broker.servers.places import Place, PlacedSocket, Places, SharedListener, Stage, sent_by

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 512
"""The most connections that are accepted in a turn of the event loop; this alone costs little."""
BEGUN_AT_ONCE = 4
"""The most that begin in a turn: a TLS handshake takes a millisecond or two."""
AGAIN_S = 0.5
"""Seconds until the next attempt where the system gives no more files."""


class FairAcceptor:
    """Begins connections once their first bytes are there, those of the address with fewest first.

    A silent connection costs a file and a place, and no handshake. Belongs to the running event loop.
    """

    def __init__(self, listener: SharedListener, begin: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._listener, self._begin = listener, begin
        self._loop = asyncio.get_running_loop()
        self._silent: set[PlacedSocket] = set()
        self._ready: list[PlacedSocket] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more, and close those that have not begun."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        for waiting in [*self._silent, *self._ready]:
            self._drop(waiting)
        self._ready.clear()

    async def wait_closed(self) -> None:
        """All is closed by `close`."""

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._silent.add(connection)
                self._loop.add_reader(connection.fileno(), self._on_first_bytes, connection)
                if connection.place:
                    connection.place.end = partial(self._drop, connection)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:  # no more files
            log.warning("http cannot accept connections, and tries again: %s", error.strerror or error)
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(AGAIN_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _on_first_bytes(self, connection: PlacedSocket) -> None:
        self._loop.remove_reader(connection.fileno())
        self._silent.discard(connection)
        self._ready.append(connection)
        if len(self._ready) == 1:
            self._loop.call_soon(self._begin_some)

    def _begin_some(self) -> None:
        """Begin the next few; the event loop serves the others before the next turn."""
        places = self._listener.places
        self._ready.sort(key=lambda waiting: places.held_by(waiting.place))
        turn, self._ready = self._ready[:BEGUN_AT_ONCE], self._ready[BEGUN_AT_ONCE:]
        for connection in turn:
            if connection.fileno() < 0:
                continue
            if connection.place:
                connection.place.end = connection.hang_up
            task = asyncio.ensure_future(self._begin(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._ready:
            self._loop.call_soon(self._begin_some)

    def _drop(self, connection: PlacedSocket) -> None:
        self._silent.discard(connection)
        if connection.fileno() >= 0:
            self._loop.remove_reader(connection.fileno())
        connection.reset()


class FairServer(uvicorn.Server):
    """Uvicorn, with connections by a FairAcceptor."""

    def __init__(self, config: uvicorn.Config, listener: SharedListener) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [FairAcceptor(self._listener, self._begin)]  # type: ignore[list-item]
        self.started = True

    async def _begin(self, connection: socket.socket) -> None:
        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        tls, patience_s = self.config.ssl, self._listener.places.shares.first_s
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=tls, ssl_handshake_timeout=patience_s if tls else None
            )
            return
        connection.close()


PLACE = "place"
"""The key of a connection's place in the state of a request's scope."""
BODY_BYTES = 16 * 1024
"""The most bytes of a body; the largest that is asked for has 4 KiB. In a minute: 270 bytes a second."""
PART_BYTES = 16 * 1024
"""Bytes that are parsed at once: so h11's limit on headers (16 KiB) holds also for those of one packet."""
CLOSE_S = 20.0
"""Seconds for a WebSocket to close, and to send what was written before."""
MOST_FRAMES = 1024
"""The most frames of one message: the size limit does not bound empty ones."""


def place_of(state: dict[str, Any]) -> Place | None:
    """The place of the connection of a request, by the state of its scope; None for one without a socket."""
    place = state.get(PLACE)
    return place if isinstance(place, Place) else None


class BoundedConnection(H11Protocol):
    """An HTTP/1.1 connection with a place.

    Headers must come within `Shares.first_s`, a body within `Shares.body_s`, and at most BODY_BYTES of it.
    What is answered must be read at the least rate of `Shares`.
    """

    def __init__(self, places: Places, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._places = places
        self._place: Place | None = None
        self._last_cycle: object = None
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        socket = transport.get_extra_info("socket")
        self._place = self._places.of(socket.fileno()) if socket else None
        if self._place is None:  # ended during the TLS handshake
            transport.abort()
            return
        self._place.end, self._place.sent = transport.abort, sent_by(transport)
        self._place.enter(Stage.SILENT, self._places.shares.first_s)
        self.app_state = {**self.app_state, PLACE: self._place}

    def data_received(self, data: bytes) -> None:
        if self._place and self._place.stage is Stage.IDLE:
            self._place.enter(Stage.SILENT, self._places.shares.first_s)
        for begin in range(0, len(data), PART_BYTES):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return  # after an upgrade nothing may follow before the answer
            part = data[begin : begin + PART_BYTES]
            super().data_received(part)
            self._look_at_request(len(part))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; a connection on which an answer has begun is ended instead."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever answers this request now answers nobody
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if self._place:
            self._place.enter(Stage.SILENT, self._places.shares.first_s)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        if self._place and self._place.stage is not Stage.PROVEN:
            unfinished = self.cycle is not None and self.cycle.more_body
            self._place.enter(Stage.IDLE, self._places.shares.idle_s if unfinished else float("inf"))
        super().on_response_complete()
        self._look_at_request(0)  # the next one, if it has come already

    def _look_at_request(self, size: int) -> None:
        """Note how far the request has come, and end it if its body is too large."""
        cycle, place = self.cycle, self._place
        if cycle is None or place is None:
            return
        if cycle is not self._last_cycle:
            self._last_cycle, self._body_bytes = cycle, 0
            if not cycle.response_complete and place.stage < Stage.PROVEN:
                place.enter(Stage.BUSY, self._places.shares.body_s if cycle.more_body else float("inf"))
        elif cycle.more_body:
            self._body_bytes += size
            if self._body_bytes > BODY_BYTES:
                self.transport.abort()
        elif place.stage is Stage.BUSY:
            place.enter(Stage.BUSY)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket. A message has at most `ws_max_size` bytes, and is handled before the next one is read."""

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > MOST_FRAMES:
            self.transport.abort()

    def handle_ping(self) -> None:
        """Cut a connection that pings but does not read, so that no answers pile up."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.transport.abort()

    async def send(self, message: ASGISendEvent) -> None:
        if self.close_sent:  # by uvicorn, after a frame that was none
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.loop.call_later(CLOSE_S, self.transport.abort)
        await super().send(message)
