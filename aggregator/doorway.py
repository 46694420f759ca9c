"""How a browser comes in: the address of the page, the broker's WebSockets, and who may make links."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from broker.errors import UrlError
from broker.running import WEB_USER, RunningBroker, WebSockets
from broker.site import DEVICES, PASSWORDS, Opened
from broker.url import BrokerUrl, is_loopback

from .config import HttpSection, Server
from .errors import ConfigError, RunFolderError

PORT, PASSWORD = "web-port", "web-password"
"""In the run folder: of the WebSockets that are started here, so that an open page finds them again."""
WILD = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class Doorway:
    """`broker` is the address of its WebSockets, `user` and `password` what an open one asks for; `reached`:
    the broker, as we reach it. `site`: that of `broker init`, where a device needs a credential; `writable`:
    whether links can be made here. `address`: how browsers reach us, where it is not where HTTP listens.
    `passes_on`: pages reach the broker through us, see web/gateway.py.
    """

    broker: str
    reached: BrokerUrl
    user: str = ""
    password: str = field(default="", repr=False)
    site: Opened | None = None
    address: str = ""
    passes_on: bool = False
    link_s: float = 900.0

    @property
    def writable(self) -> bool:
        """Whether this process may enrol: the folder of `broker init` is whole here, and ours to write."""
        return self.site is not None and all(
            os.access(self.site.folder / name, os.W_OK) for name in ("", PASSWORDS, DEVICES)
        )

    def page(self, listens: str) -> str:
        """The address of the join page; `listens`: of HTTP."""
        return f"{(self.address or listens).rstrip('/')}/join/"


def open_to(server: Server, broker: RunningBroker | None, reached: BrokerUrl) -> Doorway | None:
    """Where browsers come in, if they are to. `broker`: the one started here; `reached` as in Doorway.

    Raises ConfigError for what no browser could reach, SiteError for an enrolment without WebSockets.
    """
    web, http = server.web, server.http
    if web is None or http is None:
        return None
    site = Opened(server.broker.enrolment) if server.broker.enrolment else None
    given = web.broker or (site.site.web_url if site else broker.web_url if broker else "")
    if not given:
        raise ConfigError(
            "web.broker: browsers reach a broker over WebSockets only: give wss://host:port/path of this one"
        )
    try:
        url = BrokerUrl.parse(given, insecure=server.broker.insecure)
    except UrlError as error:
        raise ConfigError(f"web.broker = {given}: {error}") from None
    if not url.path:
        raise ConfigError(f"web.broker = {given}: expected ws:// or wss://")
    address = web.address or _address(http, site)
    _check_reachable(address or f"{'https' if http.cert else 'http'}://{http.host}", url, http)
    ours = broker.options.web if broker and not web.broker else None
    return Doorway(
        broker=str(url),
        reached=reached,
        user=WEB_USER if ours else "",
        password=ours.password if ours else "",
        site=site,
        address=address,
        passes_on=not (web.broker or reached.path),
        link_s=60 * web.link_minutes,
    )


def _address(http: HttpSection, site: Opened | None) -> str:
    """Where HTTP listens everywhere, the host that devices are told. Raises ConfigError."""
    if http.host not in WILD:
        return ""
    if site is None or not http.port:
        raise ConfigError(f"web.address: expected how browsers reach us at http.host = {http.host}")
    host = site.site.names[0]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if http.cert else 'http'}://{host}:{http.port}"


def _check_reachable(page: str, broker: BrokerUrl, http: HttpSection) -> None:
    """Raises ConfigError."""
    parts = urlsplit(page)
    if is_loopback(parts.hostname or ""):
        return
    if broker.loopback:
        raise ConfigError(
            f"the page is offered at {page}, but the broker at {broker}, which is this machine only: set one "
            f"up by `device-runtime broker init DIR --name {parts.hostname} --websockets 8884`, for "
            "--enrolment DIR"
        )
    if parts.scheme == "https" and not broker.secure:
        raise ConfigError(f"a page at {page} may speak to wss:// only, not to {broker}")
    if parts.scheme == "http" and not http.insecure:
        raise ConfigError(f"web.address = {page}: a browser computes for pages over https:// only")


def web_sockets(folder: Path) -> WebSockets:
    """For a broker that is started here: as in an earlier life of the run in this folder, or new ones."""
    try:
        port = int((folder / PORT).read_text())
        password = (folder / PASSWORD).read_text().strip()
    except (OSError, ValueError):
        return WebSockets(password=secrets.token_urlsafe(24))
    return WebSockets(port if 0 < port < 65536 else 0, password or secrets.token_urlsafe(24))


def keep(folder: Path, doorway: Doorway) -> None:
    """For `web_sockets` in the next life. Raises RunFolderError."""
    if not doorway.password:
        return
    try:
        (folder / PORT).write_text(f"{BrokerUrl.parse(doorway.broker).port}\n")
        (folder / PASSWORD).touch(mode=0o600)
        (folder / PASSWORD).write_text(doorway.password + "\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / PASSWORD}: {error.strerror or error}") from None
