"""The HTTP server: pages, REST and health in its own thread, with limits on its connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import h11
import uvicorn
from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from device_runtime.aggregator.errors import AddressError, ConfigError
from device_runtime.aggregator.serving.config import HttpSection
from device_runtime.aggregator.serving.join_address import BrowserAccess
from device_runtime.aggregator.views.run_events import Observer
from device_runtime.broker.servers.mosquitto import MESSAGE_BYTES
from device_runtime.broker.wire.url import bracketed

from .api import Credentials, TaskRoutes, TokenGuard
from .invitations import InvitationRoutes
from .join import JoinFiles, JoinRoutes
from .metrics import ProcessMetrics
from .security import SecureHeaders, token_for
from .shapes import Health
from .watch import ServedTask, health_of, without_details

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
STOP_S = 3
"""Seconds that open requests get to finish when the service stops."""


class HttpServer:
    """The HTTP server of these tasks. Listens once it is made, answers after `start`, and ends with `stop`.

    Raises ConfigError for a token or certificate that cannot be used, AddressError for the address.
    """

    def __init__(
        self, settings: HttpSection, hosted: list[ServedTask], browser_access: BrowserAccess | None = None
    ) -> None:
        """`browser_access`: how browsers join; None if they may not.

        Raises MissingExtra if browsers may join and the join page is not installed.
        """
        self._settings = settings
        self._hosted = {one.task.name: one for one in hosted}
        self._metrics = ProcessMetrics()
        self._counted = {name: self._metrics.observe(one) for name, one in self._hosted.items()}
        token, self._token_file = token_for(settings, hosted[0].folder)
        guard = TokenGuard(token)
        self._api = TaskRoutes(hosted, guard, self._metrics)
        routers = [self._api.router, InvitationRoutes(browser_access, guard, lambda: self.url).router]
        if browser_access:
            routers.append(JoinRoutes(browser_access, JoinFiles.of(browser_access.broker), hosted).router)
        self._socket = _listen(settings)
        app = _app(routers, guard, lambda: health_of(hosted, settings))
        config = uvicorn.Config(
            SecureHeaders(app, anyone=not token.needed),
            http=partial(BoundedConnection, WeakSet()),  # type: ignore[arg-type]
            ws=BoundedWebSocket,
            ws_max_size=MESSAGE_BYTES,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
            timeout_notify=LOOK_S,
            ssl_certfile=settings.cert,
            ssl_keyfile=settings.key,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            files = f"{settings.cert}, {settings.key}"
            raise ConfigError(f"http.cert, http.key: cannot use {files}: {error}") from None
        if settings.cert and settings.key and config.ssl:
            config.callback_notify = ServerCertificate(settings.cert, settings.key, config.ssl).look
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def url(self) -> str:
        """The address of the server."""
        host, port = self._socket.getsockname()[:2]
        return f"{'https' if self._settings.cert else 'http'}://{bracketed(host)}:{port}"

    def observers(self, task: str) -> tuple[Observer, ...]:
        """The observers that a task's service must have."""
        return (*self._hosted[task].observers, self._counted[task])

    def start(self) -> str:
        """Begin to answer. Returns a text for people: the address, and the file of the token."""
        self._thread.start()
        return f"{self.url} " + (f"(token: {self._token_file})" if self._token_file else "(open, no token)")

    def stop(self) -> None:
        """Finish open requests, and write the rest of the journals. May be called twice."""
        self._api.closing = True
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_S + 2)
        self._socket.close()
        for one in self._hosted.values():
            one.journal.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:  # an error of HTTP must not stop the rounds
            log.exception("http ended by itself; the rounds go on")


def _listen(settings: HttpSection) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=128)
    except OSError as error:
        raise AddressError(
            f"http.port: cannot listen on {settings.host} port {settings.port} "
            f"({(error.strerror or str(error)).lower()}): choose another, or 0 for a free one"
        ) from None


def _app(routers: list[APIRouter], guard: TokenGuard, look: Callable[[], Health]) -> FastAPI:
    app = FastAPI(
        title="device-runtime",
        summary="The aggregator of a federated learning task.",
        description="Times are seconds since 1970. A figure that was not measured is null.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    for router in routers:
        app.include_router(router)

    def healthz(credentials: Credentials, response: Response) -> Health:
        """Details are shown only with the token."""
        health = look()
        response.status_code = 200 if health.ok else 503
        return health if guard.knows(credentials) else without_details(health)

    sick = {503: {"model": Health, "description": "Something is wrong"}}
    app.add_api_route("/healthz", healthz, summary="Whether all is well", responses=sick)  # type: ignore[arg-type]
    for path, file in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_api_route(path, _page(file), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _page(file: str) -> Callable[[], FileResponse]:
    def page() -> FileResponse:
        return FileResponse(STATIC / file, media_type="text/html; charset=utf-8")

    return page


# The certificate of HTTPS, which is renewed on disk while the service runs.

LOOK_S = 30
"""Seconds between looks at the certificate files."""


class ServerCertificate:
    """Reloads `cert` and `key` into `context` when they change; new connections get the new certificate."""

    def __init__(self, cert: Path, key: Path, context: ssl.SSLContext) -> None:
        """`context` must have loaded the files."""
        self._files, self._context = (cert, key), context
        self._seen = self._state()

    async def look(self) -> None:
        """Reload changed files. Files that are not a valid pair, or not yet, change nothing."""
        state = self._state()
        if state == self._seen:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._context.load_cert_chain(*self._files)
        except OSError as error:
            log.warning(
                "http.cert, http.key have changed and cannot be used, the ones before stay in use: %s", error
            )
        else:
            log.info("http.cert, http.key have changed and are now in use")
        self._seen = state

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Inode, size and time of the files, which change when others take their place."""
        try:
            found = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


# Limits on connections and WebSockets: one that requests nothing, or does not read, is closed.

CONNECTIONS = 256
"""The most open connections, so that the loop can always open files; one more closes an idle one."""
MOST_CLOSING = 64
"""The most connections that may be closing; beyond that, a new one is closed at once."""
IDLE_S = 10
"""Seconds after which a connection that requests nothing is closed."""
HANDSHAKE_S = 60
"""Seconds after which the event loop closes a connection whose TLS handshake is not done."""
SLOW_S = 120.0
"""Seconds after which a connection that reads nothing is cut: with 64 KiB unread, or 400 KiB over TLS."""
CLOSE_S = 20.0
"""Seconds for a WebSocket to close, and to send what was written before."""
MOST_FRAMES = 1024
"""The most frames of one message: the size limit does not bound empty ones."""


class CutsSlowReaders(asyncio.Protocol):
    """A mixin for protocols of uvicorn: cuts a connection whose other end does not read for SLOW_S."""

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


class BoundedConnection(CutsSlowReaders, H11Protocol):
    """An HTTP/1.1 connection that is closed if there are too many, or if it requests nothing.

    Connections that are still in the TLS handshake count too. Only connections whose requests are all
    answered are closed to make room: a browser holds six, and opens such a one again, but a page that loses a
    request lacks a script.
    """

    def __init__(self, beginning: WeakSet[BoundedConnection], *args: Any, **settings: Any) -> None:
        """`beginning`: the connections of this server that are still in the handshake.

        Raises ConnectionAbortedError if too many are; the loop then closes this one.
        """
        super().__init__(*args, **settings)
        if len(beginning) >= CONNECTIONS:
            raise ConnectionAbortedError(f"{CONNECTIONS} connections have requested nothing yet")
        beginning.add(self)
        self._beginning = beginning
        self._begun = self.loop.call_later(HANDSHAKE_S, beginning.discard, self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begun.cancel()
        self._beginning.discard(self)
        super().connection_made(transport)
        self._answered: object = None
        if len(self.connections) > CONNECTIONS and not self._close_idle():
            transport.abort()
            return
        self._look = self.loop.call_later(IDLE_S, self._idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if look := getattr(self, "_look", None):
            look.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """A WebSocket is not closed as idle; it still counts in `connections`."""
        self._look.cancel()
        super().handle_websocket_upgrade(event)

    def _close_idle(self) -> bool:
        """Close a connection whose requests are all answered. Returns False if there is none."""
        if len(self.connections) > CONNECTIONS + MOST_CLOSING:
            return False
        for one in self.connections:
            if isinstance(one, BoundedConnection) and one._is_answered():
                one.transport.close()
                return True
        return False

    def _is_answered(self) -> bool:
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self.transport.is_closing()

    def _idle(self) -> None:
        """Close the connection if it has requested nothing new since the last look."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy and self.cycle is self._answered:
            self.transport.close()
            return
        self._answered = self.cycle
        self._look = self.loop.call_later(IDLE_S, self._idle)


class BoundedWebSocket(CutsSlowReaders, WebSocketsSansIOProtocol):
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
        if message["type"] == "websocket.close":
            self.loop.call_later(CLOSE_S, self.transport.abort)
        await super().send(message)
