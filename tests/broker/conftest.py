"""Brokers that run, links to them, and a broker made of a bare socket."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.brokers import Choice
from device_runtime.broker.servers.server import BrokerOptions, RunningBroker, WebSockets
from device_runtime.broker.wire.link import Event, Link, LinkOptions
from device_runtime.broker.wire.url import TLS, BrokerUrl

E = TypeVar("E", bound=Event)
FAST_S = (0.05, 0.5)
needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")


@dataclass
class Peer:
    """A link and what came in on it."""

    link: Link
    inbox: "queue.SimpleQueue[Event]"

    def expect(self, kind: type[E], timeout_s: float = 120.0) -> E:
        """The next event of this type; others before it are dropped."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                event = self.inbox.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} in {timeout_s} s") from None
            if isinstance(event, kind):
                return event

    def drain(self) -> list[Event]:
        """What came in so far."""
        events: list[Event] = []
        with suppress(queue.Empty):
            while True:
                events.append(self.inbox.get_nowait())
        return events

    def is_quiet(self, for_s: float = 0.3) -> bool:
        try:
            self.inbox.get(timeout=for_s)
        except queue.Empty:
            return True
        return False


@dataclass
class House:
    """Starts brokers of one kind, and links; all end with the test."""

    kind: Choice
    _brokers: list[RunningBroker] = field(default_factory=list)
    _links: list[Link] = field(default_factory=list)

    def broker(self, options: BrokerOptions | None = None) -> RunningBroker:
        self._brokers.append(brokers.start(self.kind, options))
        return self._brokers[-1]

    def peer(self, url: str, name: str, options: LinkOptions | None = None, tls: TLS | None = None) -> Peer:
        inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        link = Link(BrokerUrl.parse(url, tls), name, inbox, options or LinkOptions(reconnect_s=FAST_S))
        self._links.append(link)
        link.connect(60.0)
        return Peer(link, inbox)

    def listener(self, url: str, name: str, *topics: str) -> Peer:
        return self.peer(url, name, LinkOptions(subscriptions=topics, reconnect_s=FAST_S))

    def close(self) -> None:
        for link in self._links:
            link.close()
        for broker in self._brokers:
            broker.stop()


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """Both brokers, one after the other."""
    house = House(request.param)
    yield house
    house.close()


@pytest.fixture
def mosquitto_house() -> Iterator[House]:
    """Mosquitto, for what only it can do."""
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    house = House("mosquitto")
    yield house
    house.close()


class BareBroker:
    """Accepts connections, answers each CONNECT with the next CONNACK, and keeps what follows."""

    def __init__(self, connacks: list[bytes]) -> None:
        self.stream = bytearray()
        self.connections = 0
        self._connacks = connacks
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"

    def hang_up(self) -> None:
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._sockets.clear()

    def close(self) -> None:
        self._server.close()
        self.hang_up()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
        end = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        return condition()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._server.accept()
                self._sockets.append(connection)
                connection.recv(4096)
                connack = self._connacks[min(self.connections, len(self._connacks) - 1)]
                self.connections += 1
                connection.sendall(connack)
                threading.Thread(target=self._listen, args=(connection,), daemon=True).start()
        except OSError:
            return

    def _listen(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.stream += data
        except OSError:
            return


@pytest.fixture
def bare_broker() -> Iterator[Callable[[list[bytes]], BareBroker]]:
    open_brokers: list[BareBroker] = []

    def make(connacks: list[bytes]) -> BareBroker:
        open_brokers.append(BareBroker(connacks))
        return open_brokers[-1]

    yield make
    for broker in open_brokers:
        broker.close()


@pytest.fixture
def tls_broker(tmp_path: Path) -> Iterator[tuple[Any, TLS]]:
    """A broker with TLS, TCP and WebSockets, and what trusts it."""
    from device_runtime.broker.servers.production import issue, make_authority

    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    folder = tmp_path
    now = datetime.now(timezone.utc)
    authority = make_authority("ours", now, 2)
    server = issue(authority, ["127.0.0.1"], now, 2)
    for name, text in (
        ("ca.pem", authority.certificate),
        ("server.pem", server.certificate),
        ("server.key", server.key),
    ):
        (folder / name).write_text(text)
    own = TLS(cert=folder / "server.pem", key=folder / "server.key")
    options = BrokerOptions(users={"pi": "x"}, tls=own, web=WebSockets())
    running = mosquitto.Mosquitto(options)
    yield _WithUser(running), TLS(ca=folder / "ca.pem")
    running.stop()


class _WithUser:
    """A broker whose URLs have the user name and the password."""

    def __init__(self, running: Any) -> None:
        self.url = running.url.replace("//", "//pi:x@")
        self.web_url = running.web_url.replace("//", "//pi:x@")
