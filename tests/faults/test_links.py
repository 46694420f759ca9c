"""What links do: cut, frozen with nobody told, slow, far; many at once."""

import queue
import subprocess
import sys
import time

import pytest

from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Disconnected, Link, LinkOptions
from device_runtime.broker.wire.messages import State
from device_runtime.broker.wire.url import BrokerUrl

FAST_S = (0.05, 0.4)


@pytest.mark.slow
def test_a_connection_cut_in_an_upload_costs_only_time(site, eventually):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.bytes_per_s = 200_000
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    for blocks in (1, 3):
        assert eventually(lambda blocks=blocks: aggregator.blocks >= blocks)
        proxy.cut()
    proxy.bytes_per_s = None
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert proxy.connections >= 3
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_a_connection_that_is_open_at_one_end_only_is_given_up_and_made_anew(site, eventually):
    """Half-open TCP in mid-transfer: nothing passes and nobody is told; pings are not answered."""
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.bytes_per_s = 200_000
    aggregator = site.aggregator(broker.url, "full", keepalive_s=1)
    device = site.device("pi", proxy.url, keepalive_s=1)
    assert eventually(lambda: aggregator.blocks >= 1)
    proxy.freeze()
    proxy.bytes_per_s = None
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_an_aggregator_behind_a_half_open_connection_comes_back(site, eventually):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    aggregator = site.aggregator(proxy.url, "full", keepalive_s=1, rounds=3)
    device = site.device("pi", broker.url)
    assert eventually(lambda: device.receipts)
    proxy.freeze()
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    stored = site.audit(aggregator, device, rounds=3)
    assert stored == {(1, "pi"), (2, "pi"), (3, "pi")}


@pytest.mark.slow
def test_an_upload_that_takes_longer_than_twice_the_keep_alive_arrives_on_one_connection(site, eventually):
    """313 kB at 40 kB/s are 8 s with a keep-alive of 2: one message of that size would never arrive."""
    broker = site.broker()
    proxy = site.proxy(broker.url)
    aggregator = site.aggregator(broker.url, "full", rounds=1)
    proxy.bytes_per_s = 40_000
    device = site.device("pi", proxy.url, keepalive_s=2)
    assert eventually(lambda: device.receipts, 300)
    assert proxy.connections == 1
    assert eventually(lambda: aggregator.finished)
    assert site.audit(aggregator, device, rounds=1) == {(1, "pi")}


@pytest.mark.slow
def test_a_far_link(site, eventually):
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.delay_s = 0.15
    aggregator = site.aggregator(broker.url, "full")
    device = site.device("pi", proxy.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


CROWD = """
import queue, sys, time
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
url, first, count = BrokerUrl.parse(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
links = []
for number in range(first, first + count):
    options = LinkOptions(reconnect_s=(0.2, 2.0), seed=number)
    links.append(Link(url, f"pi-{number}", queue.SimpleQueue(), options))
    links[-1].connect(60)
print("here", flush=True)
while any(link.connected for link in links):
    time.sleep(0.05)
for number, link in enumerate(links, first):
    assert link.publish(f"x/{number}", b"waited")
print("lost", flush=True)
while not all(link.connected and not link.unacknowledged() for link in links):
    time.sleep(0.05)
print("back", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_five_hundred_come_back_at_once(mosquitto_site, eventually):
    """The broker dies under them; each is back, and what it had to say has reached the broker."""
    site, crowds, each = mosquitto_site, 4, 125
    broker = site.broker()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CROWD, broker.url, str(number * each), str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(crowds)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["here\n"] * crowds
        broker.kill()
        assert [process.stdout.readline() for process in processes] == ["lost\n"] * crowds
        site.again(broker)
        assert [process.stdout.readline() for process in processes] == ["back\n"] * crowds
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_queue_that_overflows_at_the_broker_loses_nothing_for_good(mosquitto_site, eventually, monkeypatch):
    """Mosquitto acknowledges what it drops: here all but five of what waits for a slow reader."""
    from device_runtime.broker.servers import mosquitto

    real = mosquitto.configure
    narrow = lambda *arguments: real(*arguments).replace(  # noqa: E731
        "max_queued_messages 100000", "max_queued_messages 3\nmax_inflight_messages 2"
    )
    monkeypatch.setattr(mosquitto, "configure", narrow)
    site = mosquitto_site
    broker = site.broker()
    proxy = site.proxy(broker.url)
    proxy.delay_s = 0.05
    aggregator = site.aggregator(proxy.url, "full", min_devices=3)
    devices = [site.device(name, broker.url) for name in ("a", "b", "c")]
    assert eventually(lambda: aggregator.finished and not any(device.waiting for device in devices), 180)
    stored = site.audit(aggregator, *devices)
    assert stored == {(number, name) for number in (1, 2) for name in "abc"}


@pytest.mark.slow
def test_two_devices_of_one_name_are_told_and_nothing_counts_twice(mosquitto_site, eventually):
    site = mosquitto_site
    broker = site.broker()
    aggregator = site.aggregator(broker.url, "few-shot", rounds=1, min_contributions=1, min_devices=1)
    first = site.device("pi", broker.url)
    assert eventually(lambda: first.receipts)
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    other = Link(BrokerUrl.parse(broker.url), "pi", inbox, LinkOptions(reconnect_s=FAST_S))
    other.connect()
    reasons, end = [], time.monotonic() + 120
    while len(reasons) < 2 and time.monotonic() < end:
        event = inbox.get(timeout=120)
        if isinstance(event, Disconnected):
            reasons.append(event.reason)
    other.close()
    assert "is another client called 'pi'?" in reasons[1]
    assert eventually(lambda: aggregator.finished)
    assert site.audit(aggregator, first, rounds=1) == {(1, "pi")}


@pytest.mark.slow
def test_the_last_will_of_an_earlier_life_does_not_end_this_one(site, eventually):
    broker = site.broker()
    aggregator = site.aggregator(broker.url, "few-shot", rounds=1, min_devices=2, round_deadline_s=600.0)
    device = site.device("pi", broker.url)
    stray = Link(BrokerUrl.parse(broker.url), "stray", queue.SimpleQueue(), LinkOptions())
    stray.connect()
    assert eventually(lambda: "pi" in aggregator.service.state.ready)
    stray.publish(topics.up("pi", "state"), messages.encode(State(boot=1, online=False)))
    assert eventually(lambda: not stray.unacknowledged())
    stray.close()
    other = site.device("other", broker.url)
    assert eventually(lambda: aggregator.finished)
    assert site.audit(aggregator, device, other, rounds=1) == {(1, "pi"), (1, "other")}
