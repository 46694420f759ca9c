"""The HTTP server: pages, REST and health in its own thread, with limits on its connections."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.aggregator.errors import AddressError, ConfigError
from device_runtime.aggregator.machine.run_events import Observer
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.servers.mosquitto import MESSAGE_BYTES
from device_runtime.broker.servers.places import BACKLOG, Places, SharedListener, Shares, within_files
from device_runtime.broker.wire.url import bracketed

from .api import Credentials, TaskRoutes, TokenGuard
from .connections import BoundedConnection, BoundedWebSocket, FairServer
from .invitations import InvitationRoutes
from .join import JoinFiles, JoinRoutes
from .metrics import ProcessMetrics
from .security import SecureHeaders, token_for
from .shapes import PLACE, Health, setting_schemas
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
        self,
        settings: HttpSection,
        hosted: list[ServedTask],
        browser_access: BrowserAccess | None = None,
        shares: Shares | None = None,
        audited: Sequence[Path] = (),
    ) -> None:
        """`browser_access`: how browsers join; None if they may not. `shares`: limits on connections.

        `audited`: the folders whose audit logs are shown.

        Raises MissingExtra if browsers may join and the join page is not installed.
        """
        self._settings = settings
        self._hosted = {service.task.name: service for service in hosted}
        self._metrics = ProcessMetrics(settings.cert)
        self._counted = {name: self._metrics.observe(service) for name, service in self._hosted.items()}
        token, self._token_file = token_for(settings, hosted[0].folder)
        guard = TokenGuard(token, self._token_file.name if self._token_file else "")
        self._api = TaskRoutes(hosted, guard, self._metrics, audited)
        routers = [self._api.router, InvitationRoutes(browser_access, guard, lambda: self.url).router]
        if browser_access:
            routers.append(JoinRoutes(browser_access, JoinFiles.of(browser_access.broker), hosted).router)
        shares = within_files(replace(shares or Shares(), trusted=settings.proxies))
        places = Places(shares, "http")
        self._socket = SharedListener.of(_listen(settings), places)
        app = _app(routers, guard, lambda: health_of(hosted, settings))
        config = uvicorn.Config(
            SecureHeaders(app, anyone=not token.needed),
            http=partial(BoundedConnection, places),  # type: ignore[arg-type]
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
            timeout_keep_alive=shares.idle_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=STOP_S,
            timeout_notify=LOOK_S,
            loop="asyncio",  # whose transports close our own sockets, which have a place
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
        self._server = FairServer(config, self._socket)
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
        for service in self._hosted.values():
            service.journal.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:  # an error of HTTP must not stop the rounds
            log.exception("http ended by itself; the rounds go on")


def _listen(settings: HttpSection) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressError(
            f"http.port: cannot listen on {settings.host} port {settings.port} "
            f"({(error.strerror or str(error)).lower()}): choose another, or 0 for a free one"
        ) from None


class _DescribedApp(FastAPI):
    """Describes a task's settings as they are declared."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schemas = super().openapi()["components"]["schemas"]
            schemas["TaskInfo"]["properties"]["settings"] = {"$ref": PLACE.format(name=Task.__name__)}
            schemas |= setting_schemas(Task)
        return super().openapi()


def _app(routers: list[APIRouter], guard: TokenGuard, look: Callable[[], Health]) -> FastAPI:
    app = _DescribedApp(
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
        self._last_state = self._state()

    async def look(self) -> None:
        """Reload changed files. Files that are not a valid pair, or not yet, change nothing."""
        state = self._state()
        if state == self._last_state:
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
        self._last_state = state

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Inode, size and time of the files, which change when others take their place."""
        try:
            stats = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)
