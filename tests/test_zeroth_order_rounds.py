"""Rounds of zeroth-order updates alone: no weights travel after the first, who missed rounds replays."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from broker import brokers

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
ROUNDS = 40


@pytest.fixture
def broker():
    running = brokers.start("auto")
    yield running
    running.stop()


def device(broker, folder, name):
    """A device that takes a fifth of a second or so for its passes, so that rounds go by at that pace."""
    log = (folder / f"{name}.log").open("ab")
    return subprocess.Popen(
        [
            COMMAND,
            "join",
            broker.url,
            "--data",
            folder / f"{name}.npz",
            "--name",
            name,
            "--state",
            folder / name,
            "--as",
            "pi-4",
            "--slow",
            "3",
            "--until-done",
        ],
        stderr=log,
    )


def test_no_weights_travel_and_a_device_that_missed_rounds_replays_them(broker, tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    for index, name in enumerate(("a", "b")):
        mine = slice(80 * index, 80 * index + 80)
        np.savez(tmp_path / f"{name}.npz", x=digits.images[mine], y=digits.target[mine])
    service = subprocess.Popen(
        [
            COMMAND,
            "serve",
            "--bundle",
            "digits-wrn-10-1",
            "--kinds",
            "zeroth-order",
            "--rounds",
            str(ROUNDS),
            "--deadline",
            "20",
            "--min-devices",
            "2",
            "--broker",
            broker.url,
            "--run-dir",
            tmp_path / "run",
        ],
        stdout=subprocess.DEVNULL,
    )
    processes = [service, device(broker, tmp_path, "a"), device(broker, tmp_path, "b")]
    log = tmp_path / "b.log"
    try:
        end = time.monotonic() + 60
        while log.read_text().count("accepted") < 2 and time.monotonic() < end:
            time.sleep(0.02)
        processes[2].kill()  # it has taken part in two rounds, and misses the next ones
        time.sleep(1.5)
        processes.append(device(broker, tmp_path, "b"))
        assert service.wait(60) == 0
        assert processes[3].wait(20) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    sent = [json.loads(line) for line in (tmp_path / "run" / "contributions.jsonl").read_text().splitlines()]
    rounds = {name: {c["round"] for c in sent if c["device"] == name} for name in ("a", "b")}
    assert rounds["a"] == set(range(1, ROUNDS + 1))
    missed = rounds["a"] - rounds["b"]
    assert missed, "b was never away"
    assert max(rounds["b"]) > max(missed), "b never came back"
    assert "beginning anew" not in log.read_text(), "a replayed base was not the aggregator's"
    later = [c for c in sent if c["device"] == "a" and c["round"] > 1]
    assert all(c["bytes_down"] < 1500 and c["bytes_up"] < 200 for c in later), "weights travelled"
