"""What machines do: killed at the worst instant, stopped, full disks, wrong clocks, errors."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire import partial_blob as partial
from device_runtime.broker.wire.blobs import Blobs

SERVE = """
import os, sys
from device_runtime.aggregator.delivery import outbound
from device_runtime.aggregator.storage import contributions
from device_runtime.cli import main

where, left = sys.argv[1], [2]

def dying(function, before):
    def call(self, *arguments):
        left[0] -= 1
        if before and not left[0]:
            os._exit(9)
        result = function(self, *arguments)
        if not left[0]:
            os._exit(9)
        return result
    return call

if where.endswith("commit"):
    kind = contributions.Contributions
    kind.settle = dying(kind.settle, where.startswith("before"))
elif where.endswith("receipt"):
    kind = outbound.Outbound
    kind.receipt = dying(kind.receipt, where.startswith("before"))
sys.exit(main(["serve", *sys.argv[2:]]))
"""


def serving(where, url, folder, log):
    options = f"--bundle digits-wrn-10-1 --rounds 2 --deadline 60 --min-devices 2 --broker {url}"
    with log.open("ab") as out:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVE,
                where,
                *options.split(),
                "--kinds",
                "few-shot",
                "--run-dir",
                str(folder / "run"),
            ],
            stdout=out,
            stderr=out,
        )


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before commit", "after commit", "before receipt", "after receipt"])
def test_an_aggregator_that_dies_at_the_worst_instant(mosquitto_site, eventually, where):
    """At the second of its commits or receipts, once; then the same command goes on."""
    site = mosquitto_site
    broker = site.broker()
    log = site.folder / "serve.log"
    first = serving(where, broker.url, site.folder, log)
    devices = [site.device(name, broker.url) for name in ("a", "b")]
    try:
        assert first.wait(600) == 9, log.read_text()
        second = serving("never", broker.url, site.folder, log)
        try:
            assert second.wait(600) == 0, log.read_text()
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    with sqlite3.connect(site.folder / "run" / "run.sqlite") as db:
        stored = list(db.execute("SELECT round, device FROM contributions"))
    assert sorted(stored) == [(number, name) for number in (1, 2) for name in "ab"]
    for device in devices:
        rounds = {receipt.round for receipt in device.receipts if receipt.status in ("accepted", "duplicate")}
        assert rounds == {1, 2}


@pytest.mark.slow
def test_a_device_process_that_is_stopped_for_a_while(mosquitto_site, eventually):
    """It goes on where it was, and what it says counts once."""
    site = mosquitto_site
    broker = site.broker()
    aggregator = site.aggregator(broker.url, "full", rounds=3, min_devices=2, round_deadline_s=20.0)
    steady = site.device("steady", broker.url)
    command = "import sys; from device_runtime.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["join", broker.url, "--data", str(site.data("frozen")), "--name", "frozen"]
    log = site.folder / "frozen.log"
    with log.open("wb") as out:
        frozen = subprocess.Popen(
            [sys.executable, "-c", command, *words, "--state", str(site.folder / "frozen")],
            stdout=out,
            stderr=out,
        )
    try:
        assert eventually(lambda: "accepted" in log.read_text(), 300)
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(3)
        frozen.send_signal(signal.SIGCONT)
        assert eventually(lambda: aggregator.finished, 120)
    finally:
        frozen.kill()
        frozen.wait()
    stored = site.audit(aggregator, steady, rounds=3)
    assert (1, "frozen") in stored


@pytest.mark.slow
@pytest.mark.parametrize("side", ["aggregator", "device"])
def test_a_disk_that_is_full_for_a_while(site, eventually, monkeypatch, side):
    """Blocks, blobs and commits are refused by one side's disk; when there is room all goes on."""
    broker = site.broker()
    prefix = str(site.folder / ("run" if side == "aggregator" else "devices"))
    refused, full = [], [False]
    write_at, put = partial.write_at, Blobs.put

    def check(path):
        if full[0] and str(path).startswith(prefix):
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def writing(file, offset, data):
        check(file.name)
        write_at(file, offset, data)

    def putting(self, data):
        with partial.disk_errors("write", self.folder):
            check(self.folder)
        return put(self, data)

    monkeypatch.setattr(partial, "write_at", writing)
    monkeypatch.setattr(Blobs, "put", putting)
    aggregator = site.aggregator(broker.url, "full", rounds=3, round_deadline_s=15.0)
    device = site.device("pi", broker.url)
    assert eventually(lambda: aggregator.blocks >= 1)
    if side == "aggregator":  # its own models must be written: only what comes is refused
        monkeypatch.setattr(Blobs, "put", put)
    full[0] = True
    assert eventually(lambda: refused)
    full[0] = False
    assert eventually(lambda: aggregator.finished and not device.waiting, 120)
    site.audit(aggregator, device, rounds=3)


@pytest.mark.slow
def test_a_database_that_is_full_for_a_while(site, eventually, monkeypatch):
    from device_runtime.aggregator.storage.contributions import Contributions

    real, left = Contributions.settle, [3]

    def settle(self):
        batch = self._batch
        if left[0]:
            left[0] -= 1
            self.drop()
            raise RunFolderError(f"database or disk is full, {len(batch)} are not kept")
        real(self)

    monkeypatch.setattr(Contributions, "settle", settle)
    monkeypatch.setattr("device_runtime.device.machine.turn.RESEND_S", 0.5)
    broker = site.broker()
    aggregator = site.aggregator(broker.url, "few-shot")
    device = site.device("pi", broker.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert left == [0]
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_clocks_that_disagree_do_not_matter(site, eventually, monkeypatch):
    """Nobody's time of day is ever sent or compared: a device may live in another year."""
    broker = site.broker()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 400 * 86400 * (1 if int(real()) % 2 else -1))
    aggregator = site.aggregator(broker.url, "few-shot")
    device = site.device("pi", broker.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["raises", "takes long"])
def test_an_observer_that_fails_or_is_slow_stops_no_round(site, eventually, what):
    """It is called in the aggregator's own thread; the link has another, and goes on."""
    broker = site.broker()
    aggregator = site.aggregator(broker.url, "few-shot")

    def observer(_happening):
        if what == "raises":
            raise RuntimeError("a view that fails")
        time.sleep(0.3)

    object.__setattr__(aggregator.service._ports, "observers", (aggregator.events.append, observer))
    device = site.device("pi", broker.url)
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}


@pytest.mark.slow
def test_an_update_that_is_damaged_on_the_device_s_disk_while_it_is_fetched(site, eventually):
    """What comes has another hash, twice: it is refused with that reason."""
    broker = site.broker()
    proxy = site.proxy(broker.url)

    def damage(up, topic, _payload):
        """As the first blocks are asked for."""
        if not up and topic.endswith("/dn/get"):
            for message in device.agent.runner.outbox:
                device.agent.runner.blobs.path(message.blob.sha).write_bytes(bytes(message.blob.size))

    proxy.rule = damage
    aggregator = site.aggregator(broker.url, "full", rounds=2, round_deadline_s=15.0)
    device = site.device("pi", proxy.url)
    assert eventually(lambda: device.receipts, 300)
    assert device.receipts[0].status == "refused"
    assert "another hash" in device.receipts[0].reason
    aggregator.stop()
    assert aggregator.failure is None


@pytest.mark.slow
def test_a_retained_round_of_an_earlier_run_is_only_a_sign(site, eventually):
    """A broker may keep an offer whose aggregator is long gone: nobody works on it."""
    import queue

    from device_runtime.broker.wire import messages, topics
    from device_runtime.broker.wire.link import Link, LinkOptions
    from device_runtime.broker.wire.messages import Base, Blob, Offer
    from device_runtime.broker.wire.url import BrokerUrl

    broker = site.broker()
    blob = Blob(bytes(32), 9)
    stale = Offer(
        task="task", run="gone", round=7, seed=1, deadline_s=9.0, remaining_s=9.0, bundle=blob,
        base=Base((blob,), bytes(32)), kinds=(),
    )  # fmt: skip
    stray = Link(BrokerUrl.parse(broker.url), "stray", queue.SimpleQueue(), LinkOptions())
    stray.connect()
    stray.publish(topics.offer("task"), messages.encode(stale), retain=True)
    assert eventually(lambda: not stray.unacknowledged())
    stray.close()
    device = site.device("pi", broker.url)
    aggregator = site.aggregator(broker.url, "few-shot")
    assert eventually(lambda: aggregator.finished and not device.waiting, 300)
    assert site.audit(aggregator, device) == {(1, "pi"), (2, "pi")}
