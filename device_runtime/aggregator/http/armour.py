"""Headers that every answer has, and who is answered at all."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from device_runtime.broker.wire.url import is_loopback

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


class Armoured:
    """Adds HEADERS to every answer. With `anyone`, only those are answered who call us by a local name:
    a page of another site, whose name leads here, learns nothing (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, anyone: bool) -> None:
        self._app = app
        self._anyone = anyone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def armoured(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                extra = ((n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in names)
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        if scope["type"] == "http" and self._anyone and not _local(dict(scope["headers"]).get(b"host", b"")):
            refusal = Response("open to this machine only: ask as localhost", 403, media_type="text/plain")
            await refusal(scope, receive, armoured)
            return
        await self._app(scope, receive, armoured)


def _local(host: bytes) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host.decode('ascii')}").hostname or "")
    except ValueError:
        return False
