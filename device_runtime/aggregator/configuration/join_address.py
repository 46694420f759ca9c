"""How browsers join: the address of the page, the route to the broker, and one-time links.

The start of the service prints the page, a one-time link, and on a terminal its QR code.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from device_runtime.aggregator.errors import ConfigError
from device_runtime.broker.errors import UrlError
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers.broker_folder import DEVICES, PASSWORDS, BrokerFolder
from device_runtime.broker.wire.url import BrokerUrl, bracketed, is_loopback

from .config import HttpSection, ServerConfig

WILD = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class BrowserAccess:
    """How browsers reach the join page and the broker.

    reached: the broker's URL for the aggregator.
    broker: the URL of its WebSockets for browsers; "" where they connect through the aggregator
    (`http.gateway`).
    site: the folder of `broker init`, where devices need credentials.
    address: how browsers reach the page, if not where HTTP listens.
    link_s: the seconds for which a one-time link is valid.
    """

    reached: BrokerUrl
    broker: str = ""
    site: BrokerFolder | None = None
    address: str = ""
    link_s: float = 900.0

    @property
    def passes_on(self) -> bool:
        """Whether browsers connect to the broker through the aggregator."""
        return not self.broker

    @property
    def writable(self) -> bool:
        """Whether this process can enrol devices: the folder of `broker init` is complete and writable."""
        return self.site is not None and all(
            os.access(self.site.folder / name, os.W_OK) for name in ("", PASSWORDS, DEVICES)
        )

    def page(self, listens: str) -> str:
        """The address of the join page; `listens`: the address of HTTP."""
        return f"{(self.address or listens).rstrip('/')}/join/"


def browser_access(server: ServerConfig, reached: BrokerUrl) -> BrowserAccess | None:
    """How browsers join, by the settings; None where they may not. `reached` as in BrowserAccess.

    Raises ConfigError for addresses that no browser could reach, SetupError for an invalid enrolment folder.
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
    return BrowserAccess(reached, broker, site, address, 60 * web.link_minutes)


def _direct(page: str, address: str, insecure: bool) -> str:
    """The URL of the broker's WebSockets, where a page connects to them itself. Raises ConfigError."""
    try:
        url = BrokerUrl.parse(address, insecure=insecure)
    except UrlError as error:
        raise ConfigError(f"web.broker: {error}") from None
    if not url.path:
        raise ConfigError(f"web.broker = {url}: expected ws:// or wss://")
    parts = urlsplit(page)
    if url.loopback and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"web.broker = {url} is this machine only, and the page is offered at {page}")
    if parts.scheme == "https" and not (url.secure or url.loopback):
        raise ConfigError(f"web.broker = {url}: a page at {page} may speak to wss:// only")
    return str(url)


def _address(http: HttpSection, site: BrokerFolder | None) -> str:
    """The page's address where HTTP listens on all interfaces: by the host that devices know.

    "" where HTTP listens on one address. Raises ConfigError.
    """
    if http.host not in WILD:
        return ""
    if site is None or not http.port:
        raise ConfigError(f"web.address: expected how browsers reach us at http.host = {http.host}")
    return f"{'https' if http.cert else 'http'}://{bracketed(site.site.names[0])}:{http.port}"


def _check_reachable(page: str, http: HttpSection, for_others: bool) -> None:
    """Checks that browsers elsewhere can use page and broker. Raises ConfigError."""
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


@dataclass(frozen=True)
class Reader:
    """The reader of the printed text.

    `now`: seconds since 1970. `terminal`: whether it is a terminal, where a QR code can be drawn.
    """

    now: float
    terminal: bool


def join_text(browser_access: BrowserAccess, listens: str, reader: Reader | None) -> str:
    """The text that says how browsers join; `listens`: the address of HTTP.

    Without a reader the text is for a log, and contains no link. Where links can be made here, the addresses
    of page and broker are stored for links made later. Raises LinkError, SetupError.
    """
    page = browser_access.page(listens)
    lines = [f"browsers join at {page}"]
    if browser_access.site is None:
        lines += _drawn(page, reader)
    elif not browser_access.writable:
        lines.append(f"  with a token of `device-runtime device add NAME`, as {page}#TOKEN")
    else:
        links.store_addresses(browser_access.site, page, browser_access.broker)
        if reader is None:
            lines[0] += ", by one-time links of the dashboard or of `device-runtime device link`"
        else:
            _, secret = links.make(browser_access.site, reader.now, browser_access.link_s)
            address = links.address(page, secret)
            lines.append(f"  one of them, in the next {browser_access.link_s / 60:g} minutes, by {address}")
            lines += _drawn(address, reader)
    parts = urlsplit(page)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        lines.append(
            "  insecure: links and tokens go over the network in the clear, and browsers let no page without "
            "https:// check hashes, use a microphone or several threads: put HTTPS in front of it"
        )
    return "\n".join(lines)


def _drawn(address: str, reader: Reader | None) -> list[str]:
    """The QR code, as lines; empty without a terminal, or where only this machine can open the address."""
    if reader is None or not reader.terminal or is_loopback(urlsplit(address).hostname or ""):
        return []
    import segno  # in the extra `aggregator`

    out = io.StringIO()
    segno.make(address, error="m", micro=False).terminal(out, compact=True)
    return out.getvalue().rstrip("\n").splitlines()
