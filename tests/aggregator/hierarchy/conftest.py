"""Two levels in memory: an aggregator, an edge on its folder, and devices that are spoken for."""

import queue
from dataclasses import dataclass, field

import pytest

from device_runtime.aggregator.hierarchy.site_host import SiteRules
from device_runtime.aggregator.hierarchy.site_task import SiteProcess
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import Blobs, block_count
from device_runtime.broker.wire.link_events import Connected, Received
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
from device_runtime.device.policy.rules import ANYTHING, AllowList
from device_runtime.device.training.local_task import Settings
from device_runtime.models.bundles import tensors

BUNDLE = "digits-wrn-10-1"
METRICS = Metrics(train_loss=0.5, train_time_ms=1500, energy_mj=2000, peak_memory_kib=1024)


class Below:
    """The site's link: keeps what is published, and lets devices answer for themselves."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self.sent = []
        self.retained = {}

    def publish(self, topic, payload, retain=False):
        self.sent.append((topic, payload))
        if retain:
            self.retained[topic] = payload
        return True


class Above:
    """The edge's link upwards: `up` is whether it reaches the aggregator."""

    url = "above"

    def __init__(self, levels):
        self.levels = levels
        self.up = True

    def publish(self, topic, payload, retain=False):
        if self.up:
            self.levels.heard_above.append((topic, payload))
            self.levels.service.handle(Received(topic, payload, retain))
        return True

    def unacknowledged(self, topic=""):
        return 0


@dataclass
class Levels:
    """`service` above and `edge` below it, called "site", on one clock that stands still."""

    task: Task
    folder: object
    rules: SiteRules = field(default_factory=SiteRules)
    allowed: AllowList = ANYTHING
    now: float = 100.0
    lives: int = 0
    told: list = field(default_factory=list)
    heard_above: list = field(default_factory=list)

    def __post_init__(self):
        self.above = None
        ports = Ports(self, queue.SimpleQueue(), (self.told.append,), clock=self.clock)
        self.service = Service(self.task, self.folder / "above", ports)
        self.service.start()
        self.blobs = Blobs(self.folder / "devices")
        self.start()

    def clock(self):
        return self.now

    def publish(self, topic, payload, retain=False):
        """What the aggregator above says."""
        if (
            self.above
            and self.above.up
            and (topics.is_offer(topic) or topic.startswith(topics.down("site", "")))
        ):
            self.edge.agent.inbox.put(Received(topic, payload))
        return True

    def start(self):
        """A (new) life of the edge, on the folder of the ones before."""
        self.lives += 1
        self.below = Below()
        self.above = Above(self)
        state = self.folder / "site"
        state.mkdir(exist_ok=True)
        ports = Ports(self.below, self.below.inbox, clock=self.clock)
        settings = Settings("site", state, state, allowed=self.allowed)
        self.edge = SiteProcess(settings, self.lives, self.rules, ports)
        self.edge.agent.begin(self.above)
        self.edge.agent.inbox.put(Connected(first=True))

    def kill(self):
        """As kill -9: nothing is said, only the folder stays."""
        self.edge.close()
        self.start()

    def go(self, steps=12):
        """Both levels work until nothing more comes of it."""
        for _ in range(steps):
            self.edge.step(0.001)
            self.service.tick()
        return self

    def wait(self, seconds):
        self.now += seconds
        return self.go()

    def say(self, device, leaf, message):
        self.below.inbox.put(Received(topics.up(device, leaf), messages.encode(message)))

    def join(self, *devices, samples=100):
        self.announce(*devices, samples=samples)
        return self.go()

    def announce(self, *devices, samples=100):
        """They say that they are here, and ready."""
        for device in devices:
            self.say(device, "state", State(boot=1, online=True))
            hello = Hello(boot=1, num_examples=samples, profile="pi", memory_bytes=2**29, engine="onnx")
            self.say(device, "hello", hello)

    def leave(self, device):
        self.say(device, "state", State(boot=1, online=False, leaving=True))
        return self.go()

    def sit_out(self, device):
        offer = self.offer
        plan = Plan(
            task=offer.task, round=offer.round, kind="", seconds=0, memory_bytes=0, energy_j=0,
            reasons=("full needs 9.0 s of 2.0 s (compute)",),
        )  # fmt: skip
        self.say(device, "plan", plan)
        return self.go()

    def contribute(self, device, kind, update, num_examples, **changes):
        """Of a device of the site, to the open round; returns its receipt, None where none came."""
        offer, body = self.offer, tensors.encode(update)
        where = {"body": body} if len(body) <= INLINE_LIMIT else {"blob": self.blobs.put(body)}
        fields = {
            "task": offer.task, "run": offer.run, "round": offer.round, "boot": 1, "seq": 7, "kind": kind,
            "num_examples": num_examples, "metrics": METRICS,
        }  # fmt: skip
        before = len(self.receipts(device))
        self.say(device, "contribution", Contribution(**{**fields, **where, **changes}))
        for _ in range(4):
            count = len(self.below.sent)
            self.edge.site_host.step(0.001)
            for topic, payload in self.below.sent[count:]:
                if topic == topics.down(device, "get"):
                    get = messages.decode(payload, Get)
                    for index, data in answer_get(self.blobs, get):
                        block = topics.up(device, topics.block(get.blob.sha, index))
                        self.below.inbox.put(Received(block, data))
        receipts = self.receipts(device)[before:]
        return receipts[0] if receipts else None

    def contribute_above(self, device, kind, update, num_examples):
        """Of a device of the aggregator above, to its open round."""
        blob = self.blobs.put(tensors.encode(update))
        message = Contribution(
            task=self.task.name, run=self.service.run_id, round=self.service.state.round, boot=1, seq=7,
            kind=kind, num_examples=num_examples, metrics=METRICS, blob=blob,
        )  # fmt: skip
        for leaf, content in (("state", State(boot=1, online=True)), ("contribution", message)):
            self.service.handle(Received(topics.up(device, leaf), messages.encode(content)))
        self.service.tick()  # it asks for the blocks
        for index, data in answer_get(self.blobs, Get(blob=blob, blocks=tuple(range(block_count(blob))))):
            self.service.handle(Received(topics.up(device, topics.block(blob.sha, index)), data))
        self.service.tick()

    def receipts(self, device):
        topic = topics.down(device, "receipt")
        return [messages.decode(p, Receipt) for t, p in self.below.sent if t == topic]

    @property
    def offer(self):
        """The retained one of the site, and what follows from it."""
        [topic] = filter(topics.is_offer, self.below.retained)
        latest = None
        for payload in [p for t, p in self.below.sent if t == topic]:
            if small.is_compact_offer(payload):
                latest = small.full_offer(latest, small.decode_offer(payload))
            else:
                latest = messages.decode(payload, Offer)
        return latest

    @property
    def lengths(self):
        """What went to all devices of the site: the bytes of each."""
        return [len(payload) for topic, payload in self.below.sent if topics.is_offer(topic)]

    @property
    def counted(self):
        """All contributions of the aggregator above: (round, device, kind, num_examples)."""
        store = self.service.rounds.store
        every = [
            contribution
            for n in range(1, self.task.rounds + 1)
            for contribution in store.contributions.of_round(n)
        ]
        return [
            (contribution.round, contribution.device, contribution.kind, contribution.num_examples)
            for contribution in every
        ]

    def said_above(self, leaf, kind):
        topic = topics.up("site", leaf)
        return [messages.decode(p, kind) for t, p in self.heard_above if t == topic]


@pytest.fixture
def levels(tmp_path):
    every = []

    def make(*kinds, rules=None, **settings):
        chosen = tuple(kind if isinstance(kind, KindSettings) else KindSettings(name=kind) for kind in kinds)
        fields = {"bundle": BUNDLE, "rounds": 3, "round_deadline_s": 100.0, "kinds": chosen, **settings}
        folder = tmp_path / f"levels-{len(every)}"
        folder.mkdir()
        every.append(Levels(Task(**fields), folder, rules or SiteRules()))
        return every[-1]

    yield make
    for each in every:
        each.edge.close()
        each.service.close()
