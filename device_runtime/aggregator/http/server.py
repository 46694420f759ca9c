"""The whole of HTTP: pages, REST, health, with headers that trust nothing; served in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
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
from device_runtime.aggregator.serving.join_address import Doorway
from device_runtime.aggregator.views.listener import Observer
from device_runtime.broker.servers.mosquitto import MESSAGE_BYTES

from .api import Api, Credentials, TokenGuard
from .invitations import Inviting
from .join import Join, Pages
from .metrics import ProcessMetrics
from .security import Armoured, token_for
from .shapes import Health
from .watch import Hosted, examine, without_details

# FROM certificate: The certificate of HTTPS, which is renewed on the disk while the service runs.

log = logging.getLogger(__name__)

LOOK_S = 30
"""Seconds between looks at the files."""


class ServerCertificate:
    """Keeps `context` at what is in `cert` and `key`: connections from then on get the new one."""

    def __init__(self, cert: Path, key: Path, context: ssl.SSLContext) -> None:
        """`context` has what is in the files now."""
        self._files, self._context = (cert, key), context
        self._seen = self._state()

    async def look(self) -> None:
        """Take what has changed. Files that are no pair, or not yet, leave all as it was."""
        state = self._state()
        if state == self._seen:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._context.load_cert_chain(*self._files)
        except OSError as error:
            log.warning(
                "http.cert, http.key have changed and cannot be used, the ones before stay: %s", error
            )
        else:
            log.info("http.cert, http.key have changed, and are served")
        self._seen = state

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """What tells a file from another that takes its place."""
        try:
            found = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


STATIC = Path(__file__).parent / "static"
STOP_S = 3
"""Seconds that answers under way have when the service stops."""


class HttpServer:
    """HTTP for these tasks. Listens from the start, answers from `start`, and ends with `stop`.

    Raises ConfigError for a token or certificate that cannot be used, AddressError for the address.
    """

    def __init__(self, settings: HttpSection, hosted: list[Hosted], doorway: Doorway | None = None) -> None:
        """`doorway`: where browsers come in, if they may; then MissingExtra for a page that is not here."""
        self._settings = settings
        self._hosted = {one.task.name: one for one in hosted}
        self._metrics = ProcessMetrics()
        self._counted = {name: self._metrics.observe(one) for name, one in self._hosted.items()}
        token, self._token_file = token_for(settings, hosted[0].folder)
        guard = TokenGuard(token)
        self._api = Api(hosted, guard, self._metrics)
        routers = [self._api.router, Inviting(doorway, guard, lambda: self.url).router]
        if doorway:
            routers.append(Join(doorway, Pages.of(doorway.broker), hosted).router)
        self._socket = _listen(settings)
        app = _app(routers, guard, lambda: examine(hosted, settings))
        config = uvicorn.Config(
            Armoured(app, anyone=not token.needed),
            http=Bounded,
            ws=Spoken,
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
        """Where it answers."""
        host, port = self._socket.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._settings.cert else 'http'}://{host}:{port}"

    def observers(self, task: str) -> tuple[Observer, ...]:
        """Who must be told of what happens in a task."""
        return (*self._hosted[task].observers, self._counted[task])

    def start(self) -> str:
        """Begin to answer; returns the address and how to get in, for people."""
        self._thread.start()
        return f"{self.url} " + (f"(token: {self._token_file})" if self._token_file else "(open, no token)")

    def stop(self) -> None:
        """Answer what is under way, and write the rest of the logs. May be called twice."""
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
        except BaseException:  # the rounds go on without
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
        """Details are for those who have the token."""
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


# FROM connections: Connections of HTTP, and WebSockets that they become: who asks nothing, or does not
# read, holds none.

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
