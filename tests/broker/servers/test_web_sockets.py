"""MQTT over WebSockets: amqtt's own, and Mosquitto behind a gateway that speaks them, also with TLS."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amqtt.broker import Broker
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

from device_runtime.broker.errors import BrokerRefused, BrokerUnreachable
from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.bounded_amqtt import SnapshotDict
from device_runtime.broker.servers.server import BrokerOptions, WebSockets, find_port
from device_runtime.broker.wire.link import Connected, LinkOptions, Received
from device_runtime.broker.wire.url import TLS

FAST_S = (0.05, 0.5)
READS = LinkOptions(subscriptions=("fl/v1/#",), reconnect_s=FAST_S)
needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Gateway:
    """WebSockets at `/mqtt` on one side, a broker's TCP port on the other; what reverse proxies do."""

    def __init__(self, broker_port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._broker_port, self._context = broker_port, context
        self._connections: set[ServerConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._over, self._ready = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve()), daemon=True
        )
        self._thread.start()
        assert self._ready.wait(600)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(120)
        self._loop.close()

    async def _serve(self) -> None:
        protocols: Any = ["mqtt"]
        serving = serve(self._pass, "127.0.0.1", 0, ssl=self._context, subprotocols=protocols, max_size=None)
        async with serving as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._ready.set()
            await self._over.wait()

    async def _pass(self, web: ServerConnection) -> None:
        assert web.request
        if web.request.path != "/mqtt":
            await web.close(1008, "nothing here")
            return
        self._connections.add(web)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._broker_port)

        async def downwards() -> None:
            while data := await reader.read(65536):
                await web.send(data)
            await web.close()

        down = asyncio.create_task(downwards())
        try:
            async for message in web:
                assert isinstance(message, bytes)
                writer.write(message)
                await writer.drain()
        except Exception:  # noqa: S110 - cut by the test
            pass
        finally:
            self._connections.discard(web)
            writer.close()
            down.cancel()


@pytest.fixture
def certificate(tmp_path: Path) -> TLS:
    """One that signs itself, of 127.0.0.1."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    extensions = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "keyUsage=critical,digitalSignature,keyCertSign",
    ]
    arguments = ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=broker"]
    subprocess.run([*command, *extensions, *arguments], check=True, capture_output=True)
    return TLS(ca=cert, cert=cert, key=key)


@pytest.fixture
def web(mosquitto_house: Any) -> Iterator[Gateway]:
    gateway = Gateway(mosquitto_house.broker().port)
    yield gateway
    gateway.close()


@needs_mosquitto
@pytest.mark.parametrize("version", ["3", "5"])
def test_messages_of_any_size_pass_to_and_from_mosquitto(
    mosquitto_house: Any, web: Gateway, version: str
) -> None:
    url = f"ws://127.0.0.1:{web.port}/mqtt?mqtt={version}"
    reader = mosquitto_house.peer(url, "reader", READS)
    writer = mosquitto_house.peer(url, "writer")
    for size in (0, 1, 125, 126, 65_535, 65_536, 256 * 1024):
        assert writer.link.publish("fl/v1/x", bytes([size % 251]) * size)
        assert reader.expect(Received) == Received("fl/v1/x", bytes([size % 251]) * size)


@needs_mosquitto
def test_a_link_that_was_cut_comes_back_over_web_sockets(mosquitto_house: Any, web: Gateway) -> None:
    peer = mosquitto_house.peer(f"ws://127.0.0.1:{web.port}", "pi", READS)
    assert peer.expect(Connected).first
    web.hang_up()
    assert not peer.expect(Connected, 10.0).first
    peer.link.publish("fl/v1/x", b"again")
    assert peer.expect(Received).payload == b"again"


@needs_mosquitto
def test_another_path_is_refused_with_what_to_check(mosquitto_house: Any, web: Gateway) -> None:
    with pytest.raises(BrokerUnreachable, match=r"ws://127\.0\.0\.1:\d+/wrong"):
        mosquitto_house.peer(f"ws://127.0.0.1:{web.port}/wrong", "pi")


@needs_mosquitto
def test_what_speaks_no_web_sockets_is_told_as_such(mosquitto_house: Any) -> None:
    port = mosquitto_house.broker().port
    with pytest.raises(BrokerUnreachable, match="WebSockets are served at this port, with MQTT under /mqtt"):
        mosquitto_house.peer(f"ws://127.0.0.1:{port}", "pi")


@needs_mosquitto
@needs_openssl
def test_wss_verifies_the_certificate(mosquitto_house: Any, certificate: TLS) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(certificate.cert), str(certificate.key))
    gateway = Gateway(mosquitto_house.broker().port, context)
    try:
        url = f"wss://127.0.0.1:{gateway.port}"
        assert certificate.ca
        trusting = TLS(authority=certificate.ca.read_text())
        peer = mosquitto_house.peer(url, "pi", READS, trusting)
        peer.link.publish("fl/v1/x", bytes(200_000))
        assert peer.expect(Received).payload == bytes(200_000)
        with pytest.raises(BrokerUnreachable, match="no TLS connection to wss://"):
            mosquitto_house.peer(url, "stranger")
    finally:
        gateway.close()


def test_the_web_sockets_of_amqtt_will_do(mosquitto_house: Any) -> None:
    port = find_port(BrokerOptions())
    loop = asyncio.new_event_loop()
    started, over = threading.Event(), asyncio.Event()

    async def serving() -> None:
        listeners = {"default": {"type": "ws", "bind": f"127.0.0.1:{port}"}}
        plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        broker = Broker({"listeners": listeners, "plugins": plugins}, loop=loop)
        broker._subscriptions = SnapshotDict(broker._subscriptions)
        await broker.start()
        started.set()
        await over.wait()
        await broker.shutdown()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serving()), daemon=True)
    thread.start()
    assert started.wait(600)
    try:
        peer = mosquitto_house.peer(f"ws://127.0.0.1:{port}", "pi", READS)
        peer.link.publish("fl/v1/x", bytes(100_000))
        assert peer.expect(Received).payload == bytes(100_000)
        peer.link.close()
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(120)
        loop.close()


def test_a_broker_of_ours_has_web_sockets_when_they_are_asked_for(house: Any) -> None:
    assert house.broker().web_url == ""
    broker = house.broker(BrokerOptions(web=WebSockets(password="told to the page")))
    assert broker.web_url.startswith("ws://127.0.0.1:")
    assert broker.web_url.endswith("/mqtt")
    page = house.peer(broker.web_url.replace("//", "//browser:told%20to%20the%20page@"), "page", READS)
    device = house.peer(broker.url, "pi", READS)
    device.link.publish("fl/v1/x", bytes(100_000))
    assert page.expect(Received).payload == bytes(100_000)
    page.link.publish("fl/v1/y", b"back")
    assert {device.expect(Received).topic, device.expect(Received).topic} == {"fl/v1/x", "fl/v1/y"}


@needs_mosquitto
def test_web_sockets_of_an_open_mosquitto_take_only_who_has_the_password(mosquitto_house: Any) -> None:
    options = BrokerOptions(web=WebSockets(password="told to the page"))
    broker = mosquitto_house.broker(options)
    for stranger in ("", "browser:guessed@", "aggregator:told%20to%20the%20page@"):
        with pytest.raises(BrokerRefused):
            mosquitto_house.peer(broker.web_url.replace("//", f"//{stranger}"), "stranger")
    mosquitto_house.peer(broker.url, "pi")
    assert "told to the page" not in repr(options)


@needs_mosquitto
@needs_openssl
def test_web_sockets_of_a_closed_mosquitto_have_its_certificate_users_and_access_list(
    mosquitto_house: Any, certificate: TLS
) -> None:
    tls = TLS(cert=certificate.cert, key=certificate.key)
    broker = mosquitto_house.broker(BrokerOptions(users={"pi": "secret"}, tls=tls, web=WebSockets()))
    assert broker.web_url.startswith("wss://")
    trusting = TLS(ca=certificate.cert)
    url = broker.web_url.replace("//", "//pi:secret@")
    options = LinkOptions(subscriptions=("fl/v1/d/pi/dn/#",), reconnect_s=FAST_S)
    peer = mosquitto_house.peer(url, "pi", options, trusting)
    peer.expect(Connected)
    peer.link.publish("fl/v1/d/pi/dn/x", b"what only an aggregator may say")
    assert peer.is_quiet()
    with pytest.raises(BrokerRefused):
        mosquitto_house.peer(broker.web_url.replace("//", "//browser:@"), "stranger", tls=trusting)


def opened_by(url: str, origin: str) -> bool:
    """Whether a page of this origin gets an answer to its MQTT CONNECT there."""

    async def opening() -> bool:
        protocols: Any = ["mqtt"]
        try:
            async with connect(url, origin=Origin(origin), subprotocols=protocols) as socket:
                await socket.send(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04page")
                return bool((await socket.recv())[:1] == b"\x20")
        except ConnectionClosed:
            return False

    return asyncio.run(opening())


def test_amqtt_takes_pages_of_this_machine_and_none_of_another_site() -> None:
    broker = brokers.start("amqtt", BrokerOptions(web=WebSockets()))
    try:
        assert opened_by(broker.web_url, "http://127.0.0.1:8080")
        assert opened_by(broker.web_url, "http://localhost:8080")
        for other in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
            assert not opened_by(broker.web_url, other), other
    finally:
        broker.stop()
