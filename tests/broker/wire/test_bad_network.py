"""Links over a bad network: slow, cut, silent, refusing, with small packets; and what they count and say."""

import logging
import os
import queue
import secrets
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from device_runtime.broker.errors import BrokerBusy, BrokerRefused, BrokerSilent, BrokerUnreachable
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.sockets import addresses
from device_runtime.broker.wire import mqtt_client, topics
from device_runtime.broker.wire.link import (
    Connected,
    Disconnected,
    Event,
    Link,
    LinkOptions,
    Received,
    Will,
)
from device_runtime.broker.wire.url import TLS, BrokerUrl
from tests.network import Peer, Proxy, black_hole

ACCEPT = b"\x20\x02\x00\x00"
FAST_S = (0.02, 0.2)
STEPS_S = (0.1, 10.0)
BLOCK = topics.up("pi", topics.block(bytes(32), 7))


class Ends:
    """Makes links, proxies and peers; all end with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def proxy(self, url: str, **kwargs: Any) -> Proxy:
        proxy = Proxy(url, **kwargs)
        self._stack.callback(proxy.close)
        return proxy

    def peer(self, *answers: bytes | None, **kwargs: Any) -> Peer:
        peer = Peer(*answers, **kwargs)
        self._stack.callback(peer.close)
        return peer

    def closes(self, part: Any) -> None:
        """Close it when the test ends."""
        self._stack.callback(part.close)

    def link(
        self, url: str, name: str = "pi", tls: TLS | None = None, **options: Any
    ) -> tuple[Link, "queue.SimpleQueue[Event]"]:
        inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        usual = {"reconnect_s": FAST_S, "steps_s": STEPS_S, "seed": 1}
        link = Link(BrokerUrl.parse(url, tls), name, inbox, LinkOptions(**{**usual, **options}))
        self._stack.callback(link.close)
        return link, inbox

    def joined(self, url: str, name: str = "pi", **options: Any) -> tuple[Link, "queue.SimpleQueue[Event]"]:
        link, inbox = self.link(url, name, **options)
        link.connect(60.0)
        return link, inbox


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


def received(inbox: "queue.SimpleQueue[Event]", kind: type[Event] = Received, timeout_s: float = 60.0) -> Any:
    """The next event of a kind."""
    end = time.monotonic() + timeout_s
    while True:
        event = inbox.get(timeout=max(0.01, end - time.monotonic()))
        if isinstance(event, kind):
            return event


def test_each_step_has_a_time_of_its_own_that_grows_until_a_far_broker_is_reached(
    ends: Ends, broker: Any
) -> None:
    """A round trip of 0.5 s, where the first attempt gives each step 0.1 s."""
    proxy = ends.proxy(broker.url)
    proxy.delay_s = 0.25
    link, inbox = ends.link(proxy.url, subscriptions=("t",), steps_s=(0.1, 1.6))
    link.connect()
    assert received(inbox, Connected) == Connected(first=True)
    assert proxy.connections == 4  # 0.1, 0.2 and 0.4 s are too short, 0.8 s are enough


def test_a_far_broker_over_tls_and_a_web_socket_is_reached(ends: Ends, tls_broker: Any) -> None:
    """TCP, TLS, upgrade, CONNACK and SUBACK together take longer than any of them may."""
    running, trust = tls_broker
    proxy = ends.proxy(running.web_url, opaque=True)
    url = proxy.url.replace("//", "//pi:x@")
    proxy.delay_s = 0.3
    link, _ = ends.link(url, tls=trust, subscriptions=("fl/v1/d/pi/dn/#",), steps_s=(1.6, 1.6))
    link.connect()
    assert link.connected


@pytest.mark.parametrize("first", ["nobody answers", "accepted and silent", "refused"])
def test_a_first_address_that_is_dead_costs_moments_and_not_the_join(
    ends: Ends, broker: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    port = BrokerUrl.parse(broker.url).port
    with ExitStack() as stack:
        if first == "nobody answers":
            dead = stack.enter_context(black_hole())
        elif first == "accepted and silent":
            dead = ends.peer(None).port
        else:
            with socket.create_server(("127.0.0.1", 0)) as gone:
                dead = gone.getsockname()[1]

        def two(*_: object, **__: object) -> list[Any]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", place)) for place in (dead, port)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        link, _ = ends.link("mqtt://localhost", steps_s=(1.0, 60.0))
        link.connect()
        assert link.connected


def test_an_address_that_does_not_speak_tls_is_tried_last_the_next_time(
    ends: Ends, tls_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, trust = tls_broker
    other, port = ends.peer(b"HTTP/1.1 400 Bad Request\r\n").port, BrokerUrl.parse(running.url).port
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", place)) for place in (other, port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    link, _ = ends.link("mqtts://pi:x@localhost", tls=trust, steps_s=(30.0, 60.0))
    for reason in ("wrong version number", "Hostname mismatch"):  # the certificate is for 127.0.0.1
        with pytest.raises(BrokerUnreachable, match=reason):
            link.connect()


def test_addresses_of_both_families_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    six = [(socket.AF_INET6, 1, 6, "", (f"::{n}", 1, 0, 0)) for n in (1, 2)]
    four = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", 1)) for n in (1, 1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*six, *four])
    order = [place.address[0] for place in addresses.look_up("b", 1, addresses.StepLimit.of(10))]
    assert order == ["::1", "127.0.0.1", "::2", "127.0.0.2"]


def test_a_name_server_that_does_not_answer_ends_in_time(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: asleep.wait(600) and [])
    link, _ = ends.link("mqtt://localhost")
    with pytest.raises(BrokerSilent, match="the name server does not answer"):
        link.connect(0.3)
    asleep.set()


@pytest.mark.parametrize(
    ("answer", "ends_it", "message"),
    [
        (None, False, "something listens there, but does not answer as a broker"),
        (b"\x20", False, "something listens there, but does not answer as a broker"),
        (ACCEPT, False, "no SUBACK: it accepts the connection, but does not answer the subscription"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "it answers as a web server: for MQTT over WebSockets"),
        (b"SSH-2.0-OpenSSH\r\n", False, "it answers as an SSH server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", False, "it speaks TLS: use mqtts://"),
        (b"* OK IMAP4 ready\r\n", False, r"it does not answer as a broker, but with '\* OK IMAP4"),
        (b"", True, "it closed the connection without giving a reason"),
        (ACCEPT, True, "it closed the connection without giving a reason"),
        (b"\x20\x02\x00\x03", True, "refuses connections for now: server unavailable"),
    ],
    ids=["silent", "half", "no SUBACK", "HTTP", "SSH", "TLS", "IMAP", "closed", "closed later", "busy"],
)
def test_what_does_not_answer_as_a_broker_is_said_in_plain_words(
    ends: Ends, answer: bytes | None, ends_it: bool, message: str
) -> None:
    peer = ends.peer(answer, ends=ends_it)
    link, _ = ends.link(peer.url, subscriptions=("t",), steps_s=(0.1, 0.2))
    with pytest.raises(BrokerUnreachable, match=message):
        link.connect(0.6)


def test_bytes_that_drip_do_not_stretch_a_step(ends: Ends, broker: Any) -> None:
    proxy = ends.proxy(broker.url)
    proxy.drip_s = 0.2  # a CONNACK of 4 bytes takes 0.8 s
    link, _ = ends.link(proxy.url, steps_s=(0.3, 0.3))
    with pytest.raises(BrokerSilent, match="no CONNACK"):
        link.connect(1.0)
    patient, _ = ends.link(proxy.url, "other", steps_s=(0.3, 3.0))
    patient.connect()
    assert patient.connected


def test_who_is_told_to_stop_does_not_wait_for_a_silent_broker(ends: Ends) -> None:
    link, stop = ends.link(ends.peer(None).url, steps_s=(60.0, 60.0))[0], threading.Event()
    threading.Timer(0.1, stop.set).start()
    link.connect(stop=stop)
    assert not link.connected


def connack5(code: int, properties: bytes = b"") -> bytes:
    return bytes((0x20, 3 + len(properties), 0, code, len(properties))) + properties


PASSING_5 = [0x80, 0x83, 0x88, 0x89, 0x97, 0x9C, 0x9D, 0x9F]
DEFINITE_5 = [0x82, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95]


@pytest.mark.parametrize("code", PASSING_5)
def test_a_refusal_that_passes_is_waited_for_in_mqtt_5(ends: Ends, code: int) -> None:
    peer = ends.peer(connack5(code), connack5(code), connack5(0))
    link, _ = ends.link(f"{peer.url}?mqtt=5")
    link.connect(60.0)
    assert (link.connected, peer.connections) == (True, 3)


def test_a_server_that_is_unavailable_once_is_waited_for_in_mqtt_3(ends: Ends) -> None:
    peer = ends.peer(b"\x20\x02\x00\x03", ACCEPT)
    link, _ = ends.joined(peer.url)
    assert (link.connected, peer.connections) == (True, 2)


@pytest.mark.parametrize("code", DEFINITE_5)
def test_a_refusal_that_stays_ends_at_once_in_mqtt_5(ends: Ends, code: int) -> None:
    peer = ends.peer(connack5(code))
    link, _ = ends.link(f"{peer.url}?mqtt=5")
    with pytest.raises(BrokerRefused):
        link.connect()
    assert peer.connections == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [(2, "does not take the client id 'pi'"), (4, "wrong user name"), (5, "wrong user name or password")],
)
def test_a_refusal_that_stays_ends_at_once_in_mqtt_3(ends: Ends, code: int, message: str) -> None:
    link, _ = ends.link(ends.peer(bytes((0x20, 2, 0, code))).url)
    with pytest.raises(BrokerRefused, match=message):
        link.connect()


def test_another_server_that_a_broker_names_is_said(ends: Ends) -> None:
    named = b"\x1c\x00\x05other"
    link, _ = ends.link(f"{ends.peer(connack5(0x9C, named)).url}?mqtt=5")
    with pytest.raises(BrokerBusy, match=r"use another server \(it names other\)"):
        link.connect(0.2)


def test_a_broker_that_does_not_speak_mqtt_5_is_spoken_to_in_mqtt_3(ends: Ends) -> None:
    peer = ends.peer(b"\x20\x02\x00\x01", ACCEPT)
    link, _ = ends.joined(f"{peer.url}?mqtt=5")
    assert (link.connected, peer.connections) == (True, 2)
    assert b"MQTT\x04" in peer.stream


def test_what_a_broker_of_mqtt_5_lacks_is_done_without(ends: Ends) -> None:
    """No retained messages, QoS 0 alone, two messages at a time: a will that is retained is refused first."""
    terms = b"\x25\x00\x24\x00\x21\x00\x02"
    peer = ends.peer(connack5(0x9A), connack5(0x9B), connack5(0, terms))
    link, _ = ends.joined(f"{peer.url}?mqtt=5", will=Will("gone", b"x"), greeting=Will("here", b"x"))
    assert peer.connections == 3
    assert link.publish("t", b"x", retain=True)
    end = time.monotonic() + 60
    while peer.stream.count(b"\x30") < 2 and time.monotonic() < end:
        time.sleep(0.01)
    sent = bytes(peer.stream)
    assert b"\x30\x08\x00\x04here\x00x" in sent  # PUBLISH, QoS 0, not retained
    assert b"\x30\x05\x00\x01t\x00x" in sent


def test_what_a_broker_says_that_it_lacks_is_done_without(ends: Ends) -> None:
    """No retained messages and QoS 0 alone, said as it accepts."""
    peer = ends.peer(connack5(0, b"\x25\x00\x24\x00"))
    link, _ = ends.joined(f"{peer.url}?mqtt=5")
    link.publish("t", b"x", retain=True)
    end = time.monotonic() + 60
    while b"\x01t\x00x" not in peer.stream and time.monotonic() < end:
        time.sleep(0.01)
    assert b"\x30\x05\x00\x01t\x00x" in bytes(peer.stream)


def test_no_more_messages_are_in_flight_than_a_broker_takes(ends: Ends) -> None:
    peer = ends.peer(connack5(0, b"\x21\x00\x02"))
    link, _ = ends.joined(f"{peer.url}?mqtt=5")
    for _ in range(6):
        link.publish("t", b"message")
    end = time.monotonic() + 60
    while bytes(peer.stream).count(b"message") < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    assert bytes(peer.stream).count(b"message") == 2


def test_a_broker_without_wildcards_is_refused_in_words(ends: Ends) -> None:
    link, _ = ends.link(f"{ends.peer(connack5(0, bytes((0x28, 0)))).url}?mqtt=5", subscriptions=("a/#",))
    with pytest.raises(BrokerRefused, match="has no subscriptions with wildcards, as a/#"):
        link.connect()


def test_a_password_that_is_refused_later_may_be_renewed(ends: Ends, caplog: Any) -> None:
    peer = ends.peer(ACCEPT, b"\x20\x02\x00\x05", b"\x20\x02\x00\x05", ACCEPT)
    link, inbox = ends.joined(peer.url)
    peer.hang_up()
    received(inbox, Disconnected)
    assert received(inbox, Connected) == Connected(first=False)
    assert link.connected
    assert sum("password, or revoked; trying again" in text for text in caplog.messages) == 1


def test_the_reason_of_an_outage_is_said_once_and_when_it_changes_and_its_time(
    ends: Ends, broker: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    proxy = ends.proxy(broker.url)
    port, url = proxy.port, proxy.url
    link, inbox = ends.joined(proxy.url, reconnect_s=(0.02, 0.02))
    proxy.close()
    received(inbox, Disconnected)
    time.sleep(0.3)  # many attempts
    ends.peer(b"", b"", b"", ACCEPT, ends=[True, True, True, False], port=port)
    received(inbox, Connected)
    link.close()
    texts = [text for text in caplog.messages if str(port) in text][:4]
    assert [text.partition(url)[2][:28] for text in texts] == [
        " ended (connection lost); tr",
        " (connection refused): start",
        " (it closed the connection w",
        " answers again, after " + texts[3].partition("after ")[2][:6],
    ]


def counted(link: Link) -> int:
    return link.bytes_up + link.bytes_down


@pytest.mark.parametrize("way", ["tcp", "tls", "websocket and tls"])
def test_what_is_counted_is_what_went_through_the_socket(
    ends: Ends, tls_broker: Any, way: str, eventually: Callable[..., Any]
) -> None:
    running, trust = tls_broker
    url = running.web_url if "websocket" in way else running.url
    if way == "tcp":
        plain = mosquitto.Mosquitto()
        ends._stack.callback(plain.stop)
        url = plain.url
    proxy = ends.proxy(url, opaque=True)
    away = proxy.url.replace("//", "//pi:x@")
    link, inbox = ends.link(away, tls=None if way == "tcp" else trust, steps_s=(30.0, 60.0))
    link.connect(60.0)
    for number in range(5):
        assert link.publish(topics.up("pi", topics.block(bytes(32), number)), secrets.token_bytes(65_536))
    end = time.monotonic() + 60
    while link.unacknowledged() and time.monotonic() < end:
        time.sleep(0.01)
    link.close()
    eventually(lambda: proxy.up >= link.bytes_up, 60.0)
    assert proxy.up > 5 * 65_536
    assert link.bytes_up == proxy.up
    # TLS may end with an alert that we do not wait for
    assert proxy.down - 64 <= link.bytes_down <= proxy.down
    assert received(inbox, Connected).first


def test_repeats_on_a_link_that_is_cut_during_uploads_are_counted(ends: Ends, broker: Any) -> None:
    """1 MB in blocks over connections that end after 200 kB each: within 5% of what came to the proxy."""
    proxy = ends.proxy(broker.url)
    proxy.cut_after, proxy.bytes_per_s = 200_000, 4e6
    link, _ = ends.joined(proxy.url, reconnect_s=(0.01, 0.02))
    size = 0
    for number in range(16):
        assert link.publish(topics.up("pi", topics.block(bytes(32), number)), bytes(65_536))
        size += 65_536
        if number % 4 == 3:
            end = time.monotonic() + 60
            while link.unacknowledged() and time.monotonic() < end:
                time.sleep(0.005)
    assert link.unacknowledged() == 0
    assert proxy.connections > 5
    assert proxy.up > 1.05 * size  # much went twice
    assert abs(counted(link) - (proxy.up + proxy.down)) < 0.05 * (proxy.up + proxy.down)


KIB = 1024


@pytest.mark.parametrize("limit", [16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB])
def test_blocks_pass_a_broker_that_closes_at_large_packets(
    ends: Ends, broker: Any, caplog: Any, limit: int
) -> None:
    """In MQTT 3.1.1 the limit is learnt: two closings for each size that is too large."""
    proxy = ends.proxy(broker.url)
    proxy.packet_limit = limit
    reader, inbox = ends.joined(broker.url, "reader", subscriptions=("fl/v1/#",))
    link, _ = ends.joined(proxy.url, greeting=Will(topics.up("pi", "state"), b"here"))
    content = os.urandom(64 * KIB)
    hello = os.urandom(200)
    link.publish(topics.up("pi", "hello"), hello)
    link.publish(BLOCK, content)
    link.publish(topics.up("pi", "contribution"), content[::-1])
    payloads = {}
    while len(payloads) < 3:
        event = received(inbox)
        if not event.topic.endswith("state"):
            payloads[event.topic] = event.payload
    assert payloads == {
        topics.up("pi", "hello"): hello,
        BLOCK: content,
        topics.up("pi", "contribution"): content[::-1],
    }
    assert reader.connected
    closings = {16 * KIB: 4, 64 * KIB: 2}.get(limit, 0)
    assert proxy.connections == 1 + closings
    assert link.packet_limit == {16 * KIB: 16 * KIB, 64 * KIB: 32 * KIB}.get(limit)
    assert "is another client called" not in caplog.text


def test_a_limit_is_learnt_also_where_the_subscription_is_never_answered_before_the_end(
    ends: Ends, broker: Any
) -> None:
    """On a far link what waited is sent again with the connection, and ends it before the SUBACK comes."""
    proxy = ends.proxy(broker.url)
    _, inbox = ends.joined(broker.url, "reader", subscriptions=("fl/v1/#",))
    link, own = ends.joined(proxy.url, subscriptions=("fl/v1/d/pi/dn/#",))
    proxy.packet_limit = 16 * KIB
    content = os.urandom(64 * KIB)
    proxy.drip_s = 0.05  # a SUBACK of 5 bytes takes a quarter of a second, the end none
    link.publish(BLOCK, content)
    assert received(inbox, timeout_s=20.0) == Received(BLOCK, content)
    assert received(own, Connected).first


@pytest.mark.parametrize("limit", [16 * KIB, 64 * KIB, 256 * KIB])
def test_the_limit_that_mqtt_5_names_is_kept_from_the_first_packet_on(
    ends: Ends, limited_broker: Any, limit: int
) -> None:
    running = limited_broker(f"max_packet_size {limit}")
    proxy = ends.proxy(running.url, opaque=True)
    _, inbox = ends.joined(running.url, "reader", subscriptions=("fl/v1/#",))
    link, _ = ends.joined(f"{proxy.url}?mqtt=5")
    content = os.urandom(64 * KIB)
    link.publish(BLOCK, content)
    assert received(inbox) == Received(BLOCK, content)
    assert (proxy.connections, link.packet_limit) == (1, limit)


def test_a_broker_of_mqtt_5_that_refuses_a_message_as_too_large_gets_it_in_pieces(
    ends: Ends, limited_broker: Any
) -> None:
    """Mosquitto's limit on payloads: MQTT 5 names it in a PUBACK that the standard does not know."""
    running = limited_broker("message_size_limit 20000")
    _, inbox = ends.joined(running.url, "reader", subscriptions=("fl/v1/#",))
    link, _ = ends.joined(f"{running.url}?mqtt=5")
    content = os.urandom(64 * KIB)
    link.publish(BLOCK, content)
    assert received(inbox) == Received(BLOCK, content)


def test_blocks_that_a_broker_acknowledges_and_drops_are_sent_in_pieces_when_they_are_asked_for_again(
    ends: Ends, limited_broker: Any, caplog: Any
) -> None:
    """Mosquitto's limit on payloads in MQTT 3.1.1: nothing shows it but that nothing comes."""
    running = limited_broker("message_size_limit 20000")
    _, inbox = ends.joined(running.url, "reader", subscriptions=("fl/v1/#",))
    link, _ = ends.joined(running.url)
    content, requests = os.urandom(64 * KIB), 0
    while inbox.qsize() < 2:
        link.publish(BLOCK, content)
        requests += 1
        end = time.monotonic() + 60
        while link.unacknowledged() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)
    assert received(inbox) == Received(BLOCK, content)
    assert requests == 6  # three in one packet, three in pieces of 22 kB, then in pieces of 16 KiB
    assert "to no effect" in caplog.text


@pytest.fixture
def limited_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    started: list[Any] = []
    configure = mosquitto.configure

    def start(line: str) -> Any:
        def limited(*arguments: Any) -> str:
            lines = [
                text for text in configure(*arguments).splitlines() if text.split()[0] != line.split()[0]
            ]
            return "\n".join([*lines, line]) + "\n"

        monkeypatch.setattr(mosquitto, "configure", limited)
        started.append(mosquitto.Mosquitto())
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


def test_a_message_that_no_piece_can_carry_is_said_with_its_size(
    ends: Ends, broker: Any, caplog: Any
) -> None:
    """A retained message has one topic and cannot go in pieces; others still pass."""
    proxy = ends.proxy(broker.url)
    proxy.packet_limit = 16 * KIB
    _, inbox = ends.joined(broker.url, "reader", subscriptions=("fl/v1/#",))
    link, _ = ends.joined(proxy.url)
    link.publish(topics.offer("digits"), b"\x93" * 20_000, retain=True)
    link.publish(topics.up("pi", "hello"), b"hello")
    assert received(inbox).payload == b"hello"
    end = time.monotonic() + 60
    while "not sent" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    assert "not sent: a packet of 20030 bytes on fl/v1/all/round/digits" in caplog.text


def test_a_limit_that_is_of_no_use_is_refused_with_its_size(ends: Ends) -> None:
    small = b"\x27\x00\x00\x02\x00"
    link, _ = ends.link(f"{ends.peer(connack5(0, small)).url}?mqtt=5")
    with pytest.raises(BrokerRefused, match="takes packets of at most 512 bytes; at least 1024 are needed"):
        link.connect()


def test_a_broker_that_closes_at_any_packet_is_said_with_its_size(
    ends: Ends, broker: Any, caplog: Any
) -> None:
    proxy = ends.proxy(broker.url)
    proxy.packet_limit = 600
    link, _ = ends.joined(proxy.url)
    link.publish(topics.offer("digits"), b"\x93" * 1200, retain=True)
    end = time.monotonic() + 60
    while "must take packets" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    assert "packets of 1229 bytes, and none smaller are of use" in caplog.text


def test_a_session_that_is_taken_over_in_mqtt_5_is_said_as_that_at_once(ends: Ends) -> None:
    peer = ends.peer(connack5(0) + b"\xe0\x02\x8e\x00", connack5(0))
    _, inbox = ends.joined(f"{peer.url}?mqtt=5")
    assert received(inbox, Disconnected).reason == "session taken over: is another client called 'pi'?"


def test_a_broker_that_closes_at_each_message_is_not_taken_for_another_client(ends: Ends) -> None:
    """As brokers do that do not allow what we publish: the message was never acknowledged."""
    peer = ends.peer(ACCEPT)
    link, inbox = ends.joined(peer.url, greeting=Will("state", b"here"))
    for _ in range(4):
        peer.hang_up()
        assert received(inbox, Disconnected).reason == "connection lost"
        received(inbox, Connected)
    assert link.connected


@pytest.mark.parametrize("code", [0x80, 0x83, 0x97])
def test_a_subscription_that_is_refused_later_is_asked_for_again(ends: Ends, caplog: Any, code: int) -> None:
    """A link without its subscription would be deaf for as long as the connection lasts."""
    refused = b"\x90\x04\x00\x01\x00" + bytes((code,))
    accepted = b"\x90\x04\x00\x01\x00\x01"
    welcome = connack5(0)
    peer = ends.peer(welcome + accepted, welcome + refused, welcome + refused, welcome + accepted)
    _, inbox = ends.joined(f"{peer.url}?mqtt=5", subscriptions=("t",))
    peer.hang_up()
    received(inbox, Disconnected)
    assert received(inbox, Connected) == Connected(first=False)
    assert peer.connections == 4
    assert sum(" t" in text and "subscription" in text for text in caplog.messages) == 1


def test_a_first_subscription_that_is_refused_for_now_is_waited_for(ends: Ends) -> None:
    answers = [connack5(0) + b"\x90\x04\x00\x01\x00" + bytes((code,)) for code in (0x97, 0x01)]
    link, _ = ends.joined(f"{ends.peer(*answers).url}?mqtt=5", subscriptions=("t",))
    assert link.connected


@pytest.mark.parametrize("stated_s", [0, 3600])
def test_a_broker_that_wants_no_pings_is_pinged_all_the_same(ends: Ends, stated_s: int) -> None:
    """A broker of MQTT 5 that states no keep-alive and dies: nothing else would ever say so."""
    terms = b"\x13" + stated_s.to_bytes(2, "big")
    _, inbox = ends.joined(f"{ends.peer(connack5(0, terms)).url}?mqtt=5", keepalive_s=1)
    assert received(inbox, Disconnected).reason == "the broker does not answer pings any more"


def test_a_message_that_is_too_large_is_dropped_and_not_kept_in_memory(ends: Ends, caplog: Any) -> None:
    """Anybody may send one where the broker is open, and the broker may retain it."""
    size = 8_000_000
    length = bytes(((size + 3) >> shift & 0x7F) | (0x80 if shift < 21 else 0) for shift in (0, 7, 14, 21))
    large = b"\x30" + length + b"\x00\x01t" + bytes(size)
    peer = ends.peer(ACCEPT + b"\x90\x03\x00\x01\x01" + large + b"\x30\x08\x00\x01tsmall")
    tracemalloc.start()
    try:
        _, inbox = ends.joined(peer.url, subscriptions=("t",))
        assert received(inbox).payload == b"small"
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < size / 4
    assert f"dropped a message of {size + 3} bytes on t" in caplog.text


def upgrade(request: bytes) -> bytes:
    """The answer to an upgrade to WebSocket."""
    import base64
    import hashlib
    import re

    key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    assert key is not None
    accept = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())  # noqa: S324
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


class WebPeer(Peer):
    """A WebSocket server that sends `frames` after the CONNECT."""

    def __init__(self, frames: bytes) -> None:
        self.frames = frames
        super().__init__(None)

    def _answer(self, client: socket.socket, *_: object) -> None:
        client.sendall(upgrade(client.recv(4096)))
        client.recv(4096)
        with suppress(OSError):
            client.sendall(b"\x82\x04" + ACCEPT + self.frames)
            while data := client.recv(4096):
                self.stream += data


def test_a_ping_of_a_web_socket_is_answered_as_clients_must(ends: Ends) -> None:
    """Masked (RFC 6455, 5.1): servers end a connection for a frame that is not."""
    peer = WebPeer(b"\x89\x02hi")
    ends.closes(peer)
    ends.joined(peer.url.replace("mqtt:", "ws:") + "/mqtt")
    end = time.monotonic() + 60
    while len(peer.stream) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    first, second, *rest = bytes(peer.stream)
    assert (first, second) == (0x8A, 0x80 | 2)
    assert bytes(letter ^ rest[n] for n, letter in enumerate(rest[4:6])) == b"hi"


def test_a_frame_of_a_web_socket_that_never_ends_is_not_kept_in_memory(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_client, "MOST_FRAME_BYTES", 100_000)
    peer = WebPeer(b"\x82\x7f\0\0\1\0\0\0\0\0" + b"\x30\xff\xff\xff\x7f\0\1t" + bytes(300_000))
    ends.closes(peer)
    _, inbox = ends.joined(peer.url.replace("mqtt:", "ws:") + "/mqtt")
    assert received(inbox, Disconnected).reason == "it sends a frame of more than 100000 bytes"


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "502 Bad Gateway"])
def test_a_web_server_that_makes_no_web_socket_is_said_with_its_answer(ends: Ends, status: str) -> None:
    peer = ends.peer(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())
    link, _ = ends.link(peer.url.replace("mqtt:", "ws:") + "/mqtt")
    with pytest.raises(BrokerUnreachable, match=f"the web server answers '{status}' and makes no WebSocket"):
        link.connect()
