"""MQTT over WebSockets where the page came from, and the broker's own port behind it.

A page then speaks to one origin: one port, one certificate. Nor does it wait for the WebSockets of Mosquitto,
which in some builds (Debian's) send 4 KiB each 100 ms. Bytes are passed on as they are: who gets in is the
broker's affair.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from aggregator.doorway import Doorway
from broker.url import is_loopback

log = logging.getLogger(__name__)

PATH = "mqtt"
"""Below /join/."""
PROTOCOL = "mqtt"
MOST = 200
"""Pages at one time; a fleet of more has WebSockets of the broker's own."""
CONNECT_S = 10.0
"""Seconds to reach the broker, and those for a page to say its first word: who is silent holds no place."""
READ_BYTES = 64 * 1024
TRY_LATER, NOT_HERE = 1013, 1008


def by_local_name(asked: HTTPConnection) -> bool:
    """Whether who asks calls us by a name of this machine."""
    return is_loopback(asked.url.hostname or "")


class Gateway:
    """Between pages and the broker."""

    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway
        self._open = 0

    async def pass_on(self, page: WebSocket) -> None:
        """Until either side ends. A page of another site is not let in. Where the broker is open, nor is
        who is on another machine, or came by a name that is not this one's (DNS rebinding).
        """
        if not self._welcome(page) or PROTOCOL not in page.scope["subprotocols"]:
            await page.close(NOT_HERE)
            return
        if self._open >= MOST:
            await page.close(TRY_LATER)
            return
        self._open += 1
        try:
            await self._pass_on(page)
        finally:
            self._open -= 1

    def _welcome(self, page: WebSocket) -> bool:
        origin, address = page.headers.get("origin"), urlsplit(self._doorway.address).netloc
        if origin is not None and urlsplit(origin).netloc not in (page.headers.get("host"), address or None):
            return False
        here = is_loopback(page.client.host if page.client else "")
        return self._doorway.site is not None or (here and by_local_name(page))

    async def _pass_on(self, page: WebSocket) -> None:
        url = self._doorway.reached
        tls = url.tls.context() if url.secure else None
        try:
            opening = asyncio.open_connection(url.host, url.port, ssl=tls)
            reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("a page cannot reach the broker at %s: %s", url, error or "timed out")
            await page.close(TRY_LATER)
            return
        await page.accept(PROTOCOL)
        ways = [asyncio.create_task(_up(page, writer)), asyncio.create_task(_down(reader, page))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
        if page.client_state.name == "CONNECTED":
            await page.close()


async def _up(page: WebSocket, writer: asyncio.StreamWriter) -> None:
    data = (await asyncio.wait_for(page.receive(), CONNECT_S)).get("bytes")
    while data:
        writer.write(data)
        await writer.drain()
        data = (await page.receive()).get("bytes")


async def _down(reader: asyncio.StreamReader, page: WebSocket) -> None:
    while data := await reader.read(READ_BYTES):
        await page.send_bytes(data)
