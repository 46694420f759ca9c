"""Links through an HTTP proxy (CONNECT): over TCP, TLS and WebSockets; refused, silent, and none at all."""

import queue

import pytest

from device_runtime.broker.errors import BrokerUnreachable
from device_runtime.broker.wire.certificate import examine_certificate
from device_runtime.broker.wire.link import Event, Link, LinkOptions, Received
from device_runtime.broker.wire.url import BrokerUrl
from tests.network import HttpProxy, Peer


@pytest.fixture
def proxy():
    through = HttpProxy()
    yield through
    through.close()


def linked(url, tls=None, **options):
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    usual = {"reconnect_s": (0.02, 0.2), "steps_s": (5.0, 10.0), "seed": 1}
    return Link(BrokerUrl.parse(url, tls), "pi", inbox, LinkOptions(**{**usual, **options})), inbox


def first_payload(inbox):
    while not isinstance(event := inbox.get(timeout=60), Received):
        pass
    return event.payload


def test_messages_pass_through_a_proxy_that_asks_for_a_password(proxy, broker):
    link, inbox = linked(f"{broker.url}?proxy=http://me:p%2540ss@{proxy.address}", subscriptions=("t",))
    try:
        link.connect(60.0)
        link.publish("t", b"hello")
        assert first_payload(inbox) == b"hello"
        assert link.bytes_up > len("".join(proxy.requests))
    finally:
        link.close()
    to = broker.url.partition("//")[2]
    assert proxy.requests == [
        f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n"
    ]


@pytest.mark.parametrize("web", [False, True])
def test_tls_is_spoken_with_the_broker_behind_it(proxy, tls_broker, web):
    running, trust = tls_broker
    address = running.web_url if web else running.url
    link, _ = linked(f"{address}?proxy={proxy.address}", trust, subscriptions=("fl/v1/d/pi/dn/#",))
    try:
        link.connect(60.0)
    finally:
        link.close()
    url = BrokerUrl.parse(f"{running.url}?proxy={proxy.address}", trust)
    assert examine_certificate(url).protocol.startswith("TLS")
    assert len(proxy.requests) == 2


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("407 Proxy Authentication Required", "the proxy answers '407 Proxy Authentication Required'"),
        ("403 Forbidden", "the proxy answers '403 Forbidden' and makes no connection"),
    ],
)
def test_a_proxy_that_refuses_is_named_with_what_to_check(broker, status, says):
    refusing = HttpProxy(status)
    link, _ = linked(f"{broker.url}?proxy={refusing.address}")
    try:
        with pytest.raises(BrokerUnreachable) as raised:
            link.connect(20.0)
    finally:
        link.close()
        refusing.close()
    assert says in str(raised.value)
    port = broker.url.rpartition(":")[2]
    assert (
        f"check ?proxy={refusing.address}, and that the proxy lets connections to port {port} through"
        in str(raised.value)
    )


def test_what_is_no_proxy_or_says_nothing_is_no_endless_wait(broker):
    peer = Peer(b"SSH-2.0-OpenSSH_9.6\r\n", ends=True)
    link, _ = linked(f"{broker.url}?proxy=127.0.0.1:{peer.port}")
    try:
        with pytest.raises(BrokerUnreachable, match="is no HTTP proxy: it answers 'SSH-2.0-OpenSSH_9.6'"):
            link.connect(20.0)
    finally:
        link.close()
        peer.close()
    silent = Peer(None)
    link, _ = linked(f"{broker.url}?proxy=127.0.0.1:{silent.port}", steps_s=(0.3, 0.3))
    try:
        with pytest.raises(BrokerUnreachable, match="the proxy does not answer"):
            link.connect(20.0)
    finally:
        link.close()
        silent.close()
