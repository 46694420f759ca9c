"""Strangers at the socket of HTTP: whatever they do, others are answered, and the log stays short."""

import http.client
import logging
import socket
import ssl
import struct
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.http import gateway
from device_runtime.aggregator.http.server import HttpServer
from device_runtime.broker.servers.places import Shares
from device_runtime.broker.servers.production import issue, make_authority

from .test_gateway import CONNECT, echo, open_to, unread  # noqa: F401 - fixture
from .test_join import opened, running  # noqa: F401 - fixtures
from .test_watch import hosted

HASTY = Shares(most=24, silent=4, first_s=0.3, body_s=0.3, idle_s=0.3, stall_s=0.3, look_s=0.05, burst=1000.0)
COUNT = 40
UPGRADE = (
    b"GET /join/mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
POST = (
    b"POST /join/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 4000\r\n\r\n"
)
CHUNKED = (
    b"POST /join/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"

SENT = {
    "says nothing": b"",
    "begins TLS and stops": b"\x16\x03\x01",
    "half a request line": b"GET /heal",
    "headers without end": GET + b"X: 1\r\n",
    "a body that stops": POST + b"{",
    "a chunk that stops": CHUNKED + b"ff\r\n{",
    "chunks without end": CHUNKED + b"1\r\n{\r\n" * 4000,
    "a chunk that is none, after the answer": CHUNKED + b"1;" + b"a" * 40_000,
    "large headers": GET + b"X: " + b"x" * 200_000,
    "many headers": GET + b"X: 1\r\n" * 30_000,
    "many requests at once": (GET + b"\r\n") * 500,
    "a length that is none": b"POST /join/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "garbage": bytes(range(256)) * 64,
    "bad UTF-8 in the path": b"GET /%ff%fe\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a page that says nothing": UPGRADE,
    "half a CONNECT": UPGRADE + b"\x82\x81\0\0\0\0\x10",
    "a text that is no UTF-8": UPGRADE + b"\x81\x82\0\0\0\0\xff\xfe",
    "a frame of a reserved sort": UPGRADE + b"\x83\x80\0\0\0\0",
    "a frame that closes, and another": UPGRADE + b"\x88\x80\0\0\0\0\x82\x80\0\0\0\0",
    "a frame of 2^62 bytes": UPGRADE + b"\x82\xff\x40\0\0\0\0\0\0\0\0\0\0\0",
    "frames without end": UPGRADE + b"\x02\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 3000,
    "an upgrade elsewhere": UPGRADE.replace(b"/join/mqtt", b"/nowhere"),
    "an upgrade to what is not": GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
}


def port_of(url):
    return int(url.rpartition(":")[2])


def stranger(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def status_of(port, context=None, path="/join/config.json"):
    """The status that somebody else is given."""
    kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
    more = {"context": context} if context else {}
    other = kind("127.0.0.1", port, timeout=30, source_address=("127.0.0.10", 0), **more)
    try:
        other.request("GET", path)
        return other.getresponse().status
    finally:
        other.close()


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def is_ended(connection):
    with suppress(TimeoutError):
        connection.settimeout(0.01)
        try:
            while connection.recv(65_536):
                pass
        except ConnectionError:
            pass
        return True
    return False


@pytest.fixture
def site(running, echo, monkeypatch):  # noqa: F811
    """The port of a site that has little patience; its gateway leads to an echo."""
    monkeypatch.setattr(gateway, "CONNECT_S", 0.3)
    return port_of(running(open_to(echo.port), HASTY))


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
def test_whatever_strangers_send_others_are_answered_and_strangers_do_not_stay(
    site, sent, caplog, eventually
):
    with ExitStack() as stack:
        strangers = [stack.enter_context(stranger(site)) for _ in range(COUNT)]
        for connection in strangers:
            with suppress(OSError):  # it was ended already
                connection.settimeout(1.0)
                connection.sendall(sent)
        assert status_of(site) == 200
        eventually(lambda: all(map(is_ended, strangers)), timeout_s=20)
        assert status_of(site) == 200
    assert "Traceback" not in caplog.text
    assert len(caplog.text) < len(sent) * COUNT + 2000


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
@pytest.mark.parametrize(
    "leave", [reset, lambda connection: connection.shutdown(socket.SHUT_WR)], ids=["resets", "half-closes"]
)
def test_strangers_that_leave_at_once_cause_no_traceback_and_few_lines(site, sent, leave, caplog):
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(stranger(site))
            with suppress(OSError):
                connection.sendall(sent)
                leave(connection)
        assert status_of(site) == 200
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_posts_that_are_aborted_cause_no_line_each(running, opened, caplog):  # noqa: F811
    """They reach the code that reads a body; it once logged a traceback of each, ten bytes for one sent."""
    from .test_join import of

    port = port_of(running(of(opened), HASTY))
    for _ in range(25):
        connection = stranger(port)
        connection.sendall(POST + b"{")
        time.sleep(0.002)
        reset(connection)
    assert status_of(port) == 200
    time.sleep(0.05)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


def test_a_slow_body_ends_in_time_and_one_by_a_thin_link_is_read(running, opened):  # noqa: F811
    from .test_join import of

    port = port_of(running(of(opened), replace(HASTY, body_s=4.0)))
    with stranger(port) as thin:
        thin.sendall(POST)
        for _ in range(40):  # in a third of the time
            thin.sendall(b" " * 100)
            time.sleep(0.03)
        assert thin.recv(100).startswith(b"HTTP/1.1 400")
    with stranger(port) as slow:
        slow.sendall(POST)
        with pytest.raises(ConnectionError):
            for _ in range(3000):
                slow.sendall(b" ")
                time.sleep(0.01)


def test_who_does_not_read_an_answer_is_ended(running, echo):  # noqa: F811
    """Of many answers that are asked for at once, unread, nothing is kept for ever."""
    port = port_of(running(open_to(echo.port), HASTY))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", port))
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.001)
    assert status_of(port) == 200


def test_connections_that_never_begin_tls_keep_nobody_from_https(tmp_path, clock):
    now = datetime.now(timezone.utc)
    authority = make_authority("test", now, 2)
    pair = issue(authority, ["127.0.0.1"], now, 1)
    for name, text in (("c.pem", pair.certificate), ("k.pem", pair.key)):
        (tmp_path / name).write_text(text)
    settings = HttpSection(port=0, cert=tmp_path / "c.pem", key=tmp_path / "k.pem", min_free_mb=0)
    site = HttpServer(settings, [hosted(tmp_path, clock)], shares=HASTY)
    trust = ssl.create_default_context(cadata=authority.certificate)
    site.start()
    port = port_of(site.url)
    try:
        with ExitStack() as stack:
            for number in range(90):
                connection = stack.enter_context(stranger(port, f"127.0.0.{1 + number % 9}"))
                with suppress(OSError):
                    connection.sendall(b"\x16\x03\x01" if number % 2 else b"")
            assert status_of(port, trust, "/") == 200
    finally:
        site.stop()


def test_an_answered_connection_gives_way_and_one_with_a_request_does_not(running, echo):  # noqa: F811
    """A browser holds six, and where its request is lost, the page has no program."""
    port = port_of(running(open_to(echo.port), Shares(most=4, burst=1000.0)))
    with ExitStack() as stack:
        for _ in range(9):
            connection = stack.enter_context(stranger(port))
            connection.sendall(GET + b"\r\n")
            assert connection.recv(15).startswith(b"HTTP/1.1 200")
        assert status_of(port) == 200


def test_downloads_and_live_views_that_are_aborted_or_unread_cause_no_line(
    tmp_path, clock, caplog, eventually
):
    """Of a model of 8 MB, and of the state of a task, which never ends."""
    caplog.set_level(logging.WARNING)
    task = hosted(tmp_path, clock)
    (task.folder / "served.safetensors").write_bytes(bytes(8 * 2**20))
    site = HttpServer(HttpSection(port=0, open=True, min_free_mb=0), [task], shares=HASTY)
    site.start()
    port = port_of(site.url)
    try:
        with ExitStack() as stack:
            for number, path in enumerate((b"model", b"events") * 8):
                connection = stack.enter_context(stranger(port))
                connection.sendall(
                    b"GET /api/v1/tasks/digits/" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
                if path == b"events" or number % 4:
                    reset(connection)
            assert status_of(port, path="/") == 200
            eventually(lambda: len(site._socket.places) == 0, timeout_s=20)
    finally:
        site.stop()
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


def test_devices_behind_one_address_keep_their_connections_while_a_stranger_there_floods(running, opened):  # noqa: F811
    from .conftest import TOKEN
    from .test_join import of

    port = port_of(running(of(opened), replace(HASTY, idle_s=30.0)))
    proven = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        with ExitStack() as stack:
            for _ in range(5):
                proven.request("GET", "/api/v1/tasks", headers={"Authorization": f"Bearer {TOKEN}"})
                answer = proven.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True)
                assert proven.sock  # the same connection
                for _ in range(COUNT):
                    stack.enter_context(stranger(port))
    finally:
        proven.close()
