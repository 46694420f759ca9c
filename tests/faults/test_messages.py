"""What the wire does to messages and blocks: lost, doubled, out of order, damaged, cut. Only time is lost."""

import random
from collections import Counter

import msgspec
import pytest

from device_runtime.broker.wire import messages
from device_runtime.broker.wire.messages import Contribution


def the_first(number, what):
    """A rule for the first so many blocks of each direction; others pass."""
    counts = Counter()

    def rule(up, topic, payload):
        if "/block/" not in topic or counts[up] >= number or not payload:
            return None
        counts[up] += 1
        return what(topic, payload)

    rule.counts = counts
    return rule


def damaged(topic, payload):
    return [(topic, bytes((payload[0] ^ 1,)) + payload[1:])]


def reordered():
    """Each block waits until the one after it has gone."""
    waiting = []

    def rule(_up, topic, payload):
        if "/block/" not in topic:
            return None
        waiting.append((topic, payload))
        if len(waiting) < 2:
            return []
        now, waiting[:] = waiting[::-1], []
        return now

    return rule


BLOCKS = {
    "lost": the_first(2, lambda topic, payload: []),
    "doubled": the_first(99, lambda topic, payload: [(topic, payload)] * 2),
    "damaged": the_first(1, damaged),
    "cut": the_first(3, lambda topic, payload: [(topic, payload[:-7])]),
    "empty": the_first(2, lambda topic, payload: [(topic, b"")]),
    "under another number": the_first(2, lambda topic, payload: [(topic.rsplit("/", 1)[0] + "/77", payload)]),
    "under another hash": the_first(
        2,
        lambda topic, payload: [("/".join([*topic.split("/")[:6], "0" * 64, topic.split("/")[7]]), payload)],
    ),
}


USUAL = ("lost",)


@pytest.mark.parametrize(
    "fault", [f if f in USUAL else pytest.param(f, marks=pytest.mark.slow) for f in BLOCKS]
)
def test_blocks_in_both_directions(site, eventually, fault):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.rule = BLOCKS[fault]
    proxy.rule.counts.clear()
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.finished, 300)
    assert proxy.rule.counts[True] > 0
    assert proxy.rule.counts[False] > 0
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_blocks_out_of_order(site, eventually):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.rule = reordered()
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.finished, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


OFTEN = [pytest.param(leaf, marks=pytest.mark.slow) for leaf in ("hello", "task", "plan", "get")]


@pytest.mark.slow
@pytest.mark.parametrize("leaf", ["contribution", "receipt", *OFTEN])
def test_every_message_may_come_twice(site, eventually, leaf):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.rule = lambda up, topic, payload: [(topic, payload)] * 2 if topic.endswith(f"/{leaf}") else None
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.finished, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}
    assert device.waiting == 0


@pytest.mark.slow
@pytest.mark.parametrize("leaf", ["contribution", "receipt", "get"])
def test_a_message_that_is_lost_is_said_again(site, eventually, leaf):
    """A contribution without receipt goes again after ten seconds of silence."""
    broker = site.broker()
    proxy, topics = site.proxy(broker.url), []

    def once(_up, topic, payload):
        if topic.endswith(f"/{leaf}") and len(topics) < 2:
            topics.append(topic)
            return []
        return None

    proxy.rule = once
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert len(topics) == 2
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_wire_that_does_everything_at_random(site, eventually, seed):
    """One message in ten is lost, doubled or damaged, and with one in a hundred the connection."""
    broker, draw = site.broker(), random.Random(seed)
    proxy = site.proxy(broker.url)

    def rule(_up, topic, payload):
        fate = draw.random()
        if fate < 0.01:
            proxy.cut()
        if fate < 0.04:
            return []
        if fate < 0.07:
            return [(topic, payload)] * 2
        if fate < 0.10 and payload:
            at = draw.randrange(len(payload))
            return [
                (topic, payload[:at] + bytes((payload[at] ^ 1 << draw.randrange(8),)) + payload[at + 1 :])
            ]
        return None

    proxy.rule = rule
    aggregator = site.aggregator(broker.url, "full", rounds=4, min_devices=2, round_deadline_s=12.0)
    devices = [site.device(name, proxy.url) for name in ("a", "b")]
    assert eventually(lambda: aggregator.finished, 180)
    site.audit(aggregator, *devices, rounds=4)


@pytest.mark.slow
def test_what_is_not_the_blob_that_was_named_is_refused_and_the_device_goes_on(site, eventually):
    """Wrong hash: the content that comes twice is not what the message named."""
    broker = site.broker()
    proxy = site.proxy(broker.url)

    def lying(up, topic, payload):
        if up and "/block/" in topic and topic.endswith("/0"):
            return damaged(topic, payload)
        return None

    proxy.rule = lying
    aggregator = site.aggregator(broker.url, "full", rounds=1, min_devices=2, min_contributions=1)
    liar, honest = site.device("liar", proxy.url), site.device("honest", broker.url)
    assert eventually(lambda: liar.receipts and aggregator.finished, 300)
    assert liar.receipts[0].status == "refused"
    assert "has another hash" in liar.receipts[0].reason
    assert site.audit(aggregator, liar, honest, rounds=1) == {(1, "honest")}


@pytest.mark.slow
def test_a_contribution_changed_on_its_way_is_refused_or_not_read_and_counts_nowhere(site, eventually):
    broker = site.broker()
    proxy, sent = site.proxy(broker.url), []

    def cut(up, topic, payload):
        if up and topic.endswith("/contribution") and not sent:
            sent.append(messages.decode(payload, Contribution))
            body = sent[0].body
            bad = messages.encode(msgspec.structs.replace(sent[0], body=body[: len(body) // 2]))
            return [(topic, payload[:-3]), (topic, bad)]
        return None

    proxy.rule = cut
    aggregator = site.aggregator(broker.url, "few-shot", rounds=1, min_devices=2, min_contributions=1)
    first, other = site.device("one", proxy.url), site.device("other", broker.url)
    assert eventually(lambda: first.receipts and aggregator.finished, 300)
    assert [receipt.status for receipt in first.receipts] == ["refused"]
    assert site.audit(aggregator, first, other, rounds=1) == {(1, "other")}
