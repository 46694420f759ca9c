"""A service on a bench: no sockets, a clock that the test moves; and devices that play from a script."""

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np
import psutil
import pytest

from device_runtime.aggregator.limits import MOST_DEVICES
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link import Link, LinkOptions, Received, Will
from device_runtime.broker.wire.messages import (
    INLINE_LIMIT,
    Contribution,
    Get,
    Hello,
    Metrics,
    Offer,
    Plan,
    Receipt,
    State,
)
from device_runtime.broker.wire.transfer import answer_get
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.strategies.kinds import registry

BUNDLE = "digits-wrn-10-1"
METRICS = Metrics(train_loss=0.5, train_time_ms=1500, energy_mj=2000, peak_memory_kib=1024)


@pytest.fixture(scope="session")
def bundle():
    return Bundle.open(find_bundle(BUNDLE))


@pytest.fixture(scope="session")
def manifest(bundle):
    return bundle.manifest


@pytest.fixture
def make_task():
    def make(*kinds, **settings):
        chosen = [k if isinstance(k, KindSettings) else KindSettings(name=k) for k in kinds]
        extra = {"kinds": tuple(chosen)} if chosen else {}
        return Task(**{"bundle": BUNDLE, "rounds": 3, "round_deadline_s": 10.0, **settings, **extra})

    return make


@pytest.fixture(scope="session")
def update_of(bundle):
    """A believable update of a kind, of random numbers: (tensors, num_examples)."""

    def update(kind: str, seed: int = 0):
        rng = np.random.default_rng(seed)
        if kind == "class-means":
            counts = rng.integers(1, 9, 10).astype(np.int32)
            return {"sums": rng.normal(size=(10, 64)).astype(np.float32), "counts": counts}, int(counts.sum())
        if kind == "zeroth-order":
            return {"g": rng.normal(size=2).astype(np.float32)}, 10 + seed
        level = {"few-shot": "head", "entropy-subset": "mid", "full": "all"}[kind]
        weights = bundle.weights()
        moved = {
            n: weights[n] + rng.normal(size=weights[n].shape).astype(np.float32) * 0.01
            for n in bundle.manifest.names(level)
        }
        return moved, 10 + seed

    return update


class FakeLink:
    """Keeps what is published."""

    def __init__(self):
        self.sent = []
        self.retained = {}

    def publish(self, topic, payload, retain=False):
        self.sent.append((topic, payload))
        if retain:
            self.retained[topic] = payload
        return True


@dataclass
class Bench:
    """A service that is spoken to directly; `now` is its clock."""

    task: Task
    folder: object
    now: float = 100.0
    told: list = field(default_factory=list)
    given: bool = False
    database: str = ""
    max_devices: int = MOST_DEVICES
    agree: object = None
    devices: object = None

    def __post_init__(self):
        self.link = FakeLink()
        self.blobs = Blobs(self.folder.parent / "device-blobs")
        ports = Ports(
            self.link,
            queue.SimpleQueue(),
            (self.told.append,),
            clock=lambda: self.now,
            max_devices=self.max_devices,
            database=self.database,
            agree=self.agree,
            devices=self.devices,
        )
        self.service = Service(self.task, self.folder, ports, self.given)
        self.service.start()

    @property
    def store(self):
        return self.service.rounds.store

    def restart(self):
        """As after a crash: the folder is all that is left. The old bench is of no use any more."""
        self.service.close()
        self.told.clear()
        self.__post_init__()
        return self

    def raw(self, topic, payload, retain=False):
        self.service.handle(Received(topic, payload, retain))
        self.service.tick()

    def say(self, device, leaf, message):
        self.raw(topics.up(device, leaf), messages.encode(message))

    def join(self, *devices, boot=1, samples=1000):
        for device in devices:
            self.say(device, "state", State(boot=boot, online=True))
            hello = Hello(boot=boot, num_examples=samples, profile="pi", memory_bytes=2**29, engine="onnx")
            self.say(device, "hello", hello)

    def sit_out(self, device, number):
        plan = Plan(
            task=self.task.name,
            round=number,
            kind="",
            seconds=0,
            memory_bytes=0,
            energy_j=0,
            reasons=("nothing fits",),
        )
        self.say(device, "plan", plan)

    def wait(self, seconds):
        self.now += seconds
        self.service.tick()

    def contribution(self, name, update, number=1, **changes):
        content, examples = update
        body = content if isinstance(content, bytes) else tensors.encode(content)
        fields = {
            "task": self.task.name,
            "run": self.service.run_id,
            "round": number,
            "boot": 1,
            "seq": 7,
            "kind": name,
            "num_examples": examples,
            "metrics": METRICS,
            "form": registry.KINDS[name]().variants()[0].variant if name in registry.KINDS else "",
        }
        where = {"body": body} if len(body) <= INLINE_LIMIT else {"blob": self.blobs.put(body)}
        return Contribution(**{**fields, **where, **changes})

    def contribute(self, device, message):
        """Send it, and give every block that is asked for. Returns the receipts that came of it."""
        before = len(self.receipts(device))
        count = len(self.link.sent)
        self.say(device, "contribution", message)
        while True:
            gets = [p for t, p in self.link.sent[count:] if t == topics.down(device, "get")]
            count = len(self.link.sent)
            if not gets:
                return self.receipts(device)[before:]
            for payload in gets:
                get = messages.decode(payload, Get)
                for index, data in answer_get(self.blobs, get):
                    self.raw(topics.up(device, topics.block(get.blob.sha, index)), data)

    def receipts(self, device):
        topic = topics.down(device, "receipt")
        return [messages.decode(p, Receipt) for t, p in self.link.sent if t == topic]

    def weights(self, base):
        """All parts of a base's checkpoint."""
        parts = (tensors.decode(self.store.models.get(part)) for part in base.checkpoint)
        return {name: value for part in parts for name, value in part.items()}

    @property
    def offer(self):
        """What all devices were told last; as the whole offer, where they were told in few bytes."""
        topic, latest = topics.offer(self.task.name), None
        for payload in [payload for where, payload in self.link.sent if where == topic]:
            if small.is_compact_offer(payload):
                latest = small.full_offer(latest, small.decode_offer(payload))
            else:
                latest = messages.decode(payload, Offer)
        return (
            msgspec.structs.replace(latest, base=self.store.rounds.start(latest.round).base)
            if latest.kinds
            else latest
        )

    def heard(self, kind):
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def bench(tmp_path, database):
    benches = []

    def make(task, **settings):
        folder = tmp_path / f"bench-{len(benches)}" / "run"
        benches.append(Bench(task, folder, database=database, **settings))
        return benches[-1]

    yield make
    for each in benches:
        each.service.close()


class Scripted:
    """A device on a real link: sends what its script says for each round, again and again until receipted."""

    def __init__(self, device: str, url: str, script: Callable, folder, task="") -> None:
        """`task`: which it is here for; without one, whichever there is."""
        self.device, self.script, self.task = device, script, task
        self.receipts: list[Receipt] = []
        self.rounds: set[int] = set()
        self.done = False
        self.blobs = Blobs(folder / device)
        self.inbox = queue.SimpleQueue()
        self.pending: dict[int, Contribution] = {}
        self.seq = 0
        self.stop = threading.Event()
        subscriptions = (topics.OFFERS, topics.down(device, "#"))
        will = Will(topics.up(device, "state"), messages.encode(State(boot=1, online=False)))
        self.link = Link(BrokerUrl.parse(url), device, self.inbox, LinkOptions(will, subscriptions))
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self.link.connect()
        self._send("state", State(boot=1, online=True), retain=True)
        self._hello()
        self.thread.start()
        return self

    def _hello(self):
        about = {"boot": 1, "num_examples": 1000, "profile": "pi", "memory_bytes": 2**29, "engine": "onnx"}
        self._send("hello", Hello(task=self.task, **about))

    def leave(self):
        self.stop.set()
        self.thread.join(120)
        self.link.close()

    def _send(self, leaf, message, retain=False):
        self.link.publish(topics.up(self.device, leaf), messages.encode(message), retain)

    def _run(self):
        again = time.monotonic() + 0.4
        while not self.stop.is_set():
            try:
                event = self.inbox.get(timeout=0.05)
                if isinstance(event, Received):
                    self._hear(event.topic.split("/"), event.payload, event.retain)
            except queue.Empty:
                pass
            if time.monotonic() > again:
                again = time.monotonic() + 0.4
                for message in list(self.pending.values()):
                    self._send("contribution", message)

    def _hear(self, parts, payload, retain):
        to_all = parts[2] == "all"
        if (to_all or parts[-1] == "task") and payload:
            offer = messages.offer_in(payload)
            if self.task not in ("", offer.task):
                return
            self.done = self.done or offer.done
            if offer.round == 0:
                if to_all and not retain:
                    self._hello()
            elif not retain and not offer.done and offer.round not in self.rounds:
                self.rounds.add(offer.round)
                self._contribute(offer)
        elif parts[-1] == "get":
            get = messages.decode(payload, Get)
            for index, data in answer_get(self.blobs, get):
                self.link.publish(topics.up(self.device, topics.block(get.blob.sha, index)), data)
        elif parts[-1] == "receipt":
            receipt = messages.decode(payload, Receipt)
            self.receipts.append(receipt)
            self.pending.pop(receipt.seq, None)

    def _contribute(self, offer):
        update = self.script(offer)
        if update is None:
            plan = Plan(
                task=offer.task, round=offer.round, kind="", seconds=0, memory_bytes=0, energy_j=0, reasons=()
            )
            self._send("plan", plan)
            return
        kind, content, examples = update
        self.seq += 1
        body = tensors.encode(content)
        where = {"body": body} if len(body) <= INLINE_LIMIT else {"blob": self.blobs.put(body)}
        message = Contribution(
            task=offer.task,
            run=offer.run,
            round=offer.round,
            boot=1,
            seq=self.seq,
            kind=kind,
            num_examples=examples,
            metrics=METRICS,
            **where,
        )
        self.pending[self.seq] = message
        self._send("contribution", message)


@pytest.fixture
def scripted(tmp_path):
    devices = []

    def make(device, url, script, task=""):
        devices.append(Scripted(device, url, script, tmp_path / "devices", task).start())
        return devices[-1]

    yield make
    for each in devices:
        each.leave()


@pytest.fixture
def serve(program):
    """Start the command as a process of its own, with a pipe that has its words; ended with the test."""
    started = []

    def start(*options):
        words = [program, "serve", *map(str, options)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def is_worker(process):
    """Whether it is one, and alive; the aggregator may have a broker of its own."""
    with suppress(psutil.NoSuchProcess):
        words = process.cmdline()  # none of a zombie
        return any("device_runtime.aggregator.serving.worker_main" in word for word in words)
    return False


@pytest.fixture
def alive():
    """The workers that are alive: of these processes of psutil, or of the children of a service."""

    def of(processes):
        if isinstance(processes, subprocess.Popen):
            processes = psutil.Process(processes.pid).children()
        return [process for process in processes if is_worker(process)]

    return of


@pytest.fixture
def closed_broker():
    """Start a Mosquitto where each of these names proves who it is, and speaks on its own branch alone; gives
    the URL of one of them.
    """
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    started = []

    def start(*names):
        users = dict.fromkeys(("aggregator", *names), "secret")
        running = brokers.start("mosquitto", BrokerOptions(users=users))
        started.append(running)
        return lambda user: running.url.replace("mqtt://", f"mqtt://{user}:secret@")

    yield start
    for running in started:
        running.stop()
