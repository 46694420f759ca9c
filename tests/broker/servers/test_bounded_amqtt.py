"""Strangers at the embedded broker: whatever they do, others are served, and the log stays short."""

import queue
import socket
import struct
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from device_runtime.broker.servers import amqtt_broker, bounded_amqtt
from device_runtime.broker.servers.amqtt_broker import AmqttBroker
from device_runtime.broker.servers.places import Shares
from device_runtime.broker.servers.server import BrokerOptions, WebSockets
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.console import CountedLines

COUNT = 12


def packet(first, body):
    size, length = len(body), b""
    while True:
        length += bytes([size % 128 | (128 if size > 127 else 0)])
        size //= 128
        if not size:
            return bytes([first]) + length + body


def text(value):
    return struct.pack("!H", len(value)) + value


def hello(name=b"", flags=2, level=4, protocol=b"MQTT", keep_alive=30):
    return packet(0x10, text(protocol) + bytes([level, flags]) + struct.pack("!H", keep_alive) + text(name))


def publish(topic, payload=b"x", first=0x30, number=None):
    return packet(first, text(topic) + (b"" if number is None else struct.pack("!H", number)) + payload)


def subscribe(*filters, qos=1):
    return packet(0x82, b"\0\1" + b"".join(text(topic) + bytes([qos]) for topic in filters))


WELCOME = b"\x20\x02\0\0"

SENT = {
    "says nothing": b"",
    "half a CONNECT": hello()[:5],
    "garbage": bytes(range(256)) * 8,
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "a CONNECT of 256 MB": b"\x10\xff\xff\xff\x7f",
    "a length without end": b"\x10\xff\xff\xff\xff\xff",
    "another protocol": hello(protocol=b"MQIsdp"),
    "a version that is none": hello(level=99),
    "a will that is missing": hello(flags=6),
    "no client id for a session that stays": hello(flags=0),
    "a client id that is no UTF-8": hello(b"\xff\xfe"),
    "two CONNECTs": hello() + hello(),
    "a reserved packet": hello() + b"\xf0\0",
    "a packet of the broker's": hello() + b"\x20\x02\0\0",
    "a message of 256 MB": hello() + b"\x30\xff\xff\xff\x7f",
    "a message that stops": hello() + b"\x30\xff\x7f\0\1t",
    "a topic longer than its packet": hello() + b"\x30\x03\xff\xff\x74",
    "a topic that is no UTF-8": hello() + publish(b"\xff\xfe"),
    "a topic with wildcards": hello() + publish(b"a/#"),
    "an empty topic": hello() + publish(b""),
    "a topic of the broker's": hello() + publish(b"$SYS/broker/load"),
    "QoS 3": hello() + publish(b"t", first=0x36, number=1),
    "messages of QoS 2 without an end": hello()
    + b"".join(publish(b"t", first=0x34, number=1 + n) for n in range(200)),
    "a filter that is none": hello() + subscribe(b"a/#/b", b"#a", b"a+", b""),
    "filters without end": hello() + subscribe(*(b"f/%d" % n for n in range(600))),
    "an empty SUBSCRIBE": hello() + packet(0x82, b"\0\1"),
    "an acknowledgement of nothing": hello() + b"\x40\x02\0\x09\x50\x02\0\x09\x62\x02\0\x09\x70\x02\0\x09",
}


@pytest.fixture
def broker(monkeypatch, caplog):
    """A broker that has little patience."""
    hasty = Shares(most=60, of_address=60, silent=8, burst=1e9, first_s=1.0, stall_s=0.5, look_s=0.05)
    monkeypatch.setattr(amqtt_broker, "SHARES", hasty)
    monkeypatch.setattr(bounded_amqtt, "PIECE_S", 0.4)
    monkeypatch.setattr(bounded_amqtt, "lines", CountedLines(bounded_amqtt.log))
    monkeypatch.setattr(amqtt_broker, "lines", bounded_amqtt.lines)
    running = AmqttBroker(BrokerOptions(web=WebSockets()))
    yield running
    running.stop()
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    assert len(caplog.records) <= 4


@pytest.fixture
def stranger(broker):
    with ExitStack() as stack:

        def come(sent=b""):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=10))
            with suppress(ConnectionError):
                connection.sendall(sent)
            return connection

        yield come


def assert_serves(broker):
    """Two links speak to each other through it."""
    inbox = queue.SimpleQueue()
    hears = Link(BrokerUrl.parse(broker.url), "hears", inbox, LinkOptions(subscriptions=("said/#",)))
    says = Link(BrokerUrl.parse(broker.url), "says", queue.SimpleQueue(), LinkOptions())
    try:
        hears.connect()
        says.connect()
        says.publish("said/it", b"still here")
        while not isinstance(event := inbox.get(timeout=20), Received):
            pass
        assert event == Received("said/it", b"still here")
    finally:
        hears.close()
        says.close()


def read(stream):
    """What comes until the end."""
    data = b""
    with suppress(ConnectionError):
        while part := stream.recv(65_536):
            data += part
    return data


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
def test_whatever_strangers_send_others_are_served(broker, stranger, sent):
    strangers = [stranger(sent) for _ in range(COUNT)]
    assert_serves(broker)
    for number, connection in enumerate(strangers):
        with suppress(OSError):
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            else:
                connection.shutdown(socket.SHUT_WR)
    assert_serves(broker)


@pytest.mark.parametrize(
    "case", ["says nothing", "half a CONNECT", "a message that stops", "a CONNECT of 256 MB"]
)
def test_who_sends_no_more_of_a_packet_is_ended(stranger, case):
    assert read(stranger(SENT[case])) in (b"", WELCOME)


def test_who_does_not_keep_its_keep_alive_is_ended(stranger):
    began = time.monotonic()
    assert read(stranger(hello(keep_alive=1))) == WELCOME
    assert time.monotonic() - began > 0.9


def test_clients_that_acknowledge_nothing_are_ended_in_one_line(broker, stranger, monkeypatch, caplog):
    """Of 2,000 such clients each retained message was a traceback, "Task exception was never retrieved"."""
    real = bounded_amqtt.asyncio.wait_for
    monkeypatch.setattr(bounded_amqtt, "ACKNOWLEDGED_S", 0.0)
    monkeypatch.setattr(
        "amqtt.mqtt.protocol.handler.asyncio.wait_for",
        lambda waited, timeout: real(waited, 0.2 if timeout == 5 else timeout),
    )
    stranger(hello(b"tells") + b"".join(publish(b"t/%d" % n, first=0x31) for n in range(5)))
    time.sleep(0.2)
    strangers = [stranger(hello(b"c%d" % n) + subscribe(b"t/#")) for n in range(6)]
    assert all(read(connection).startswith(WELCOME) for connection in strangers)
    assert_serves(broker)
    assert caplog.text.count("acknowledge nothing") == 1


def test_what_waits_for_one_that_does_not_read_is_bounded_and_ends_it(broker, stranger, monkeypatch):
    monkeypatch.setattr(bounded_amqtt, "WAITING_BYTES", 2**20)
    deaf = stranger(hello(b"deaf") + subscribe(b"t/#", qos=0))
    deaf.recv(4)
    speaks = stranger(hello(b"speaks"))
    for _ in range(400):
        speaks.sendall(publish(b"t/x", bytes(50_000)))
    assert_serves(broker)
    assert len(read(deaf)) < 400 * 50_000


def test_a_client_has_so_many_subscriptions_and_the_broker_so_many_retained_messages(
    broker, stranger, monkeypatch
):
    monkeypatch.setattr(bounded_amqtt, "SUBSCRIPTIONS", 3)
    monkeypatch.setattr(bounded_amqtt, "RETAINED", 2)
    connection = stranger(hello() + subscribe(*(b"f/%d" % n for n in range(5)), qos=0))
    assert connection.recv(4) == WELCOME
    assert connection.recv(9) == b"\x90\x07\0\x01\0\0\0\x80\x80"
    stranger(hello() + b"".join(publish(b"t/%d" % n, first=0x31) for n in range(5)))
    time.sleep(0.3)
    reader = stranger(hello() + subscribe(b"t/#", qos=0))
    time.sleep(0.3)
    assert reader.recv(100).count(b"t/") == 2


def test_a_client_is_sent_retained_messages_of_its_own_subscriptions_alone_and_once(broker, stranger):
    other = stranger(hello(b"other") + subscribe(b"secret/#", b"t/#", qos=0))
    stranger(hello() + publish(b"secret/1", first=0x31) + publish(b"t/1", first=0x31))
    time.sleep(0.3)
    assert other.recv(400).count(b"secret/1") == 1
    reader = stranger(hello(b"reader") + subscribe(b"t/#", qos=0))
    time.sleep(0.3)
    came = reader.recv(400)
    assert (came.count(b"t/1"), came.count(b"secret/1")) == (1, 0)


def test_the_older_of_two_with_one_client_id_is_ended(broker, stranger):
    older = stranger(hello(b"twin"))
    assert older.recv(4) == WELCOME
    newer = stranger(hello(b"twin"))
    assert newer.recv(4) == WELCOME
    assert read(older) == b""
    newer.sendall(b"\xc0\0")
    assert newer.recv(2) == b"\xd0\0"


def test_a_web_socket_that_ends_within_a_packet_does_not_hang_the_broker(broker):
    """amqtt read the last message again and again without end."""
    parts = urlsplit(broker.web_url)
    address, settings = f"ws://{parts.netloc}/mqtt", {"subprotocols": ["mqtt"], "compression": None}
    for sent in (b"\x10\xff\x7f", b"\x10", b"", hello() + b"\x30\xff\x7f\0\1t"):
        page = connect(address, close_timeout=0.1, **settings)
        page.send(sent)
        page.socket.shutdown(2)
    assert_serves(broker)
    with connect(address, **settings) as page, pytest.raises(ConnectionClosed):
        page.recv(timeout=20)  # it says nothing
