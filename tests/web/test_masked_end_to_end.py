"""Devices of JavaScript in masked rounds of a real service, beside a device in Python and mask helpers."""

import csv
import math
import shutil
import subprocess
from contextlib import ExitStack

import pytest

from device_runtime.broker.servers import brokers

from .serving_pages import WEB

BUNDLE, DEVICES = "digits-wrn-10-1", ("js-1", "js-2", "py")


@pytest.fixture
def broker():
    running = brokers.start()
    yield running
    running.stop()


@pytest.fixture
def helper(broker, launched, program, tmp_path):
    """Starts a mask helper, and returns its name and key; a context manager."""

    def start(stack, name):
        settings = (broker.url, "--name", name, "--state", str(tmp_path / name))
        process = subprocess.run(
            [program, "mask-helper", *settings, "--print-key"], capture_output=True, text=True, check=True
        )
        stack.enter_context(launched(tmp_path / f"{name}.log", "mask-helper", *settings))
        return process.stdout.strip()

    return start


@pytest.fixture
def join(broker, launched, program, digits, tmp_path):
    """Starts the device of this number, in Node or in Python; a context manager."""
    node = shutil.which("node")
    if node is None or not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("needs Node, and: npm ci && npm run vendor in web/")

    def start(number):
        name = DEVICES[number]
        settings = (
            "--name",
            name,
            "--data",
            digits / f"{number}.npz",
            "--state",
            tmp_path / name,
            "--until-done",
        )
        if name == "py":
            return launched(tmp_path / f"{name}.log", "join", broker.url, *settings)
        words = (node, str(WEB / "node" / "run.js"))
        return launched(tmp_path / f"{name}.log", "--broker", broker.url, *settings, other=words)

    return start


@pytest.mark.slow
def test_an_aggregator_learns_sums_alone_of_devices_in_javascript_and_python(
    broker, launched, helper, join, digits, lines, tmp_path
):
    with ExitStack() as stack:
        keys = [helper(stack, name) for name in ("uni", "club")]
        task = (
            "--bundle",
            BUNDLE,
            "--kinds",
            "full",
            "--rounds",
            "3",
            "--deadline",
            "600",
            "--min-devices",
            "3",
        )
        masks = ("--mask-helpers", ",".join(keys), "--min-group", "3")
        where = ("--broker", broker.url, "--run-dir", tmp_path / "run", "--eval-data", digits / "held.npz")
        service = stack.enter_context(launched(tmp_path / "serve.log", "serve", *task, *masks, *where))
        devices = [stack.enter_context(join(number)) for number in range(len(DEVICES))]
        assert service.wait(900) == 0, (tmp_path / "serve.log").read_text()
        assert [device.wait(600) for device in devices] == [0, 0, 0]
    sent = lines(tmp_path / "run" / "contributions.jsonl")
    expected = {(name, number) for name in DEVICES for number in (1, 2, 3)}
    assert {(row["device"], row["round"]) for row in sent} == expected and len(sent) == len(expected)
    assert {row["train_loss"] for row in sent} == {None}
    with (tmp_path / "run" / "rounds.csv").open() as table:
        rounds = list(csv.DictReader(table))
    assert all(math.isfinite(float(row["train_loss"])) for row in rounds)
    assert float(rounds[-1]["eval_acc"]) > 0.9
