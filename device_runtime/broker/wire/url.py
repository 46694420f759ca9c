"""Broker URLs: `mqtt://user:password@host:1883?mqtt=5`, `mqtts://...`, `wss://...`; and TLS files."""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from device_runtime.broker.errors import UrlError

log = logging.getLogger(__name__)

_MALFORMED = (
    "not a broker URL: use mqtt://host:port, mqtts://host:port or, over WebSockets, wss://host:port/path, "
    "with user:password@ before the host and '/', '#', '?', '@', ':' in a password written as "
    "%2F, %23, %3F, %40, %3A"
)
PASSWORD_VARIABLE = "DEVICE_RUNTIME_PASSWORD"  # noqa: S105
"""The environment variable with the broker's password, for a URL with a user and no password."""
PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
"""Scheme -> port, for a URL that names none."""
PATH = "/mqtt"
"""The path of a WebSocket, for a URL that names none."""
KEEPALIVE_S = (5, 1200)
"""The least and the most seconds between pings."""


@dataclass(frozen=True)
class TLS:
    """The certificates and the key for TLS, as PEM files.

    `ca` is the authority of the other side's certificate (default: the system's authorities); `cert` and
    `key` are our own. `authority` is a PEM text in place of the file `ca`. `alpn`: the protocol to ask for
    (RFC 7301), where one port serves several.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    authority: str = field(default="", repr=False)
    alpn: str = ""

    def context(self) -> ssl.SSLContext:
        """The TLS context of a client. Raises UrlError when a file is missing or is no PEM."""
        try:
            context = ssl.create_default_context(
                cafile=str(self.ca) if self.ca else None, cadata=self.authority or None
            )
            if self.cert:
                context.load_cert_chain(str(self.cert), str(self.key) if self.key else None)
        except OSError as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            files = f"the TLS files {files}" if files else "the authority that came with the enrolment"
            raise UrlError(f"cannot use {files}: {error.strerror or error}") from None
        if self.alpn:
            context.set_alpn_protocols([self.alpn])
        return context


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that opens TCP connections on request (CONNECT: RFC 9110, section 9.3.6)."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Proxy:
        """Reads HOST:PORT or http://USER:PASSWORD@HOST:PORT. Raises UrlError, without the password."""
        malformed = UrlError("broker URL with ?proxy=: expected HOST:PORT or http://USER:PASSWORD@HOST:PORT")
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError:
            raise malformed from None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
            raise malformed
        user, password = (part and unquote(part) for part in (parts.username, parts.password))
        return cls(parts.hostname, port, user, password)

    def request(self, host: str, port: int) -> bytes:
        """What asks it for a connection to a host."""
        to = f"{bracketed(host)}:{port}"
        lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
        if self.user is not None:
            secret = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {secret}")
        return "\r\n".join([*lines, "", ""]).encode()

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True)
class BrokerUrl:
    """The checked address of a broker. Its text never shows the password. A `path` means WebSockets.

    keepalive_s: seconds between pings; None: as the link has them. proxy: what connects to the broker for us.
    Raises UrlError for plain `mqtt://` or `ws://` to another machine, unless `insecure`.
    """

    host: str
    port: int
    secure: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    mqtt5: bool = False
    tls: TLS = TLS()
    insecure: bool = False
    path: str = ""
    keepalive_s: int | None = None
    proxy: Proxy | None = None

    def __post_init__(self) -> None:
        if not self.secure and not self.loopback and not self.insecure:
            raise UrlError(
                f"{self} would send passwords and updates over the network in the clear: "
                f"use {'wss' if self.path else 'mqtts'}://, or --insecure if you mean it"
            )

    @classmethod
    def parse(cls, text: str, tls: TLS | None = None, insecure: bool = False) -> BrokerUrl:
        """Read a URL. Raises UrlError, whose text never holds the URL's password."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError:
            raise UrlError(_MALFORMED) from None
        web = parts.scheme in ("ws", "wss")
        tls = tls or TLS()
        if parts.scheme not in PORTS or not parts.hostname or not (web or parts.path in ("", "/")):
            raise UrlError(_MALFORMED)
        options = _options(parts)
        if alpn := options.get("alpn", ""):
            tls = replace(tls, alpn=alpn)
        return cls(
            host=parts.hostname,
            port=PORTS[parts.scheme] if port is None else port,
            secure=parts.scheme in ("mqtts", "wss"),
            user=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
            mqtt5=options.get("mqtt") == "5",
            tls=tls,
            insecure=insecure,
            path=(parts.path or PATH) if web else "",
            keepalive_s=int(options["keepalive"]) if "keepalive" in options else None,
            proxy=Proxy.parse(options["proxy"]) if "proxy" in options else None,
        )

    def with_password(self, file: Path | None = None, user: str | None = None) -> BrokerUrl:
        """This URL with the password of a file, or else of PASSWORD_VARIABLE; `user`: if it names none.

        The variable is for a URL that names a user. Raises UrlError.
        """
        if file is None:
            password = os.environ.get(PASSWORD_VARIABLE)
            unset = self.user is None or self.password is not None or not password
            return self if unset else replace(self, password=password)
        if self.password is not None:
            raise UrlError(f"the broker's URL has a password, and {file} has one: give one of them")
        if not (user := self.user or user):
            raise UrlError(
                f"{file} has a password, but for whom? Name the user in the URL: mqtts://USER@host"
            )
        return replace(self, user=user, password=read_password(file))

    @property
    def loopback(self) -> bool:
        """Whether the broker is on this machine, so that nothing crosses a network."""
        return is_loopback(self.host)

    @property
    def first_hop(self) -> tuple[str, int]:
        """The host and the port that this machine connects to: the proxy's, or the broker's."""
        return (self.proxy.host, self.proxy.port) if self.proxy else (self.host, self.port)

    def __str__(self) -> str:
        scheme = ("wss" if self.secure else "ws") if self.path else ("mqtts" if self.secure else "mqtt")
        return f"{scheme}://{bracketed(self.host)}:{self.port}{self.path}"


def read_password(file: Path) -> str:
    """The password in a file, without the end of its line. Raises UrlError, whose text never holds it."""
    try:
        password = file.read_text("utf-8").strip("\r\n")
        open_to_others = file.stat().st_mode & 0o044
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UrlError(f"cannot read the password in {file}: {reason.lower()}") from None
    if not password or "\n" in password:
        raise UrlError(f"{file} must hold one line, the password")
    if open_to_others:
        log.warning("others on this machine can read the password in %s: chmod 600 %s", file, file)
    return password


def bracketed(host: str) -> str:
    """The host as it stands in a URL: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine; of names, only `localhost` is, none is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _options(parts: SplitResult) -> dict[str, str]:
    """The options after the question mark. Raises UrlError, without what is in ?proxy=."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    least_s, most_s = KEEPALIVE_S
    checks: Mapping[str, tuple[str, Callable[[str], bool]]] = {
        "mqtt": ("3 or 5", lambda value: value in ("3", "5")),
        "keepalive": (
            f"{least_s} to {most_s} seconds",
            lambda value: value.isdecimal() and least_s <= int(value) <= most_s,
        ),
        "proxy": ("HOST:PORT", bool),
        "alpn": ("a protocol of 1 to 255 letters, with TLS", _is_alpn(parts.scheme)),
    }
    for name, value in options.items():
        if name not in checks:
            raise UrlError(
                f"broker URL with ?{name}=: only {', '.join(f'?{each}=' for each in checks)} are known"
            )
        expected, fits = checks[name]
        if not fits(value):
            raise UrlError(f"broker URL with ?{name}={value}: expected {expected}")
    return options


def _is_alpn(scheme: str) -> Callable[[str], bool]:
    return lambda value: scheme in ("mqtts", "wss") and value.isascii() and 0 < len(value) < 256
