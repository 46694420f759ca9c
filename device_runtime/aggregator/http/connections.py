"""HTTP connections and WebSockets with limits: one that requests, sends or reads too slowly is ended."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from device_runtime.broker.servers.places import Place, Places, Stage, sent_by

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
