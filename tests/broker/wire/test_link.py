"""The link, on real sockets: what it reports, what it survives, what it refuses."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from device_runtime.broker.errors import BrokerRefused, BrokerUnreachable
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import link as link_module
from device_runtime.broker.wire.link import (
    Connected,
    Disconnected,
    Link,
    LinkOptions,
    Received,
    Will,
    packet_bytes,
)
from device_runtime.broker.wire.messages import MessageError
from device_runtime.broker.wire.url import BrokerUrl

ACCEPT_3, ACCEPT_5 = b"\x20\x02\x00\x00", b"\x20\x03\x00\x00\x00"
REFUSE_3 = b"\x20\x02\x00\x04"
FAST_S = (0.05, 0.5)
Bare = Callable[[list[bytes]], Any]


def test_a_message_goes_from_one_to_the_other(house: Any, eventually: Callable[..., Any]) -> None:
    url = house.broker().url
    reader, writer = house.listener(url, "reader", "fl/v1/d/+/up/#"), house.peer(url, "writer")
    assert reader.expect(Connected) == Connected(first=True)
    before_up, before_down = writer.link.bytes_up, reader.link.bytes_down
    assert writer.link.publish("fl/v1/d/pi/up/hello", b"\x00\xff")
    assert reader.expect(Received) == Received("fl/v1/d/pi/up/hello", b"\x00\xff")
    # The writer's thread counts after the system took the bytes: the reader may be ahead of it.
    eventually(lambda: writer.link.bytes_up > before_up, 60.0)
    assert writer.link.bytes_up - before_up == packet_bytes("fl/v1/d/pi/up/hello", b"\x00\xff")
    assert reader.link.bytes_down - before_down == packet_bytes("fl/v1/d/pi/up/hello", b"\x00\xff")


def test_both_versions_of_the_protocol_meet_on_mosquitto(house: Any) -> None:
    if house.kind == "amqtt":
        pytest.skip("amqtt speaks MQTT 3.1.1 only")
    url = house.broker().url
    reader = house.listener(f"{url}?mqtt=5", "reader", "fl/v1/#")
    writer = house.peer(url, "writer")
    writer.link.publish("fl/v1/x", b"hello")
    assert reader.expect(Received) == Received("fl/v1/x", b"hello")


def test_a_retained_offer_reaches_a_late_subscriber(house: Any) -> None:
    url = house.broker().url
    sender = house.listener(url, "sender", "fl/v1/all/round")
    sender.link.publish("fl/v1/all/round", b"offer", retain=True)
    assert sender.expect(Received) == Received("fl/v1/all/round", b"offer", retain=False)
    late = house.listener(url, "late", "fl/v1/all/round")
    assert late.expect(Received) == Received("fl/v1/all/round", b"offer", retain=True)


def test_what_others_retain_does_not_leak_to_those_who_did_not_ask(house: Any) -> None:
    """amqtt sends retained messages past subscriptions; the link does not let them in."""
    url = house.broker().url
    sender = house.listener(url, "sender", "fl/v1/#")
    sender.link.publish("fl/v1/d/pi-1/up/state", b"private", retain=True)
    sender.link.publish("fl/v1/all/round", b"offer", retain=True)
    sender.expect(Received)
    sender.expect(Received)
    late = house.listener(url, "late", "fl/v1/all/round", "fl/v1/d/pi-2/dn/#")
    received = {late.expect(Received)}
    time.sleep(0.3)
    received |= {event for event in late.drain() if isinstance(event, Received)}
    assert received == {Received("fl/v1/all/round", b"offer", retain=True)}  # by amqtt, once per subscription


_DOOMED = """
import queue, sys, time
from device_runtime.broker.wire.link import Link, LinkOptions, Will
from device_runtime.broker.wire.url import BrokerUrl
options = LinkOptions(will=Will("fl/v1/d/pi/up/state", b"gone"), keepalive_s=int(sys.argv[2]))
Link(BrokerUrl.parse(sys.argv[1]), "doomed", queue.SimpleQueue(), options).connect()
print("connected", flush=True)
time.sleep(600)
"""


def test_the_will_fires_when_a_device_is_killed(house: Any) -> None:
    url = house.broker().url
    witness = house.listener(url, "witness", "fl/v1/d/+/up/state")
    with subprocess.Popen([sys.executable, "-c", _DOOMED, url, "30"], stdout=subprocess.PIPE) as doomed:
        assert doomed.stdout
        assert doomed.stdout.readline() == b"connected\n"
        doomed.send_signal(signal.SIGKILL)
    assert witness.expect(Received).payload == b"gone"


def test_who_says_goodbye_has_no_last_will(house: Any) -> None:
    url = house.broker().url
    witness = house.listener(url, "witness", "state")
    leaver = house.peer(url, "leaver", LinkOptions(will=Will("state", b"gone")))
    leaver.link.close(Will("state", b"goodbye"))
    assert witness.expect(Received).payload == b"goodbye"
    assert witness.is_quiet()


def test_a_wrong_password_is_refused_in_words(house: Any) -> None:
    broker = house.broker(BrokerOptions(users={"pi-07": "right"}))
    good = broker.url.replace("//", "//pi-07:right@")
    house.peer(good, "pi-07")
    with pytest.raises(BrokerRefused) as caught:
        house.peer(good.replace("right", "wrong"), "pi-08")
    expected = f"the broker at {broker.url} refused user 'pi-07': wrong user name or password, or revoked"
    assert str(caught.value) == expected
    with pytest.raises(BrokerRefused, match="a client without user name"):
        house.peer(broker.url, "pi-09")


def test_after_the_broker_restarts_the_link_is_back_and_brings_what_waited(house: Any) -> None:
    broker = house.broker()
    reader, writer = house.listener(broker.url, "reader", "fl/v1/#"), house.peer(broker.url, "writer")
    writer.expect(Connected)
    reader.expect(Connected)
    port = BrokerUrl.parse(broker.url).port
    broker.kill() if hasattr(broker, "kill") else broker.stop()
    assert writer.expect(Disconnected).reason == "connection lost"
    reader.expect(Disconnected)
    assert not writer.link.connected
    house.broker(BrokerOptions(port=port))
    assert reader.expect(Connected) == Connected(first=False)
    assert writer.link.publish("fl/v1/late", b"waited")
    assert reader.expect(Received) == Received("fl/v1/late", b"waited")


def test_what_is_published_while_offline_is_sent_at_the_return(house: Any) -> None:
    broker = house.broker()
    port = BrokerUrl.parse(broker.url).port
    slow = LinkOptions(reconnect_s=(1.5, 1.5))
    writer = house.peer(broker.url, "writer", slow)
    broker.stop()
    writer.expect(Disconnected)
    assert writer.link.publish("fl/v1/late", b"waited")  # at once: the broker is started after it
    new = house.broker(BrokerOptions(port=port))
    reader = house.listener(new.url, "reader", "fl/v1/#")
    assert reader.expect(Received) == Received("fl/v1/late", b"waited")


def test_what_the_broker_has_not_acknowledged_is_under_way(house: Any) -> None:
    broker = house.broker()
    port = BrokerUrl.parse(broker.url).port
    writer = house.peer(broker.url, "writer")
    writer.link.publish("fl/v1/a", b"x")
    assert settled(writer.link)
    broker.stop()
    writer.expect(Disconnected)
    for topic in ("fl/v1/a", "fl/v1/b", "fl/v1/a"):
        writer.link.publish(topic, b"x")
    assert [writer.link.unacknowledged(topic) for topic in ("", "fl/v1/a", "fl/v1/b", "fl/v1/c")] == [
        3,
        2,
        1,
        0,
    ]
    house.broker(BrokerOptions(port=port))
    assert settled(writer.link)


def settled(link: Link) -> bool:
    end = time.monotonic() + 120
    while link.unacknowledged() and time.monotonic() < end:
        time.sleep(0.01)
    return not link.unacknowledged()


def test_whoever_is_busy_is_said_to_be_here_again_before_anything_that_waited(bare_broker: Bare) -> None:
    """Nobody reads the inbox: the greeting is the link's own."""
    server = bare_broker([ACCEPT_3])
    options = LinkOptions(greeting=Will("state", b"here"), reconnect_s=FAST_S)
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), options)
    link.connect(60.0)
    link.publish("t", b"waited")
    assert server.wait_for(lambda: b"waited" in server.stream)
    assert server.stream.index(b"here") < server.stream.index(b"waited")
    server.stream.clear()
    server.hang_up()
    assert server.wait_for(lambda: b"waited" in server.stream)
    assert server.stream[0] == 0x33  # PUBLISH, QoS 1, retained, and no duplicate of the one before
    assert server.stream.index(b"here") < server.stream.index(b"waited")
    link.close()


def test_the_greeting_ends_what_the_last_will_began(house: Any) -> None:
    """The connection before ends with its will, then the link is here again."""
    url = house.broker().url
    witness = house.listener(url, "witness", "fl/v1/d/+/up/state")
    here, gone = Will("fl/v1/d/pi/up/state", b"here"), Will("fl/v1/d/pi/up/state", b"gone")
    options = LinkOptions(will=gone, greeting=here, subscriptions=("fl/v1/d/pi/dn/#",), reconnect_s=FAST_S)
    peer = house.peer(url, "pi", options)
    assert witness.expect(Received).payload == b"here"
    connection = peer.link._client.socket()
    assert connection
    connection.raw.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    assert witness.expect(Received).payload == b"gone"
    assert witness.expect(Received).payload == b"here"
    late = house.listener(url, "late", "fl/v1/d/+/up/state")
    assert late.expect(Received) == Received("fl/v1/d/pi/up/state", b"here", retain=True)


def test_nobody_there_is_said_with_what_to_do() -> None:
    with socket.socket() as listener:  # bound, but nobody listens
        listener.bind(("127.0.0.1", 0))
        url = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable) as caught:
            Link(BrokerUrl.parse(url), "pi", queue.SimpleQueue()).connect(60.0)
    assert str(caught.value) == (
        f"no broker answers at {url} (connection refused): "
        "start one with `device-runtime broker`, or check host and port"
    )


def test_a_server_that_is_no_broker_is_unreachable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = BrokerUrl.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(BrokerUnreachable, match="but does not answer as a broker"):
            Link(url, "pi", queue.SimpleQueue()).connect(0.5)
        assert time.monotonic() - start < 30


def test_a_host_that_does_not_exist_is_named() -> None:
    url = BrokerUrl.parse("mqtt://broker.invalid", insecure=True)
    with pytest.raises(BrokerUnreachable, match=r"no machine is called 'broker\.invalid'"):
        Link(url, "pi", queue.SimpleQueue()).connect(60.0)


def test_a_failed_connect_may_be_tried_again(bare_broker: Bare) -> None:
    server = bare_broker([REFUSE_3, ACCEPT_3])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    link = Link(BrokerUrl.parse(server.url), "pi", inbox, LinkOptions(reconnect_s=(30.0, 30.0)))
    with pytest.raises(BrokerRefused):
        link.connect(60.0)
    link.connect(60.0)
    assert inbox.get(timeout=120) == Connected(first=True)
    link.close()


def test_a_password_that_becomes_wrong_does_not_make_it_spin(bare_broker: Bare) -> None:
    server = bare_broker([ACCEPT_3, REFUSE_3])
    link = Link(
        BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), LinkOptions(reconnect_s=(0.2, 30.0), seed=1)
    )
    link.connect(60.0)
    server.hang_up()
    time.sleep(2.0)
    assert server.connections <= 6  # waits of 0.1 to 0.2 s, doubling: 0.2 + 0.4 + 0.8 + 1.6
    assert server.wait_for(lambda: server.connections >= 3)
    link.close()


def test_a_full_queue_is_told_and_nothing_blocks(bare_broker: Bare) -> None:
    server = bare_broker([ACCEPT_3])
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), LinkOptions(queue_limit=3))
    link.connect(60.0)
    answers = [link.publish("t", b"x") for _ in range(200)]
    link.close()
    assert answers[:3] == [True] * 3
    assert answers[-1] is False


def test_messages_that_wait_are_bounded_in_bytes_too(bare_broker: Bare) -> None:
    server = bare_broker([ACCEPT_3])
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), LinkOptions(queue_bytes=100_000))
    link.connect(2.0)
    answers = [link.publish("t", bytes(30_000)) for _ in range(10)]  # none is ever acknowledged
    assert answers == [True] * 3 + [False] * 7
    assert link.waiting_bytes() == 90_000
    assert link.publish("t", bytes(10_000))
    link.close()


@pytest.mark.parametrize("size", [0, 100, 118, 119, 120, 121, 130, 16_370, 16_380, 65_536, 262_144])
@pytest.mark.parametrize("mqtt5", [False, True])
def test_packet_bytes_are_the_bytes_on_the_wire(
    bare_broker: Bare, size: int, mqtt5: bool, eventually: Callable[..., Any]
) -> None:
    server = bare_broker([ACCEPT_5 if mqtt5 else ACCEPT_3])
    url = BrokerUrl.parse(server.url + ("?mqtt=5" if mqtt5 else ""))
    link = Link(url, "pi", queue.SimpleQueue())
    link.connect(60.0)
    link.publish("fl/ü", bytes(size))
    expected = packet_bytes("fl/ü", bytes(size), 1, mqtt5)
    connect = 16 + mqtt5
    assert server.wait_for(lambda: len(server.stream) >= expected)
    eventually(lambda: link.bytes_up - connect >= expected, 60.0)
    time.sleep(0.02)
    assert len(server.stream) == expected == link.bytes_up - connect
    link.close()


def test_a_subscription_that_is_refused_is_an_error(
    bare_broker: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bare_broker([ACCEPT_3 + b"\x90\x03\x00\x01\x80"])
    options = LinkOptions(subscriptions=("secret",))
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), options)
    with pytest.raises(BrokerRefused, match="does not let a client without user name read secret"):
        link.connect(60.0)


def test_a_payload_that_brokers_would_drop_in_silence_is_refused() -> None:
    link = Link(BrokerUrl.parse("mqtt://localhost"), "pi", queue.SimpleQueue())
    with pytest.raises(MessageError, match=r"262145 bytes on t: at most 262144 .*, send a Blob"):
        link.publish("t", bytes(262_145))


def test_a_topic_that_is_no_text_is_dropped_and_the_link_lives(bare_broker: Bare) -> None:
    bad, good = b"\x30\x05\x00\x02\xff\xfex", b"\x30\x05\x00\x02okx"
    server = bare_broker([ACCEPT_3 + bad + good + b"\x90\x03\x00\x01\x01"])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    link = Link(BrokerUrl.parse(server.url), "pi", inbox, LinkOptions(subscriptions=("#",)))
    link.connect(60.0)
    events = [inbox.get(timeout=120), inbox.get(timeout=120)]
    assert Received("ok", b"x") in events
    assert Connected(first=True) in events
    link.close()


def test_a_frozen_broker_is_noticed_and_found_again(mosquitto_house: Any) -> None:
    broker = mosquitto_house.broker()
    options = LinkOptions(subscriptions=("t",), keepalive_s=1, reconnect_s=FAST_S)
    peer = mosquitto_house.peer(broker.url, "pi", options)
    os.kill(broker.pid, signal.SIGSTOP)
    assert peer.expect(Disconnected, timeout_s=120).reason
    peer.link.publish("t", b"meanwhile")
    os.kill(broker.pid, signal.SIGCONT)
    assert peer.expect(Connected, timeout_s=120) == Connected(first=False)
    assert peer.expect(Received) == Received("t", b"meanwhile")


def test_the_will_of_a_frozen_device_fires_on_mosquitto(mosquitto_house: Any) -> None:
    """amqtt never enforces the keep-alive, so there this device would look alive for ever."""
    url = mosquitto_house.broker().url
    witness = mosquitto_house.listener(url, "witness", "fl/v1/d/+/up/state")
    with subprocess.Popen([sys.executable, "-c", _DOOMED, url, "1"], stdout=subprocess.PIPE) as doomed:
        assert doomed.stdout
        assert doomed.stdout.readline() == b"connected\n"
        doomed.send_signal(signal.SIGSTOP)
        assert witness.expect(Received, timeout_s=120).payload == b"gone"
        doomed.kill()


def test_close_while_offline_is_quick(bare_broker: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "FAREWELL_S", 0.2)
    server = bare_broker([ACCEPT_3])
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue())
    link.connect(60.0)
    link.publish("t", b"never acknowledged")
    start = time.monotonic()
    link.close(Will("state", b"goodbye"))
    assert time.monotonic() - start < 2


def test_two_of_one_name_throw_each_other_out_and_are_told_what_it_looks_like(mosquitto_house: Any) -> None:
    url = mosquitto_house.broker().url
    rivals = [mosquitto_house.peer(url, "pi") for _ in range(2)]
    reasons = [rivals[0].expect(Disconnected).reason for _ in range(2)]
    assert reasons[0] == "connection lost"
    assert reasons[1] == "connection lost, again after a short time: is another client called 'pi'?"


def test_what_is_said_in_few_bytes_is_not_acknowledged_and_not_kept_while_the_broker_is_away(
    bare_broker: Bare,
) -> None:
    server = bare_broker([ACCEPT_3])
    link = Link(BrokerUrl.parse(server.url), "pi", queue.SimpleQueue(), LinkOptions(reconnect_s=(30.0, 30.0)))
    link.connect(60.0)
    topic, payload = "fl/v1/d/pi/up/c", b"\x04\x02\x01"
    sent = packet_bytes(topic, payload)
    assert link.publish(topic, payload)
    assert server.wait_for(lambda: len(server.stream) == sent)
    assert server.stream[0] == 0x30  # PUBLISH, QoS 0
    assert link.unacknowledged() == 0
    server.hang_up()
    assert server.wait_for(lambda: not link.connected)
    before = link.bytes_up
    assert link.publish(topic, payload)
    assert (link.unacknowledged(), link.bytes_up) == (0, before)
    link.close()


def test_where_no_thread_can_be_started_that_is_what_is_raised_and_the_link_can_be_closed(
    monkeypatch: Any,
) -> None:
    def none(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    link = Link(BrokerUrl.parse("mqtt://127.0.0.1:1"), "pi", lambda _: None)
    monkeypatch.setattr(threading.Thread, "start", none)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            link.connect()
    link.close()
