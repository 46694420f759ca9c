"""A device as a guest on a machine, as real processes: paused by hand, killed at any instant, taken away."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from device_runtime.broker.servers import brokers
from device_runtime.device.agent import instance as guest
from device_runtime.device.service import uninstall as leaving

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
SLOW = ("--as", "pi-5", "--slow", "20")


@pytest.fixture
def broker():
    running = brokers.start("auto")
    yield running
    running.stop()


@contextmanager
def started(*arguments, log):
    with log.open("ab") as out:
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def serve(broker, folder, rounds, **flags):
    options = {"deadline": 300, "min-devices": 1, "kinds": "full,few-shot", **flags}
    extra = [part for name, value in options.items() for part in (f"--{name}", value)]
    return started(
        "serve", "--bundle", "digits-wrn-10-1", "--rounds", rounds, "--broker", broker.url,
        "--run-dir", folder / "run", *extra, log=folder / "serve.log",
    )  # fmt: skip


def join(broker, folder, *extra):
    from sklearn.datasets import load_digits

    digits, data = load_digits(), folder / "samples.npz"
    if not data.exists():
        np.savez(data, x=digits.images[:60].astype(np.uint8), y=digits.target[:60])
    where = ("--data", data, "--name", "pi", "--state", folder / "pi")
    return started("join", broker.url, *where, *extra, log=folder / "pi.log")


def run(*arguments):
    return subprocess.run(
        [COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def eventually(condition, timeout_s=300.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    return pytest.fail(f"not within {timeout_s} s")


def counted(folder):
    path = folder / "run" / "contributions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cpu_s(process):
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@pytest.mark.slow
def test_a_device_is_paused_by_a_signal_or_a_command_stays_connected_and_goes_on(broker, tmp_path):
    log = tmp_path / "pi.log"
    with serve(broker, tmp_path, 3) as service, join(broker, tmp_path, *SLOW) as device:
        eventually(lambda: counted(tmp_path))
        device.send_signal(signal.SIGUSR1)
        eventually(lambda: "paused: by hand, since" in log.read_text())
        before, at = cpu_s(device), time.monotonic()
        time.sleep(3.0)
        share = (cpu_s(device) - before) / (time.monotonic() - at)
        count = len(counted(tmp_path))
        assert share < 0.25  # it looks around, and does nothing else
        assert run("policy", "--state", tmp_path / "pi").returncode == 1
        assert "disconnected" not in log.read_text()
        device.send_signal(signal.SIGUSR2)
        eventually(lambda: len(counted(tmp_path)) > count)
        assert run("pause", "--state", tmp_path / "pi").returncode == 0
        eventually(lambda: log.read_text().count("paused: by hand, since") == 2)
        assert run("resume", "--state", tmp_path / "pi").returncode == 0
        assert service.wait(900) == 0
    assert [line["round"] for line in counted(tmp_path)] == [1, 2, 3]


@pytest.mark.slow
def test_a_second_process_of_the_same_device_is_refused(broker, tmp_path):
    with join(broker, tmp_path) as first:
        eventually(lambda: guest.process(tmp_path / "pi") == first.pid)
        with join(broker, tmp_path) as second:
            assert second.wait(600) == 2
        assert f"in use by process {first.pid}" in (tmp_path / "pi.log").read_text()
        assert first.poll() is None


@pytest.mark.slow
def test_leaving_stops_the_device_and_leaves_nothing_of_it(broker, tmp_path):
    with serve(broker, tmp_path, 50) as service, join(broker, tmp_path) as device:
        eventually(lambda: len(counted(tmp_path)) >= 2)
        assert run("leave", "--state", tmp_path / "pi").returncode == 2  # nobody is there to agree
        assert device.poll() is None
        left = run("leave", "--state", tmp_path / "pi", "--yes", "--force")
        assert left.returncode == 0, left.stderr
        assert device.wait(600) == 0
        assert service.poll() is None
    assert f"removed {tmp_path / 'pi'}" in left.stdout
    assert "outbox: contributions" in left.stdout
    assert not (tmp_path / "pi").exists()
    assert (tmp_path / "samples.npz").exists()


@pytest.mark.slow
def test_what_waits_for_a_receipt_is_not_lost_by_leaving_unless_forced(broker, tmp_path):
    with join(broker, tmp_path, *SLOW) as device:
        while not leaving.unreceipted(tmp_path / "pi"):
            before = len(counted(tmp_path))
            with serve(broker, tmp_path, 50) as service:
                eventually(lambda least=before: len(counted(tmp_path)) > least)
                service.kill()  # nobody receipts what comes now, if a round is open
            end = time.monotonic() + 20
            while time.monotonic() < end and not leaving.unreceipted(tmp_path / "pi"):
                time.sleep(0.05)
        device.kill()
        device.wait()
    refused = run("leave", "--state", tmp_path / "pi", "--yes")
    assert refused.returncode == 2
    assert "that wait for a receipt: 1." in refused.stderr
    process = run("leave", "--state", tmp_path / "pi", "--yes", "--keep-outbox", "--broker", broker.url)
    assert process.returncode == 0, process.stderr
    assert "said goodbye at" in process.stdout
    assert sorted(path.name for path in (tmp_path / "pi").iterdir()) == ["blobs", "outbox"]
    assert leaving.unreceipted(tmp_path / "pi") == 1
    assert run("leave", "--state", tmp_path / "pi", "--yes", "--force").returncode == 0
    assert not (tmp_path / "pi").exists()


def killed_at_random_instants(broker, folder, rounds, seed):
    """A device that is killed again and again until its task is done. Returns how often."""
    rng, kills = random.Random(seed), 0
    with serve(broker, folder, rounds, codec="delta+int8") as service:
        while service.poll() is None:
            with join(broker, folder) as device:
                lives_s = rng.uniform(0.2, 3.0 + kills / 2)  # a busy machine needs long to begin at all
                try:
                    service.wait(lives_s)
                except subprocess.TimeoutExpired:
                    device.kill()
                    device.wait()
                    kills += 1
        assert service.returncode == 0
    by_round = Counter(line["round"] for line in counted(folder))
    assert by_round == dict.fromkeys(range(1, rounds + 1), 1)
    log = (folder / "pi.log").read_text()
    for word in ("Traceback", "damaged", "not readable", "begun anew", "dropped", "refused"):
        assert word not in log, word
    return kills


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "seed", "at_least"), [(3, 1, 1), (12, 2, 3), (12, 3, 3)])
def test_a_device_that_is_killed_at_random_instants_loses_nothing(broker, tmp_path, rounds, seed, at_least):
    assert killed_at_random_instants(broker, tmp_path, rounds, seed) >= at_least
