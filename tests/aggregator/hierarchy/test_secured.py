"""Three levels as processes, each broker with TLS and enrolment of its own; the middle edge is killed."""

import os
import pwd
import subprocess
from collections import Counter
from contextlib import ExitStack

import pytest

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port

ROUNDS = 3


@pytest.fixture
def run(program):
    """The command, run to its end: what it has said."""

    def run(*arguments):
        words = [program, *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def level(run, launched, eventually, tmp_path):
    """A broker by `broker init`, running until the stack ends, and who is enrolled at it: its folder."""

    def start(stack, name, *enrolled):
        site, log = tmp_path / f"{name}-enrolment", tmp_path / f"{name}-broker.log"
        user = ("--run-as", pwd.getpwuid(0).pw_name) if os.geteuid() == 0 else ()
        port = find_port(BrokerOptions())
        run("broker", "init", site, "--name", "127.0.0.1", "--port", port, *user)
        stack.enter_context(launched(log, other=(mosquitto.find(), "-c", str(site / "mosquitto.conf"))))
        eventually(lambda: "running" in log.read_text())
        for device in enrolled:  # the line that is printed, pasted on the device, or on the edge
            line = run("device", "add", device, "--dir", site)
            run(*line.split()[1:], "--state", tmp_path / device)
        return site

    return start


@pytest.fixture
def join(launched, digits_in, tmp_path):
    """A device that is enrolled, with a part of the digits."""

    def start(name, part, *more):
        data = digits_in(tmp_path / f"{name}.npz", part)
        settings = ("--data", data, "--state", tmp_path / name, "--until-done", "--held-out", 0)
        return launched(tmp_path / f"{name}.log", "join", *settings, *more)

    return start


@pytest.fixture
def edge(launched, tmp_path):
    """An edge that is enrolled, above the broker of a site."""

    def start(name, site):
        least = ("--min-devices", 2, "--min-contributions", 2)
        words = ("--state", tmp_path / name, "--enrolment", site, *least, "--until-done")
        return launched(tmp_path / f"{name}.log", "edge", *words)

    return start


@pytest.mark.slow
@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_an_edge_below_an_edge_over_tls_loses_nothing_when_the_one_between_is_killed_in_a_round(
    level, launched, join, edge, lines, eventually, tmp_path
):
    parts = {
        "top-1": slice(0, 100),
        "mid-1": slice(100, 250),
        "low-1": slice(250, 400),
        "low-2": slice(400, 520),
    }

    def of_site(name):
        files = (tmp_path / name / "site").glob("*/*/contributions.jsonl")
        return [row for file in files for row in lines(file)]

    with ExitStack() as stack:
        enter = stack.enter_context
        top = level(stack, "top", "top-1", "mid")
        mid = level(stack, "mid", "mid-1", "low")
        low = level(stack, "low", "low-1", "low-2")
        serve = enter(
            launched(
                tmp_path / "serve.log", "serve", "--bundle", "digits-wrn-10-1", "--rounds", ROUNDS,
                "--deadline", 600, "--min-devices", 2, "--min-contributions", 2, "--kinds", "full",
                "--enrolment", top, "--run-dir", tmp_path / "run",
            )
        )  # fmt: skip
        slow = {"low-2": ("--as", "pi-5", "--slow", "80")}
        leaving = [enter(join(name, part, *slow.get(name, ()))) for name, part in parts.items()]
        leaving.append(enter(edge("low", low)))
        with edge("mid", mid) as victim:
            first = [tmp_path / f"{name}.log" for name in ("mid-1", "low")]
            line = "round 2: full accepted"
            eventually(lambda: any(log.exists() and line in log.read_text() for log in first), 900)
            assert line not in (tmp_path / "mid.log").read_text()
            victim.kill()  # one of its two has its receipt of round 2, the other is still at work
        leaving.append(enter(edge("mid", mid)))
        assert serve.wait(900) == 0
        assert [process.wait(600) for process in leaving] == [0] * len(leaving)

    sizes = {name: part.stop - part.start for name, part in parts.items()}
    sizes["low"] = sizes["low-1"] + sizes["low-2"]
    sizes["mid"] = sizes["mid-1"] + sizes["low"]
    counted = {
        ("top-1", "mid"): lines(tmp_path / "run" / "contributions.jsonl"),
        ("mid-1", "low"): of_site("mid"),
        ("low-1", "low-2"): of_site("low"),
    }
    for devices, contributions in counted.items():
        once = Counter((number, device) for number in range(1, ROUNDS + 1) for device in devices)
        assert Counter((row["round"], row["device"]) for row in contributions) == once
        assert all(row["num_examples"] == sizes[row["device"]] for row in contributions)
    assert "which goes on" in (tmp_path / "mid.log").read_text()
    for name in parts:
        assert (tmp_path / f"{name}.log").read_text().count("full accepted") == ROUNDS
