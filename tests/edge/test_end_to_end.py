"""Two levels as processes over two Mosquittos each with its own devices; an edge is killed in a round."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from broker import brokers

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
ROUNDS = 3


def samples(folder, name, part):
    from sklearn.datasets import load_digits

    digits = load_digits()
    path = folder / f"{name}.npz"
    np.savez(path, x=digits.images[part].astype(np.uint8), y=digits.target[part])
    return path


@contextmanager
def started(folder, name, *arguments):
    """A `device-runtime` process, its words in NAME.log; killed at the end if it is still there."""
    with (folder / f"{name}.log").open("ab") as out:
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def edge(folder, name, above, below):
    options = ("--name", name, "--state", folder / name, "--broker", below.url)
    return started(folder, name, "edge", above.url, *options, "--min-devices", 2, "--until-done")


def join(folder, name, broker, part, *more):
    data = samples(folder, name, part)
    options = ("--name", name, "--data", data, "--state", folder / name, "--until-done")
    return started(folder, name, "join", broker.url, *options, *more)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def contributions_of_site(folder, name):
    """Of all runs of the site, by the site's own count of rounds."""
    files = (folder / name / "site").glob("*/*/contributions.jsonl")
    return [one for file in files for one in lines(file)]


def until(condition, timeout_s=300.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    pytest.fail(f"not within {timeout_s} s")


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_two_sites_and_a_direct_device_learn_while_an_edge_is_killed_in_a_round(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    evaluation = tmp_path / "eval.npz"
    np.savez(evaluation, x=digits.images[1200:].astype(np.uint8), y=digits.target[1200:])
    run = tmp_path / "run"
    slow = ("--as", "pi-5", "--slow", "40")
    with ExitStack() as stack:
        above, below = brokers.start("mosquitto"), brokers.start("mosquitto")
        other = brokers.start("mosquitto")
        for broker in (above, below, other):
            stack.callback(broker.stop)
        enter = stack.enter_context
        serve = enter(
            started(
                tmp_path, "serve", "serve", "--bundle", "digits-wrn-10-1", "--rounds", ROUNDS,
                "--deadline", 600, "--min-devices", 3, "--min-contributions", 3,
                "--kinds", "full,few-shot", "--broker", above.url, "--run-dir", run,
                "--eval-data", evaluation,
            )
        )  # fmt: skip
        leaving = [
            enter(join(tmp_path, "direct", above, slice(0, 100))),
            enter(join(tmp_path, "a1", below, slice(100, 200))),
            enter(join(tmp_path, "a2", below, slice(200, 340), *slow)),
            enter(join(tmp_path, "b1", other, slice(340, 500))),
            enter(join(tmp_path, "b2", other, slice(500, 580))),
            enter(edge(tmp_path, "site-b", above, other)),
        ]
        with edge(tmp_path, "site-a", above, below) as victim:
            log = tmp_path / "a1.log"
            until(lambda: log.exists() and "round 2: full accepted" in log.read_text())
            assert "round 2: full accepted" not in (tmp_path / "a2.log").read_text()
            victim.kill()  # a1 has its receipt of round 2, a2 is still at work
        leaving.append(enter(edge(tmp_path, "site-a", above, below)))
        assert serve.wait(300) == 0
        assert [process.wait(120) for process in leaving] == [0] * len(leaving)

    counted = lines(run / "contributions.jsonl")
    assert Counter((one["round"], one["device"]) for one in counted) == Counter(
        (number, device) for number in range(1, ROUNDS + 1) for device in ("direct", "site-a", "site-b")
    )
    held = {"direct": 100, "site-a": 240, "site-b": 240}
    assert all(one["num_examples"] == held[one["device"]] for one in counted)
    for site, devices in (("site-a", ("a1", "a2")), ("site-b", ("b1", "b2"))):
        of_site = Counter((one["round"], one["device"]) for one in contributions_of_site(tmp_path, site))
        assert of_site == Counter((n, device) for n in range(1, ROUNDS + 1) for device in devices)
    assert (tmp_path / "a1.log").read_text().count("full accepted") == ROUNDS
    accuracies = [one["eval_acc"] for one in lines(run / "rounds.jsonl")]
    assert len(accuracies) == ROUNDS
    assert accuracies[-1] > 0.8
