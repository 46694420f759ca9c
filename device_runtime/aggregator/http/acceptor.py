"""Accepts connections so that those of an address that has few come first, also while others flood."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import uvicorn

from device_runtime.broker.servers.places import PlacedSocket, SharedListener

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
