"""Pages that speak to the broker through our own address."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.aggregator.http import gateway
from device_runtime.broker.servers.places import Shares
from device_runtime.broker.wire.link import Connected, Link, LinkOptions, Received
from device_runtime.broker.wire.url import BrokerUrl

from .conftest import TOKEN
from .test_join import ask, of, opened, running  # noqa: F401 - fixtures

BLOCK = bytes(range(256)) * 256
CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x1e\x00\x00"
"""Of MQTT 3.1.1 with an empty client id, as its section 3.1 has it."""


class Echo:
    """A port that says back what it hears, in place of a broker."""

    def __init__(self) -> None:
        self.stream = bytearray()
        self.connections: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.connections.append(connection)
                threading.Thread(target=self._say_back, args=(connection,), daemon=True).start()

    def _say_back(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := connection.recv(65_536):
                self.stream += data
                connection.sendall(data)
            connection.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    new_echo = Echo()
    yield new_echo
    new_echo.close()


def open_to(port, **changes):
    return BrowserAccess(BrokerUrl("127.0.0.1", port), **changes)


def page(url, origin=None, protocols=("mqtt",), **arguments):
    address = url.replace("http", "ws", 1) + "/join/mqtt"
    return connect(address, origin=origin or url, subprotocols=protocols, compression=None, **arguments)


@contextmanager
def device(url):
    """A page that has said who it is, to an echo."""
    with page(url) as connection:
        connection.send(CONNECT)
        assert received(connection, len(CONNECT)) == CONNECT
        yield connection


def received(page, size):
    data = b""
    while len(data) < size:
        data += page.recv(timeout=120)
    return data


def test_bytes_are_passed_on_both_ways_as_they_are(running, echo):  # noqa: F811
    url = running(open_to(echo.port))
    with device(url) as connection:
        assert connection.subprotocol == "mqtt"
        for _ in range(8):
            connection.send(BLOCK)
        assert received(connection, 8 * len(BLOCK)) == 8 * BLOCK


def test_the_page_is_told_where_the_gateway_is(running, echo):  # noqa: F811
    assert ask(running(open_to(echo.port)), "/join/config.json").json["gateway"] == "mqtt"


def test_there_is_none_where_the_broker_is_to_be_reached_directly(running, echo):  # noqa: F811
    url = running(open_to(echo.port, broker="wss://fl.example.org/mqtt"))
    config = ask(url, "/join/config.json", Host="192.168.1.5").json
    assert (config["gateway"], config["broker"]["url"]) == ("", "wss://fl.example.org/mqtt")
    with pytest.raises(InvalidStatus):
        page(url)


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "http://127.0.0.1:1", "null"])
def test_a_page_of_another_site_is_not_let_in(running, echo, origin):  # noqa: F811
    with pytest.raises(InvalidStatus):
        page(running(open_to(echo.port)), origin)
    assert echo.connections == []


def test_a_name_that_only_leads_here_is_not_ours(running, echo):  # noqa: F811
    """DNS rebinding: the page and the request have the same origin, of another's name."""
    url = running(open_to(echo.port))
    port = urlsplit(url).port
    address_ = socket.create_connection(("127.0.0.1", port))
    with pytest.raises(InvalidStatus):
        connect(
            f"ws://elsewhere.example:{port}/join/mqtt",
            sock=address_,
            origin=f"http://elsewhere.example:{port}",
            subprotocols=["mqtt"],
        )
    assert echo.connections == []


@pytest.mark.parametrize(
    ("host", "origin", "address"),
    [
        ("192.168.1.5", "https://192.168.1.5", ""),
        ("fl.example.org", "https://fl.example.org", "https://fl.example.org"),
        ("10.0.0.1", "https://fl.example.org", "https://fl.example.org"),
    ],
)
def test_who_needs_a_credential_comes_by_any_name_that_the_page_came_by(
    running,  # noqa: F811
    opened,  # noqa: F811
    echo,
    host,
    origin,
    address,
):
    """An address in a network, that of a proxy in front, and a proxy that asks us by another name."""
    port = urlsplit(running(replace(open_to(echo.port), site=opened, address=address))).port
    address_ = socket.create_connection(("127.0.0.1", port))
    url_ = f"ws://{host}:{port}/join/mqtt"
    page_origin = origin if address else f"{origin}:{port}"
    if address and host in address:  # on the port that a browser does not say
        url_ = f"ws://{host}/join/mqtt"
    with connect(
        url_, sock=address_, origin=page_origin, subprotocols=["mqtt"], compression=None
    ) as connection:
        connection.send(CONNECT + BLOCK)
        assert received(connection, len(CONNECT + BLOCK)) == CONNECT + BLOCK


def test_what_does_not_speak_mqtt_is_not_let_in(running, echo):  # noqa: F811
    with pytest.raises(InvalidStatus):
        page(running(open_to(echo.port)), protocols=("chat",))


def test_a_broker_that_is_not_there_is_no_open_page(running, caplog):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with page(running(open_to(port))) as connection:
        connection.send(CONNECT)
        with pytest.raises(ConnectionClosed, match="1013"):
            connection.recv(timeout=120)
    assert "a page cannot reach the broker at mqtt://127.0.0.1" in caplog.text


def test_when_one_side_ends_so_does_the_other(running, echo, eventually):  # noqa: F811
    url = running(open_to(echo.port))
    with device(url) as connection:
        echo.hang_up()
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=120)
    with device(url):
        pass
    eventually(lambda: echo.connections[-1].fileno() == -1)


def test_a_page_that_says_nothing_for_long_stays(running, echo, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gateway, "CONNECT_S", 0.5)
    with device(running(open_to(echo.port), Shares(idle_s=0.5, first_s=0.5, look_s=0.1))) as connection:
        time.sleep(1.2)
        connection.send(b"still here")
        assert received(connection, 10) == b"still here"


@pytest.mark.parametrize("words", [b"", CONNECT[:1], CONNECT[:-1]])
def test_who_does_not_say_who_it_is_in_time_holds_no_place(running, echo, monkeypatch, words):  # noqa: F811
    """All of it: a byte now and then is not enough."""
    monkeypatch.setattr(gateway, "CONNECT_S", 1.0)
    with page(running(open_to(echo.port))) as connection:
        if words:
            connection.send(words)
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=120)
    assert echo.stream == b""


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1", b"\x30\x00", b"\x10\xff\xff\xff\x7f", b"\x10\x80\x80\x80\x80", b"\x10\x81\x80\x01"],
    ids=["HTTP", "a message first", "256 MB", "no end of its length", "a byte too many"],
)
def test_what_begins_otherwise_does_not_reach_the_broker(running, echo, monkeypatch, words):  # noqa: F811
    monkeypatch.setattr(gateway, "CONNECT_S", 600.0)  # what closes it is not that
    with page(running(open_to(echo.port))) as connection:
        connection.send(words)
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=120)
    assert echo.stream == b""


def test_who_it_is_may_come_in_pieces_with_what_follows(running, echo):  # noqa: F811
    long = b"\x10\x8c\x10" + CONNECT[2:] + bytes(2048) + b"\xc0\x00"
    with page(running(open_to(echo.port))) as connection:
        for begin in range(0, len(long), 500):
            connection.send(long[begin : begin + 500])
        assert received(connection, len(long)) == long


@pytest.mark.slow
def test_a_page_from_which_nothing_comes_for_very_long_is_closed(running, echo, monkeypatch):  # noqa: F811
    """It has vanished, and the broker did not see it."""
    monkeypatch.setattr(gateway, "QUIET_S", 1.0)
    with device(running(open_to(echo.port))) as connection, pytest.raises(ConnectionClosed):
        connection.recv(timeout=120)


def test_only_so_many_pages_are_let_in(running, echo, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gateway, "MOST_PAGES", 2)
    monkeypatch.setattr(gateway, "MOST_PAGES_OF_ADDRESS", 1)  # which this machine is not held to
    url = running(open_to(echo.port))
    with device(url), device(url), pytest.raises(InvalidStatus):
        page(url)


def from_elsewhere(url, address):
    return page(url, additional_headers={"X-Forwarded-For": address})


def test_one_address_has_a_share_of_the_places(running, opened, echo, monkeypatch, tmp_path):  # noqa: F811
    """By a proxy that is trusted. IPv6 addresses that differ in their last half alone are one."""
    monkeypatch.setattr(gateway, "MOST_PAGES_OF_ADDRESS", 2)
    (tmp_path / "proxied").write_text(TOKEN)
    proxied = {"token_file": tmp_path / "proxied", "proxies": ("127.0.0.1",)}
    url = running(replace(open_to(echo.port), site=opened), **proxied)
    with ExitStack() as pages:
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"):
            connection = pages.enter_context(from_elsewhere(url, address))
            connection.send(CONNECT)
            assert received(connection, len(CONNECT)) == CONNECT
        for address in ("192.0.2.1", "2001:db8::ff"):
            with pytest.raises(InvalidStatus):
                from_elsewhere(url, address)
        pages.enter_context(from_elsewhere(url, "192.0.2.2"))
    with from_elsewhere(url, "192.0.2.1") as connection:
        connection.send(CONNECT)
        assert received(connection, len(CONNECT)) == CONNECT


def test_whom_a_proxy_asks_for_is_not_believed_where_none_is_trusted(
    running,  # noqa: F811
    opened,  # noqa: F811
    echo,
    monkeypatch,
):
    monkeypatch.setattr(gateway, "MOST_PAGES_OF_ADDRESS", 1)
    url = running(replace(open_to(echo.port), site=opened))
    with from_elsewhere(url, "192.0.2.1"), from_elsewhere(url, "192.0.2.1"):
        pass


def test_who_comes_by_a_proxy_here_is_elsewhere(running, echo):  # noqa: F811
    """To a broker that is open to this machine; whether the proxy is trusted or not."""
    url = running(open_to(echo.port))
    for name in ("127.0.0.1", "192.0.2.1"):
        with pytest.raises(InvalidStatus):
            from_elsewhere(url, name)
    with pytest.raises(InvalidStatus):
        page(url, additional_headers={"Forwarded": "for=192.0.2.1"})


class Flooding:
    """A broker that says more than anybody reads."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.sent = 0
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with suppress(OSError):
            while True:
                self.sent += connection.send(BLOCK)
        connection.close()
        self.ended.set()


@pytest.fixture
def flooding() -> Iterator[Flooding]:
    new_flood = Flooding()
    yield new_flood
    new_flood.close()


def unread(url):
    """A page that has said who it is, and reads no more: what there is room for on the way is little."""
    parts = urlsplit(url)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((parts.hostname, parts.port))
    return page(url, sock=slow, max_queue=1, ping_interval=None, close_timeout=1)


def test_who_does_not_read_is_cut_off_and_what_waits_for_it_is_bounded(
    running,  # noqa: F811
    flooding,
):
    patient = Shares(stall_s=0.5, look_s=0.1)
    with unread(running(open_to(flooding.port), shares=patient)) as connection:
        connection.send(CONNECT)
        assert flooding.ended.wait(600)
        assert flooding.sent < 32 * 2**20  # of which most is what the system holds on the way


def test_who_pings_and_does_not_read_is_cut_off(running, flooding):  # noqa: F811
    with unread(running(open_to(flooding.port))) as connection:
        connection.send(CONNECT)
        with pytest.raises((ConnectionClosed, OSError)):
            for _ in range(100_000):
                connection.ping()
        assert flooding.ended.wait(600)


def test_a_message_of_endless_frames_is_cut_off(running, echo):  # noqa: F811
    with device(running(open_to(echo.port))) as connection, pytest.raises((ConnectionClosed, OSError)):
        connection.send(b"" for _ in range(10_000_000))
    assert echo.stream == CONNECT


def test_a_device_is_at_a_real_broker_through_it(running, broker):  # noqa: F811
    reached = BrokerUrl.parse(broker.url)
    url = running(BrowserAccess(reached))
    inbox = queue.SimpleQueue()
    through = BrokerUrl.parse(url.replace("http", "ws", 1).replace("//", "//browser:any@") + "/join/mqtt")
    link = Link(through, "page", inbox, LinkOptions(subscriptions=("dn/#",)))
    other = Link(reached, "other", queue.SimpleQueue(), LinkOptions())
    try:
        link.connect()
        other.connect()
        assert inbox.get(timeout=120) == Connected(first=True)
        for _ in range(8):
            other.publish("dn/block", BLOCK)
        for _ in range(8):
            assert inbox.get(timeout=120) == Received("dn/block", BLOCK)
    finally:
        link.close()
        other.close()


def test_without_a_credential_nobody_else_reaches_a_broker_of_this_machine():
    class Asking:
        headers = {"host": "localhost", "origin": "http://localhost"}  # noqa: RUF012
        url = urlsplit("http://localhost")

        def __init__(self, host):
            self.client = type("Client", (), {"host": host})

    def lets(browser_access, host):
        return gateway.Gateway(browser_access)._may_connect(Asking(host))

    alone = open_to(1)
    assert lets(alone, "127.0.0.1")
    assert not lets(alone, "192.168.0.7")
    assert lets(open_to(1, site=object()), "192.168.0.7")


def test_a_broker_with_tls_is_reached_as_the_service_reaches_it(running, opened, echo):  # noqa: F811
    """The echo speaks none, so that nobody is let in; what it has heard is the beginning of TLS."""
    reached = replace(of(opened).reached, port=echo.port)
    with page(running(BrowserAccess(reached))) as connection:
        connection.send(CONNECT)
        with pytest.raises(ConnectionClosed, match="1013"):
            connection.recv(timeout=120)
    assert echo.stream[:1] == b"\x16"
