"""What tests of the agent share: an aggregator in place of the link, and a device on a stage."""

import threading

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of, block_count
from device_runtime.broker.wire.link import Connected, Received
from device_runtime.broker.wire.messages import (
    Base,
    Contribution,
    Get,
    Hello,
    Offer,
    Plan,
    Receipt,
    decode,
    encode,
)
from device_runtime.broker.wire.topics import parse
from device_runtime.device.agent.agent import Agent
from device_runtime.device.agent.runner import in_this_process
from device_runtime.device.training.settings import Settings
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import manifest as manifests
from device_runtime.models.bundles import tensors
from device_runtime.profiles import Speed
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans

ROUND_S = 60.0


class ScriptedLink:
    """An aggregator in place of the link: answers hellos with `offer`, gets with blocks, keeps the rest."""

    url = "scripted"

    def __init__(self, agent, contents):
        self.agent, self.contents = agent, contents
        self.offer = None
        self.receipts = True
        self.sent = []
        self.waiting = []  # topics of what the broker has not acknowledged

    def unacknowledged(self, topic=""):
        return sum(topic in ("", expected) for expected in self.waiting)

    def publish(self, topic, payload, retain=False):
        leaf = parse(topic).leaf
        types = {"hello": Hello, "contribution": Contribution, "plan": Plan, "get": Get}
        if leaf in types:
            message = decode(payload, types[leaf])
            self.sent.append(message)
            self._answer(message)
        return True

    def _answer(self, message):
        if isinstance(message, Hello) and self.offer is not None:
            self.tell("task", encode(self.offer))
        elif isinstance(message, Get):
            for index in message.blocks:
                data = self.contents[message.blob.sha][index * BLOCK : (index + 1) * BLOCK]
                self.tell(topics.block(message.blob.sha, index), data)
        elif isinstance(message, Contribution) and self.receipts:
            self.receipt(message)

    def tell(self, leaf, payload):
        self.agent.inbox.put(Received(topics.down("a", leaf), payload))

    def announce(self, offer, retain=False, unasked=True):
        """The offer to all, with the base model unasked, as after every round that changed it."""
        self.offer = offer
        self.agent.inbox.put(Received(topics.offer(offer.task), encode(offer), retain))
        if not unasked:
            return
        (blob,) = offer.base.checkpoint
        for index in range(block_count(blob)):
            data = self.contents[blob.sha][index * BLOCK : (index + 1) * BLOCK]
            self.tell(topics.block(blob.sha, index), data)

    def receipt(self, message, status="accepted"):
        receipt = Receipt(boot=message.boot, seq=message.seq, round=message.round, status=status)
        self.tell("receipt", encode(receipt))

    def of(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]


class Stage:
    """A device with its folder, the aggregator that it hears, and as many ticks as a test asks for."""

    def __init__(self, bundle, folder, clock):
        self.bundle, self.folder, self.clock = bundle, folder, clock
        self.contents = {}
        self.make_backend = in_this_process
        self.start()

    def start(self, boot=1, task=""):
        """A (new) life of the process."""
        settings = Settings("a", self.folder / "a.npz", self.folder, task=task)
        self.agent = Agent(settings, boot, self.clock, self.make_backend)
        self.link = self.wire(self.agent)
        self.agent.inbox.put(Connected(first=True))
        return self

    def offer(self, number=1, bundle=None, **changes):
        bundle = bundle or self.bundle
        packed, weights = bundle.packed(), tensors.encode(bundle.weights())
        self.contents |= {blob_of(packed).sha: packed, blob_of(weights).sha: weights}
        usual = {
            "task": "t", "run": "r", "round": number, "seed": 5, "deadline_s": ROUND_S,
            "remaining_s": ROUND_S, "bundle": blob_of(packed),
            "base": Base(checkpoint=(blob_of(weights),), sha=blob_of(weights).sha),
            "kinds": (registry.write(ClassMeans()),),
        }  # fmt: skip
        return Offer(**{**usual, **changes})

    def go(self, ticks=12):
        """Until so many looks have found nothing to do."""
        stop = threading.Event()
        take = self.agent.inbox.next
        idle = iter(range(ticks))

        def next_event(_timeout):
            event = take(0.0)
            if event is None and next(idle, None) is None:
                stop.set()
            return event

        self.agent.inbox.next = next_event
        self.agent.run(self.link, stop)
        self.agent.inbox.next = take
        return self

    def wire(self, agent):
        """Another link to the same aggregator."""
        return ScriptedLink(agent, self.contents)

    @property
    def contributions(self):
        return self.link.of(Contribution)


@pytest.fixture
def stage(bundle, tmp_path, clock, monkeypatch):
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(tmp_path / "a.npz", x=digits.images[:40].astype(np.uint8), y=digits.target[:40])
    monkeypatch.setattr(
        "device_runtime.device.training.local_task.device_speed", lambda *_: Speed(1e9, source="set")
    )
    return Stage(bundle, tmp_path, clock)


@pytest.fixture
def another(bundle, tmp_path):
    """The same network under another name: another hash, another task."""
    manifest = msgspec.structs.replace(bundle.manifest, name="another")
    graphs = {name: bundle.graph(name) for name in manifest.graphs}
    manifest = manifests.decode(manifests.encode(manifest))
    return bundles.write(tmp_path / "another", manifest, bundle.weights(), graphs)
