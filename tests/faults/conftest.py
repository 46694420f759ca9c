"""A service, devices and a broker, all real, with a proxy between that does to the wire what wires do."""

import os
import queue
import secrets
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest

from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import Receipt
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.client.agent import Agent
from device_runtime.client.training.local_task import Settings
from device_runtime.profiles import Speed

FAST_S = (0.05, 0.4)
needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
KINDS = {
    "full": KindSettings(name="full", settings={"epochs": 1}),
    "few-shot": KindSettings(name="few-shot", settings={"epochs": 2}),
}


Rule = Callable[[bool, str, bytes], list[tuple[str, bytes]] | None]
"""(up, topic, payload) of a message -> what goes on in its place: None for itself, [] for nothing."""


class Proxy:
    """Between clients and a broker. Understands MQTT 3.1.1 as far as its messages.

    `rule` says what becomes of each message. One that is lost is acknowledged to its sender, as brokers do
    that drop it; copies go with QoS 0. `bytes_per_s` bounds what goes up, `delay_s` is added each way.
    """

    def __init__(self, url: str) -> None:
        self.rule: Rule | None = None
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.closed = False
        self.connections = 0
        self._target = BrokerUrl.parse(url).port
        self._pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._server = socket.socket()
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # a slow link holds little
        self._server.bind(("127.0.0.1", 0))
        self._server.listen(600)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"

    def freeze(self):
        """From now on nothing passes through the connections that there are, and nobody is told."""
        for _, _, frozen in self._pairs:
            frozen.set()

    def cut(self):
        """End the connections that there are, as a reset does."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair[:2]:
                with suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def close(self):
        self.closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # or its thread would wait for ever
        self._server.close()
        self.cut()

    def _accept(self):
        while not self.closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            try:
                broker = socket.create_connection(("127.0.0.1", self._target), timeout=120)
            except OSError:
                client.close()
                continue
            for one in (client, broker):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, broker, threading.Event())
            self._pairs.append(pair)
            for up in (True, False):
                threading.Thread(target=self._pump, args=(pair, up), daemon=True).start()

    def _pump(self, pair, up):
        here, there, frozen = pair if up else (pair[1], pair[0], pair[2])
        have = b""
        try:
            while data := here.recv(8192 if self.bytes_per_s else 65536):
                while frozen.is_set():
                    if self.closed:
                        return
                    time.sleep(0.05)
                packets, have = _split(have + data)
                if self.delay_s:
                    time.sleep(self.delay_s)
                for first, body in packets:
                    for packet in self._changed(up, first, body, here):
                        self._send(there, packet, self.bytes_per_s if up else None)
        except OSError:
            pass
        finally:
            if not frozen.is_set():  # whoever is frozen hears nothing, not even of the end
                for one in pair[:2]:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _send(there, packet, bytes_per_s):
        if bytes_per_s is None:
            there.sendall(packet)
            return
        piece = max(1, int(bytes_per_s / 20))
        for start in range(0, len(packet), piece):
            there.sendall(packet[start : start + piece])
            time.sleep(len(packet[start : start + piece]) / bytes_per_s)

    def _changed(self, up, first, body, here):
        if first & 0xF0 != 0x30 or self.rule is None:
            return [_packet(first, body)]
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        mid, payload = (rest[:2], rest[2:]) if first & 0x06 else (b"", rest)
        instead = self.rule(up, topic, payload)
        if instead is None:
            return [_packet(first, body)]
        if not instead and mid:
            here.sendall(b"\x40\x02" + mid)
        return [
            _packet(first, _text(topic) + mid + payload)
            if number == 0
            else _packet(0x30, _text(topic) + payload)
            for number, (topic, payload) in enumerate(instead)
        ]


def _text(value):
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def _packet(first, body):
    length, size = bytearray(), len(body)
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (0x80 if size else 0))
        if not size:
            return bytes((first,)) + bytes(length) + body


def _split(data):
    """Whole packets as (first byte, body), and the bytes that are left."""
    packets, start = [], 0
    while True:
        size, shift, at = 0, 0, start + 1
        while at < len(data):
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                break
        else:
            return packets, data[start:]
        if len(data) - at < size:
            return packets, data[start:]
        packets.append((data[start], data[at : at + size]))
        start = at + size


class Aggregator:
    """A service in a thread of its own, on a real link. `told` is what it told; `blocks`: how many came."""

    def __init__(self, task, folder, url, keepalive_s=30):
        self.task, self.folder, self.url = task, folder, url
        self.told, self.blocks, self.senders, self.failure = [], 0, set(), None
        self.inbox = _Counting(self)
        options = LinkOptions(
            subscriptions=(topics.FROM_DEVICES,),
            keepalive_s=keepalive_s,
            reconnect_s=FAST_S,
            queue_limit=65_536,
        )
        self.link = Link(BrokerUrl.parse(url), f"aggregator-{secrets.token_hex(3)}", self.inbox, options)
        self.service, self._ready, self._stop = None, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self.thread.start()
        assert self._ready.wait(600)
        return self

    def _run(self):
        """The database is of the thread that opened it."""
        try:
            ports = Ports(self.link, self.inbox, (self.told.append,))
            with closing(Service(self.task, self.folder, ports)) as self.service:
                self.link.connect()
                self._ready.set()
                self.service.run(self._stop)
        except BaseException as error:
            self.failure = error
            self._ready.set()

    def heard(self, kind):
        return [one for one in list(self.told) if isinstance(one, kind)]

    @property
    def finished(self):
        if self.failure:
            raise AssertionError("the aggregator has ended") from self.failure
        return self.service.state.phase == "done"

    def stop(self):
        self._stop.set()
        self.thread.join(120)
        self.link.close()


class _Counting(queue.SimpleQueue):
    def __init__(self, aggregator):
        self.aggregator = aggregator

    def put(self, item, block=True, timeout=None):
        if isinstance(item, Received) and "/up/block/" in item.topic:
            self.aggregator.blocks += 1
            self.aggregator.senders.add(item.topic.split("/")[3])
        super().put(item, block, timeout)


class Device:
    """A real agent in a thread of its own, on a real link. `receipts` are those that reached it."""

    def __init__(self, name, url, folder, data, keepalive_s=30):
        self.name, self.receipts, self.failure = name, [], None
        settings = Settings(name, data, folder / name)
        self.agent = Agent(settings, secrets.randbits(32), time.monotonic)
        taken = self.agent.inbox.put

        def put(item, block=True, timeout=None):
            if isinstance(item, Received) and item.topic.endswith("/dn/receipt"):
                self.receipts.append(messages.decode(item.payload, Receipt))
            taken(item, block, timeout)

        self.agent.inbox.put = put
        agent = self.agent
        options = LinkOptions(
            agent.will(),
            agent.subscriptions(),
            keepalive_s=keepalive_s,
            reconnect_s=FAST_S,
            greeting=agent.greeting(),
        )
        self.link = Link(BrokerUrl.parse(url), name, agent.inbox, options)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self.link.connect()
        self.thread.start()
        return self

    def _run(self):
        try:
            self.agent.run(self.link, self._stop)
        except BaseException as error:
            self.failure = error

    @property
    def waiting(self):
        """What is in its outbox still."""
        return len(self.agent.runner.outbox)

    def stop(self):
        self._stop.set()
        self.agent.inbox.wake()
        self.thread.join(120)
        self.link.close(self.agent.farewell())


@dataclass
class Site:
    """Starts brokers of one kind, services, devices and proxies; all end with the test."""

    kind: str
    folder: object
    digits_in: Callable
    parts: list = field(default_factory=list)

    def broker(self, **options):
        running = brokers.start(self.kind, BrokerOptions(**options))
        self.parts.append(running)
        return running

    def again(self, broker, **options):
        """The same broker, as it would be started after it has ended."""
        port, end = BrokerUrl.parse(broker.url).port, time.monotonic() + 120
        while True:
            try:
                return self.broker(**{"port": port, **options})
            except BrokerStartError:  # what ended lets go of its port a little later
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def proxy(self, url):
        self.parts.append(Proxy(url))
        return self.parts[-1]

    def aggregator(self, url, *kinds, keepalive_s=30, **settings):
        chosen = {"kinds": tuple(KINDS[kind] for kind in kinds)} if kinds else {}
        usual = {"bundle": "digits-wrn-10-1", "rounds": 2, "round_deadline_s": 60.0}
        task = Task(**{**usual, **chosen, **settings})
        self.parts.append(Aggregator(task, self.folder / "run", url, keepalive_s))
        return self.parts[-1].start()

    def device(self, name, url, keepalive_s=30):
        self.parts.append(Device(name, url, self.folder / "devices", self.data(name), keepalive_s))
        return self.parts[-1].start()

    def data(self, name):
        mine = np.random.default_rng(list(name.encode())).choice(1797, 30, replace=False)
        (self.folder / "data").mkdir(exist_ok=True)
        return self.digits_in(self.folder / "data" / f"{name}.npz", mine)

    def audit(self, aggregator, *devices, rounds=2):
        """Nothing acknowledged is lost, nothing counts twice, every round has its record."""
        aggregator.stop()
        store = Store(aggregator.folder)
        try:
            kept = [one for n in range(1, rounds + 1) for one in store.contributions.of_round(n)]
            closed = store.rounds.closed()
        finally:
            store.close()
        counted = Counter((one.round, one.device, one.kind) for one in kept)
        assert set(counted.values()) <= {1}
        stored = {(number, device) for number, device, _ in counted}
        for device in devices:
            told = {(r.round, device.name) for r in device.receipts if r.status in ("accepted", "duplicate")}
            assert told <= stored, f"{device.name} was told of {told - stored}, which is not stored"
            assert device.failure is None
        assert aggregator.failure is None
        assert [one.record.round for one in closed] == list(range(1, rounds + 1))
        for one in closed:
            assert one.record.participants == sum(stored.into == one.record.round for stored in kept)
        return stored

    def close(self):
        for part in reversed(self.parts):
            if isinstance(part, Mosquitto) and part.alive:
                with suppress(ProcessLookupError):
                    os.kill(part.pid, signal.SIGCONT)
            part.close() if isinstance(part, Proxy) else part.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Devices need not measure how fast they are."""
    monkeypatch.setattr(
        "device_runtime.client.training.local_task.measured", lambda *_: Speed(1e12, source="set")
    )


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"])
def site(request, tmp_path, digits_in):
    """On both brokers, one after the other."""
    made = Site(request.param, tmp_path, digits_in)
    yield made
    made.close()


@pytest.fixture
def mosquitto_site(tmp_path, digits_in):
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    made = Site("mosquitto", tmp_path, digits_in)
    yield made
    made.close()


@pytest.fixture
def amqtt_site(tmp_path, digits_in):
    made = Site("amqtt", tmp_path, digits_in)
    yield made
    made.close()
