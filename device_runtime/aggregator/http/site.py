"""The whole of HTTP: pages, REST, health, with headers that trust nothing; served in a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from device_runtime.aggregator.errors import AddressError, ConfigError
from device_runtime.aggregator.serving.config import HttpSection
from device_runtime.aggregator.serving.join_address import Doorway
from device_runtime.aggregator.views.listener import Observer
from device_runtime.broker.servers.mosquitto import MESSAGE_BYTES

from . import certificate
from .api import Api, Credentials, Guard
from .armour import Armoured
from .certificate import Certificate
from .connections import IDLE_S, Bounded, Spoken
from .health import examine, without_details
from .hosted import Hosted
from .invitations import Inviting
from .join import Join
from .metrics import Metrics
from .pages import Pages
from .shapes import Health
from .tokens import token_for

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
STOP_S = 3
"""Seconds that answers under way have when the service stops."""


class Site:
    """HTTP for these tasks. Listens from the start, answers from `start`, and ends with `stop`.

    Raises ConfigError for a token or certificate that cannot be used, AddressError for the address.
    """

    def __init__(self, settings: HttpSection, hosted: list[Hosted], doorway: Doorway | None = None) -> None:
        """`doorway`: where browsers come in, if they may; then MissingExtra for a page that is not here."""
        self._settings = settings
        self._hosted = {one.task.name: one for one in hosted}
        self._metrics = Metrics()
        self._counted = {name: self._metrics.observe(one) for name, one in self._hosted.items()}
        token, self._token_file = token_for(settings, hosted[0].folder)
        guard = Guard(token)
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
            timeout_notify=certificate.LOOK_S,
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
            config.callback_notify = Certificate(settings.cert, settings.key, config.ssl).look
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


def _app(routers: list[APIRouter], guard: Guard, look: Callable[[], Health]) -> FastAPI:
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
