"""A service, devices and a broker, all real, with a proxy between that does to the wire what wires do."""

import os
import queue
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest

from device_runtime.aggregator.machine.ports import Ports
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
from device_runtime.device.agent.agent import Agent
from device_runtime.device.training.local_task import Settings
from device_runtime.profiles import Speed
from tests.network import Proxy

FAST_S = (0.05, 0.4)
needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
KINDS = {
    "full": KindSettings(name="full", settings={"epochs": 1}),
    "few-shot": KindSettings(name="few-shot", settings={"epochs": 2}),
}


class Aggregator:
    """A service in a thread of its own, on a real link. `events` is what it told; `blocks`: how many came."""

    def __init__(self, task, folder, url, keepalive_s=30):
        self.task, self.folder, self.url = task, folder, url
        self.events, self.blocks, self.senders, self.failure = [], 0, set(), None
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
            ports = Ports(self.link, self.inbox, (self.events.append,))
            with closing(Service(self.task, self.folder, ports)) as self.service:
                self.link.connect()
                self._ready.set()
                self.service.run(self._stop)
        except BaseException as error:
            self.failure = error
            self._ready.set()

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
        pass_on = self.agent.inbox.put

        def put(item, block=True, timeout=None):
            if isinstance(item, Received) and item.topic.endswith("/dn/receipt"):
                self.receipts.append(messages.decode(item.payload, Receipt))
            pass_on(item, block, timeout)

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
        indices = np.random.default_rng(list(name.encode())).choice(1797, 30, replace=False)
        (self.folder / "data").mkdir(exist_ok=True)
        return self.digits_in(self.folder / "data" / f"{name}.npz", indices)

    def audit(self, aggregator, *devices, rounds=2):
        """Nothing acknowledged is lost, nothing counts twice, every round has its record."""
        aggregator.stop()
        store = Store(aggregator.folder)
        try:
            contributions = [entry for n in range(1, rounds + 1) for entry in store.contributions.of_round(n)]
            closed = store.rounds.closed()
        finally:
            store.close()
        counted = Counter((entry.round, entry.device, entry.kind) for entry in contributions)
        assert set(counted.values()) <= {1}
        stored = {(number, device) for number, device, _ in counted}
        for device in devices:
            receipts = {
                (r.round, device.name) for r in device.receipts if r.status in ("accepted", "duplicate")
            }
            assert receipts <= stored, f"{device.name} was told of {receipts - stored}, which is not stored"
            assert device.failure is None
        assert aggregator.failure is None
        assert [change.record.round for change in closed] == list(range(1, rounds + 1))
        for end in closed:
            assert end.record.participants == sum(stored.into == end.record.round for stored in contributions)
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
        "device_runtime.device.training.local_task.device_speed", lambda *_: Speed(1e12, source="set")
    )


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"])
def site(request, tmp_path, digits_in):
    """On both brokers, one after the other."""
    new_site = Site(request.param, tmp_path, digits_in)
    yield new_site
    new_site.close()


@pytest.fixture
def mosquitto_site(tmp_path, digits_in):
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    new_site = Site("mosquitto", tmp_path, digits_in)
    yield new_site
    new_site.close()


@pytest.fixture
def amqtt_site(tmp_path, digits_in):
    new_site = Site("amqtt", tmp_path, digits_in)
    yield new_site
    new_site.close()
