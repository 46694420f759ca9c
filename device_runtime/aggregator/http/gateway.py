"""Relays MQTT over WebSockets from the address of the join page to the broker.

A page then has one origin, with one port and one certificate. It also avoids the WebSockets of Mosquitto,
which in some builds (Debian's) send only 4 KiB each 100 ms. Bytes are relayed unchanged: the broker decides
which devices may connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from urllib.parse import urlsplit

from starlette.websockets import WebSocket

from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.broker.servers.places import Places, Shares, Stage
from device_runtime.broker.wire.url import is_loopback

from .connections import place_of
from .security import by_local_name, caller_address, from_this_machine

log = logging.getLogger(__name__)

PATH = "mqtt"
"""The path of the gateway, below /join/."""
PROTOCOL = "mqtt"
MOST_PAGES = 200
"""The most pages that have sent a CONNECT; a larger fleet uses the broker's own WebSockets."""
MOST_PAGES_OF_ADDRESS = 100
"""The most such pages of one remote address, which many devices may share; none can take all places."""
WAITING = Shares(most=128, of_address=128, silent=16)
"""Limits on pages that have not sent a CONNECT yet; where they are too many, the oldest one goes."""
CONNECT_S = 10.0
"""Seconds to reach the broker, and for a page to send all of its CONNECT; a silent page loses its place."""
CONNECT_BYTES = 16 * 1024
"""The most bytes of a CONNECT."""
QUIET_S = 900.0
"""Seconds without a message of a page. Devices ping every 30 s, and the broker ends those that do not."""
READ_BYTES = 64 * 1024
TRY_LATER, NOT_HERE = 1013, 1008
"""WebSocket close codes."""


class NoConnect(Exception):
    """The first message of a page is not an MQTT CONNECT."""


class Gateway:
    """Relays between pages and the broker."""

    def __init__(self, browser_access: BrowserAccess) -> None:
        self._browser_access = browser_access
        self._open: Counter[str] = Counter()
        self._waiting = Places(WAITING, "the gateway to the broker")

    async def pass_on(self, page: WebSocket) -> None:
        """Relay until either side ends. The broker is not reached before a page has sent a CONNECT.

        A page of another site is refused. Where the broker is open, so is a page on another machine, and one
        that does not name this machine by a local name (DNS rebinding).
        """
        if not self._may_connect(page) or PROTOCOL not in page.scope["subprotocols"]:
            await page.close(NOT_HERE)
            return
        caller = caller_address(page)
        if self._is_full(caller):
            await page.close(TRY_LATER)
            return
        connect = await self._connect_of(page, caller)
        if connect is None or self._is_full(caller):
            await page.close(TRY_LATER if connect else NOT_HERE)
            return
        self._open[caller] += 1
        try:
            await self._pass_on(page, connect)
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # drops counts of 0

    def _is_full(self, caller: str) -> bool:
        own = self._open[caller] >= MOST_PAGES_OF_ADDRESS and not is_loopback(caller)
        return own or self._open.total() >= MOST_PAGES

    async def _connect_of(self, page: WebSocket, caller: str) -> bytes | None:
        """What a page sends until its CONNECT is complete; None if it is too slow, or its place is taken."""
        await page.accept(PROTOCOL)
        reading = asyncio.ensure_future(_connect(page))
        place = self._waiting.admit(caller, reading.cancel)
        if place is None:
            reading.cancel()
        try:
            done, _ = await asyncio.wait([reading], timeout=CONNECT_S)
        finally:
            reading.cancel()
            if place:
                place.release()
        failed = not done or reading.cancelled() or reading.exception() is not None
        return None if failed else reading.result()

    def _may_connect(self, page: WebSocket) -> bool:
        origin, address = page.headers.get("origin"), urlsplit(self._browser_access.address).netloc
        if origin is not None and urlsplit(origin).netloc not in (page.headers.get("host"), address or None):
            return False
        return self._browser_access.site is not None or (from_this_machine(page) and by_local_name(page))

    async def _pass_on(self, page: WebSocket, connect: bytes) -> None:
        url = self._browser_access.reached
        tls = url.tls.context() if url.secure else None
        try:
            opening = asyncio.open_connection(url.host, url.port, ssl=tls)
            reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("a page cannot reach the broker at %s: %s", url, error or "timed out")
            await page.close(TRY_LATER)
            return
        directions = [
            asyncio.create_task(_up(page, writer, connect)),
            asyncio.create_task(_down(reader, page)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            writer.close()
        if page.client_state.name == "CONNECTED":
            await page.close()


async def _up(page: WebSocket, writer: asyncio.StreamWriter, connect: bytes) -> None:
    data: bytes | None = connect
    while data:
        writer.write(data)
        await writer.drain()
        data = (await asyncio.wait_for(page.receive(), QUIET_S)).get("bytes")


async def _down(reader: asyncio.StreamReader, page: WebSocket) -> None:
    data = await asyncio.wait_for(reader.read(READ_BYTES), CONNECT_S)
    if (place := place_of(page.scope["state"])) and data:
        place.enter(Stage.PROVEN if is_welcome(data) else Stage.BUSY)
    while data:
        await page.send_bytes(data)
        data = await reader.read(READ_BYTES)


async def _connect(page: WebSocket) -> bytes:
    """The bytes of a page until its CONNECT is complete. Raises NoConnect."""
    opening = b""
    while not is_connect(opening):
        data = (await page.receive()).get("bytes")
        if not data:
            raise NoConnect(f"it ended after {len(opening)} bytes")
        opening += data
    return opening


def is_connect(opening: bytes) -> bool:
    """Whether `opening` begins with a complete CONNECT (MQTT 3.1.1 and 5, section 3.1).

    Raises NoConnect for bytes that cannot become one.
    """
    if opening[:1] not in (b"", b"\x10"):
        raise NoConnect(f"its first byte is {opening[0]:#x}")
    size = 0
    for place, byte in enumerate(opening[1:5]):
        size |= (byte & 0x7F) << (7 * place)
        if size > CONNECT_BYTES:
            raise NoConnect(f"a CONNECT of {size} bytes")
        if byte < 0x80:
            return len(opening) >= 2 + place + size
    if len(opening) >= 5:
        raise NoConnect("malformed remaining-length field in CONNECT")
    return False


def is_welcome(answer: bytes) -> bool:
    """Whether the broker's first bytes are a CONNACK that accepts (MQTT 3.1.1 and 5, section 3.2)."""
    lengths = 2 if answer[1:2] >= b"\x80" else 1
    return answer[:1] == b"\x20" and answer[lengths + 2 : lengths + 3] == b"\0"
