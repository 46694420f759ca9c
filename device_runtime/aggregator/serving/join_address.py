"""How a browser comes in: the address of the page, the way to the broker, and who may make links."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from device_runtime.aggregator.errors import ConfigError
from device_runtime.broker.errors import UrlError
from device_runtime.broker.security import one_time_links as links
from device_runtime.broker.servers.broker_folder import DEVICES, PASSWORDS, BrokerFolder
from device_runtime.broker.wire.url import BrokerUrl, is_loopback

from .config import HttpSection, ServerConfig

WILD = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class Doorway:
    """`reached`: the broker, as we reach it; `broker`: its WebSockets, as browsers do, "" where they reach it
    through us (web/gateway.py). `site`: that of `broker init`, where a device needs a credential; `writable`:
    whether links can be made here. `address`: how browsers reach us, where it is not where HTTP listens.
    """

    reached: BrokerUrl
    broker: str = ""
    site: BrokerFolder | None = None
    address: str = ""
    link_s: float = 900.0

    @property
    def passes_on(self) -> bool:
        """Whether pages reach the broker through us."""
        return not self.broker

    @property
    def writable(self) -> bool:
        """Whether this process may enrol: the folder of `broker init` is whole here, and ours to write."""
        return self.site is not None and all(
            os.access(self.site.folder / name, os.W_OK) for name in ("", PASSWORDS, DEVICES)
        )

    def page(self, listens: str) -> str:
        """The address of the join page; `listens`: of HTTP."""
        return f"{(self.address or listens).rstrip('/')}/join/"


def open_to(server: ServerConfig, reached: BrokerUrl) -> Doorway | None:
    """Where browsers come in, if they are to. `reached` as in Doorway.

    Raises ConfigError for what no browser could reach, SiteError for an enrolment that is none.
    """
    web, http = server.web, server.http
    if web is None or http is None:
        return None
    site = BrokerFolder(server.broker.enrolment) if server.broker.enrolment else None
    direct = web.broker or (str(reached) if reached.path else "")
    address = web.address or _address(http, site)
    page = address or f"{'https' if http.cert else 'http'}://{http.host}"
    broker = _direct(page, direct, server.broker.insecure) if direct else ""
    _check_reachable(page, http, site is not None or bool(broker))
    return Doorway(reached, broker, site, address, 60 * web.link_minutes)


def _direct(page: str, given: str, insecure: bool) -> str:
    """The broker's WebSockets, where a page speaks to them itself. Raises ConfigError."""
    try:
        url = BrokerUrl.parse(given, insecure=insecure)
    except UrlError as error:
        raise ConfigError(f"web.broker = {given}: {error}") from None
    if not url.path:
        raise ConfigError(f"web.broker = {given}: expected ws:// or wss://")
    parts = urlsplit(page)
    if url.loopback and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"web.broker = {given} is this machine only, and the page is offered at {page}")
    if parts.scheme == "https" and not (url.secure or url.loopback):
        raise ConfigError(f"web.broker = {given}: a page at {page} may speak to wss:// only")
    return str(url)


def _address(http: HttpSection, site: BrokerFolder | None) -> str:
    """Where HTTP listens everywhere, the host that devices are told. Raises ConfigError."""
    if http.host not in WILD:
        return ""
    if site is None or not http.port:
        raise ConfigError(f"web.address: expected how browsers reach us at http.host = {http.host}")
    host = site.site.names[0]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if http.cert else 'http'}://{host}:{http.port}"


def _check_reachable(page: str, http: HttpSection, for_others: bool) -> None:
    """Raises ConfigError."""
    parts = urlsplit(page)
    if is_loopback(parts.hostname or ""):
        return
    if not for_others:
        raise ConfigError(
            f"the page is offered at {page}, but the broker is open to this machine alone: set one up by "
            f"`device-runtime broker init DIR --name {parts.hostname}`, for --enrolment DIR"
        )
    if parts.scheme == "http" and not http.insecure:
        raise ConfigError(f"web.address = {page}: a browser computes for pages over https:// only")


# FROM welcome: What is said at the start of how browsers join: the page, a one-time link, on a terminal its
# QR code.


@dataclass(frozen=True)
class Reader:
    """Who reads it: at the moment `now` (seconds since 1970), on a terminal, where a QR code can be drawn."""

    now: float
    terminal: bool


def told(doorway: Doorway, listens: str, reader: Reader | None) -> str:
    """`listens`: the address of HTTP. Without a reader it goes into a log, which is told no link.

    Where links are made here, it is kept where the page is. Raises LinkError, SiteError.
    """
    page = doorway.page(listens)
    lines = [f"browsers join at {page}"]
    if doorway.site is None:
        lines += _drawn(page, reader)
    elif not doorway.writable:
        lines.append(f"  with a token of `device-runtime device add NAME`, as {page}#TOKEN")
    else:
        links.offered_at(doorway.site, page, doorway.broker)
        if reader is None:
            lines[0] += ", by one-time links that the dashboard makes"
        else:
            _, secret = links.make(doorway.site, reader.now, doorway.link_s)
            address = links.address(page, secret)
            lines.append(f"  one of them, in the next {doorway.link_s / 60:g} minutes, by {address}")
            lines += _drawn(address, reader)
    parts = urlsplit(page)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        lines.append(
            "  insecure: links and tokens go over the network in the clear, and browsers let no page without "
            "https:// check hashes, use a microphone or several threads: put HTTPS in front of it"
        )
    return "\n".join(lines)


def _drawn(address: str, reader: Reader | None) -> list[str]:
    """The QR code, where somebody can point a phone at it and it leads anywhere."""
    if reader is None or not reader.terminal or is_loopback(urlsplit(address).hostname or ""):
        return []
    import segno  # in the extra `aggregator`

    out = io.StringIO()
    segno.make(address, error="m", micro=False).terminal(out, compact=True)
    return out.getvalue().rstrip("\n").splitlines()
