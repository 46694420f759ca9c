"""Rounds, sites and mask helpers at brokers that are far, busy, renewed, or take small packets only."""

import shutil
import threading
import time
from contextlib import ExitStack

import pytest

from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
from tests.network import Proxy

needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")


@pytest.mark.parametrize(
    "kib", [64, *(pytest.param(kib, marks=pytest.mark.slow) for kib in (16, 128, 256, 1024))]
)
def test_a_round_goes_through_a_broker_that_takes_small_packets_only(mosquitto_site, eventually, kib):
    """The aggregator's base and the device's update go in pieces; neither knows."""
    site = mosquitto_site
    broker = site.broker()
    above, below = site.proxy(broker.url), site.proxy(broker.url)
    above.packet_limit = below.packet_limit = kib * 1024
    aggregator = site.aggregator(above.url, "full", rounds=1)
    device = site.device("pi", below.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device, rounds=1) == {(1, "pi")}
    assert above.connections <= 5
    assert below.connections <= 5
    learnt = {16: 16 * 1024, 64: 32 * 1024}.get(kib)
    assert device.link.packet_limit == learnt


@pytest.mark.slow
def test_an_update_over_a_link_that_is_cut_again_and_again_is_counted_as_the_wire_counts_it(
    mosquitto_site, eventually
):
    site = mosquitto_site
    broker = site.broker()
    proxy = site.proxy(broker.url)
    aggregator = site.aggregator(broker.url, "full", rounds=2)
    device = site.device("pi", proxy.url)
    proxy.cut_after, proxy.bytes_per_s = 150_000, 2e6
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    device.stop()
    wire = proxy.up + proxy.down
    assert proxy.connections > 4
    assert abs(device.link.bytes_up + device.link.bytes_down - wire) < 0.05 * wire


def words_of(role, url, folder, data):
    """The command of a role at this broker."""
    task = ("--bundle", "digits-wrn-10-1", "--rounds", 1, "--min-devices", 9, "--deadline", 600)
    return {
        "device": ("join", url, "--name", "pi", "--data", data, "--state", folder / "pi"),
        "service": ("serve", *task, "--broker", url, "--run-dir", folder / "run"),
        "site": ("edge", url, "--name", "club", "--state", folder / "site"),
        "site below": ("edge", url, "--name", "club", "--state", folder / "site", "--broker", url),
        "helper": ("mask-helper", url, "--name", "helper", "--state", folder / "helper"),
    }[role]


@pytest.mark.slow
@needs_mosquitto
@pytest.mark.parametrize("role", ["device", "service", "site", "site below", "helper"])
def test_every_role_waits_for_a_broker_that_is_busy_and_far_and_says_why_it_is_away(
    role, launched, digits_in, eventually, tmp_path
):
    with ExitStack() as stack:
        broker = brokers.start("mosquitto")
        stack.callback(broker.stop)
        proxy = Proxy(broker.url)
        stack.callback(proxy.close)
        proxy.busy, proxy.delay_s = 3, 0.1
        log = tmp_path / "log"
        words = words_of(role, proxy.url, tmp_path, digits_in(tmp_path / "data.npz"))
        process = stack.enter_context(launched(log, *words))
        eventually(lambda: log.exists() and "answers again, after" in log.read_text(), 120)
        assert process.poll() is None, log.read_text()
        before = proxy.connections
        proxy.cut()
        eventually(lambda: proxy.connections > before, 120)
        assert "refuses connections for now: server unavailable; trying again" in log.read_text()
        eventually(lambda: "ended (connection lost); trying again" in log.read_text(), 120)
        process.terminate()
        assert process.wait(120) == 0


@pytest.mark.slow
@needs_mosquitto
@pytest.mark.parametrize("role", ["device", "service", "helper"])
def test_every_role_comes_back_with_a_certificate_that_was_renewed(
    role, launched, digits_in, eventually, tmp_path
):
    from tests.broker.wire.test_renewed_credentials import issue

    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = tmp_path / "tls"
    files.mkdir()
    names = {"device": "pi", "service": "aggregator", "helper": "helper"}

    def broker(port=0):
        from device_runtime.broker.wire.url import TLS

        issue(files, ("server", names[role]))
        tls = TLS(ca=files / "ca.pem", cert=files / "server.pem", key=files / "server.key")
        return mosquitto.Mosquitto(BrokerOptions(port=port, tls=tls))

    running = broker()
    proxy = Proxy(running.url, opaque=True)
    pair = (files / "ca.pem", files / f"{names[role]}.pem", files / f"{names[role]}.key")
    words = list(words_of(role, proxy.url, tmp_path, digits_in(tmp_path / "data.npz")))
    if role == "service":
        (tmp_path / "server.toml").write_text(
            f'[broker]\nurl = "{proxy.url}"\nca = "{pair[0]}"\ncert = "{pair[1]}"\nkey = "{pair[2]}"\n'
        )
        at = words.index("--broker")
        words[at : at + 2] = ["--config", tmp_path / "server.toml"]
    else:
        words += ["--ca", pair[0], "--cert", pair[1], "--key", pair[2]]
    log = tmp_path / "log"
    with launched(log, *words) as process:
        eventually(lambda: proxy.down > 1000, 120)
        time.sleep(2)  # until it is subscribed
        for turn in range(1, 4):
            running.kill()
            running = broker(running.port)
            eventually(lambda turn=turn: log.read_text().count("answers again") >= turn, 120)
        assert process.poll() is None
    proxy.close()
    running.stop()


@pytest.mark.slow
@needs_mosquitto
def test_a_round_trip_of_twelve_seconds_joins():
    """In real time: name and TCP are at once, CONNACK and SUBACK take twelve seconds each."""
    broker = brokers.start("mosquitto")
    proxy = Proxy(broker.url)
    proxy.delay_s = 6.0
    try:
        import queue

        options = LinkOptions(subscriptions=("t",))
        link, stop = Link(BrokerUrl.parse(proxy.url), "pi", queue.SimpleQueue(), options), threading.Event()
        began = time.monotonic()
        link.connect(stop=stop)
        assert link.connected
        assert time.monotonic() - began >= 24
        link.close()
    finally:
        proxy.close()
        broker.stop()
