"""Security of HTTP: response headers, the address of a caller, and the token."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Response
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.errors import ConfigError
from device_runtime.broker.servers.places import address_share
from device_runtime.broker.wire.url import is_loopback

log = logging.getLogger(__name__)

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class SecureHeaders:
    """Adds HEADERS to every response.

    With `anyone` (no token), a request whose Host is not a name of this machine is refused: a page of another
    site whose name resolves to this machine must learn nothing (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, anyone: bool) -> None:
        self._app = app
        self._anyone = anyone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                extra = ((n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in names)
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        if scope["type"] == "http" and self._anyone and not _local(dict(scope["headers"]).get(b"host", b"")):
            refusal = Response(
                "open to this machine only: use the host name localhost", 403, media_type="text/plain"
            )
            await refusal(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except (ClientDisconnect, WebSocketDisconnect):  # nobody is left to answer
            log.debug("a request ended before it was read whole")


def _local(host: bytes) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host.decode('ascii')}").hostname or "")
    except ValueError:
        return False


def by_local_name(request: HTTPConnection) -> bool:
    """Whether the request names this machine by a local name, as `localhost`."""
    return is_loopback(request.url.hostname or "")


def from_this_machine(request: HTTPConnection) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it."""
    forwarded = {"forwarded", "x-forwarded-for"} & set(request.headers)
    return not forwarded and is_loopback(request.client.host if request.client else "")


def caller_address(request: HTTPConnection) -> str:
    """The address that limits count by: an IPv4 address, `::1`, or an IPv6 /64 network; "" if unknown.

    It is that of the proxy, where the proxy is not trusted.
    """
    return address_share(request.client.host if request.client else "")


TOKEN_FILE = "http-token"  # noqa: S105
"""The token's file in the run folder, if no other is named: made at the first start, for its owner only."""
SHORTEST_TOKEN = 16
"""The fewest characters of a token; `openssl rand -hex 32` makes 64."""


class Token:
    """The token to be sent as `Authorization: Bearer TOKEN`; never printed. Empty if the service is open."""

    def __init__(self, text: str) -> None:
        self._expected = text.encode()

    @property
    def needed(self) -> bool:
        """Whether a token is required."""
        return bool(self._expected)

    def fits(self, token: str | None) -> bool:
        """Whether `token` is right, compared in constant time; True if none is required."""
        right = hmac.compare_digest((token or "").encode(errors="replace"), self._expected)
        return right or not self.needed

    def __repr__(self) -> str:
        return "Token(***)"


def token_for(settings: HttpSection, folder: Path) -> tuple[Token, Path | None]:
    """The required token and its file; an empty token and None if the service is open. Raises ConfigError."""
    if settings.open:
        return Token(""), None
    if settings.token_file:
        return Token(_read(settings.token_file)), settings.token_file
    path = folder / TOKEN_FILE
    if not path.exists():
        _make(path)
    return Token(_read(path)), path


def _read(path: Path) -> str:
    try:
        text = path.read_text("ascii").strip()
    except OSError as error:
        raise ConfigError(
            f"http.token_file: cannot read {path}: {(error.strerror or str(error)).lower()}; "
            "make one with: openssl rand -hex 32"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if len(text) < SHORTEST_TOKEN or not text.isprintable() or " " in text:
        raise ConfigError(
            f"http.token_file: {path} must hold one token of at least {SHORTEST_TOKEN} ASCII characters "
            "without spaces; make one with: openssl rand -hex 32"
        )
    return text


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # most often the run folder
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise ConfigError(f"http.token_file: cannot write {path}: {error.strerror or error}") from None
