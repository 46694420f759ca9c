"""The broker ends, in order or at once, in a round or in a transfer; with what it kept, or nothing."""

import os
import queue
import signal

import pytest

from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.messages import Hello, State
from device_runtime.broker.wire.url import BrokerUrl


def end(broker, number):
    """Stop it in order or as a power cut does."""
    broker.stop() if number == signal.SIGTERM else broker.kill()


WAYS = [
    pytest.param(signal.SIGKILL, False, "transfer"),
    pytest.param(signal.SIGTERM, False, "transfer", marks=pytest.mark.slow),
    pytest.param(signal.SIGKILL, True, "transfer", marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, True, "transfer"),
    pytest.param(signal.SIGKILL, False, "round", marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, True, "round", marks=pytest.mark.slow),
    pytest.param(signal.SIGKILL, True, "round", marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, False, "round", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "persistence", "when"), WAYS)
def test_mosquitto_ends_and_comes_back(mosquitto_site, eventually, number, persistence, when):
    site = mosquitto_site
    options = {"persistence": persistence, "folder": site.folder / "broker"}
    broker = site.broker(**options)
    proxy = site.proxy(broker.url)
    aggregator = site.aggregator(broker.url, "full", min_devices=2)
    slow, fast = site.device("slow", proxy.url), site.device("fast", broker.url)
    if when == "transfer":
        proxy.bytes_per_s = 150_000  # an update has 313 kB
        assert eventually(lambda: "slow" in aggregator.senders)
    else:
        assert eventually(lambda: fast.receipts)
    end(broker, number)
    proxy.bytes_per_s = None
    again = site.again(broker, **options)
    assert again.url == broker.url
    assert eventually(lambda: aggregator.finished and not slow.waiting and not fast.waiting, 300)
    stored = site.audit(aggregator, slow, fast)
    assert (
        {receipt.round for receipt in slow.receipts} == {receipt.round for receipt in fast.receipts} == {1, 2}
    )
    statuses = {receipt.status for receipt in (*slow.receipts, *fast.receipts)}
    assert statuses <= {"accepted", "duplicate"}
    assert stored == {(n, name) for n in (1, 2) for name in ("slow", "fast")}


@pytest.mark.slow
def test_amqtt_ends_and_comes_back(amqtt_site, eventually):
    site = amqtt_site
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.bytes_per_s = 150_000
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.blocks >= 2)
    broker.stop()
    proxy.bytes_per_s = None
    site.again(broker)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_mosquitto_freezes_in_a_transfer(mosquitto_site, eventually):
    """Both sides notice by their keep-alive, and wait for it."""
    site = mosquitto_site
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.bytes_per_s = 150_000
    aggregator = site.aggregator(broker.url, "full", keepalive_s=2)
    device = site.device("pi", proxy.url, keepalive_s=2)
    assert eventually(lambda: aggregator.blocks >= 2)
    os.kill(broker.pid, signal.SIGSTOP)
    assert eventually(lambda: not aggregator.link.connected and not device.link.connected)
    os.kill(broker.pid, signal.SIGCONT)
    proxy.bytes_per_s = None
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_what_others_retain_leaks_into_no_round(site, eventually):
    """amqtt sends what is retained also to those who did not ask for it; a wire may keep anything."""
    broker = site.broker()
    stray = Link(BrokerUrl.parse(broker.url), "stray", queue.SimpleQueue(), LinkOptions())
    stray.connect()
    hello = Hello(boot=1, num_examples=9, profile="x", memory_bytes=1, engine="x")
    stray.publish(topics.up("ghost", "hello"), messages.encode(hello), retain=True)
    stray.publish(topics.up("shade", "state"), messages.encode(State(boot=3, online=True)), retain=True)
    stray.publish(topics.down("pi", "task"), b"\x93rubbish", retain=True)
    stray.publish(topics.down("pi", "receipt"), b"\x93rubbish", retain=True)
    stray.publish(topics.offer("task"), b"\x93rubbish", retain=True)
    assert eventually(lambda: not stray.unacknowledged())
    stray.close()
    aggregator = site.aggregator(broker.url, "few-shot", round_deadline_s=60.0)
    device = site.device("pi", broker.url)
    assert eventually(lambda: aggregator.finished)
    assert "ghost" not in aggregator.service.state.devices
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}
