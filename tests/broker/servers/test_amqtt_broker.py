"""amqtt in this process: for this machine, and nothing else."""

import asyncio
import queue
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from device_runtime.broker.errors import BrokerError, BrokerStartError
from device_runtime.broker.servers import amqtt_broker as embedded
from device_runtime.broker.servers.amqtt_broker import AmqttBroker
from device_runtime.broker.servers.server import BrokerOptions, WebSockets
from device_runtime.broker.wire.link import Event, Link, LinkOptions
from device_runtime.broker.wire.url import TLS, BrokerUrl


def test_it_starts_and_ends_with_its_thread() -> None:
    before = set(threading.enumerate())
    broker = AmqttBroker()
    assert broker.name.startswith("amqtt ")
    assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
    assert broker.alive
    broker.stop()
    broker.stop()
    assert not broker.alive
    assert set(threading.enumerate()) <= before  # one of an earlier test may have ended


def test_other_machines_are_refused_with_the_reason() -> None:
    tls = TLS(cert=Path("cert.pem"), key=Path("key.pem"))
    with pytest.raises(BrokerStartError, match=r"amqtt on 192\.168\.1\.5 is refused: it has no access list"):
        AmqttBroker(BrokerOptions(host="192.168.1.5", users={"pi": "x"}, tls=tls))


def test_what_it_cannot_do_is_refused_rather_than_ignored() -> None:
    with pytest.raises(BrokerStartError, match="without TLS and persistence"):
        AmqttBroker(BrokerOptions(persistence=True))


def test_a_taken_port_is_said() -> None:
    broker = AmqttBroker()
    with pytest.raises(BrokerStartError, match=r"address already in use"):
        AmqttBroker(BrokerOptions(port=broker.port))
    broker.stop()


def test_a_fleet_that_connects_at_one_instant_gets_in() -> None:
    """Each brings a subscription of its own, while what was retained is still being told to others."""
    broker = AmqttBroker()
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def linked(name: str, *topics: str) -> Link:
        return Link(BrokerUrl.parse(broker.url), name, inbox, LinkOptions(subscriptions=topics))

    aggregator = linked("aggregator", "fl/v1/d/+/up/#")
    aggregator.connect()
    for number in range(30):
        aggregator.publish(f"fl/v1/d/{number}/up/state", b"here", retain=True)
    links = [linked(f"device-{number}", f"fl/v1/d/{number}/dn/#") for number in range(30)]
    failures: list[str] = []

    def join(link: Link) -> None:
        try:
            link.connect()
        except BrokerError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=join, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for link in (aggregator, *links):
        link.close()
    broker.stop()
    assert not failures


def test_one_that_does_not_end_in_time_lets_go_of_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, where its clients keep it waiting."""

    async def never(_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(embedded, "STOP_S", 0.1)
    monkeypatch.setattr(embedded.BoundedBroker, "shutdown", never)
    first = AmqttBroker(BrokerOptions(web=WebSockets()))
    ports = urlsplit(first.url).port, urlsplit(first.web_url).port
    first.stop()
    assert not first.alive
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
