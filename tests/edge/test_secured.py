"""Three levels as processes, each broker with TLS and enrolment of its own; the middle edge is killed."""

import os
import pwd
import shutil
import subprocess
from collections import Counter
from contextlib import ExitStack

import pytest

from broker.running import BrokerOptions, find_port

from .test_end_to_end import COMMAND, ROUNDS, contributions_of_site, lines, samples, started, until


class Secured:
    """A broker by `broker init`, in a folder of its own."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.site = folder / f"{name}-enrolment"
        user = ("--run-as", pwd.getpwuid(0).pw_name) if os.geteuid() == 0 else ()
        command(
            "broker", "init", self.site, "--name", "127.0.0.1", "--port", find_port(BrokerOptions()), *user
        )

    def running(self, stack):
        """Started as the command has printed; until the stack ends."""
        log = self.folder / f"{self.name}-broker.log"
        out = stack.enter_context(log.open("wb"))
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        process = subprocess.Popen([program, "-c", self.site / "mosquitto.conf"], stdout=out, stderr=out)
        stack.callback(process.wait)
        stack.callback(process.kill)
        until(lambda: "running" in log.read_text())
        return self

    def enrol(self, *names):
        """As an operator does: the line that is printed, pasted on the device, or on the edge."""
        for name in names:
            added = command("device", "add", name, "--dir", self.site)
            command(*added.split()[1:], "--state", self.folder / name)


def command(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def join(folder, name, part, *more):
    options = (
        "--data",
        samples(folder, name, part),
        "--state",
        folder / name,
        "--until-done",
        "--held-out",
        0,
    )
    return started(folder, name, "join", *options, *more)


def edge(folder, name, below):
    options = ("--state", folder / name, "--enrolment", below.site, "--min-devices", 2)
    return started(folder, name, "edge", *options, "--min-contributions", 2, "--until-done")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_an_edge_below_an_edge_over_tls_loses_nothing_when_the_one_between_is_killed_in_a_round(tmp_path):
    held = {
        "top-1": slice(0, 100),
        "mid-1": slice(100, 250),
        "low-1": slice(250, 400),
        "low-2": slice(400, 520),
    }
    with ExitStack() as stack:
        top, mid, low = (Secured(tmp_path, name).running(stack) for name in ("top", "mid", "low"))
        top.enrol("top-1", "mid")
        mid.enrol("mid-1", "low")
        low.enrol("low-1", "low-2")
        enter = stack.enter_context
        serve = enter(
            started(
                tmp_path, "serve", "serve", "--bundle", "digits-wrn-10-1", "--rounds", ROUNDS,
                "--deadline", 600, "--min-devices", 2, "--min-contributions", 2, "--kinds", "full",
                "--enrolment", top.site, "--run-dir", tmp_path / "run",
            )
        )  # fmt: skip
        slow = {"low-2": ("--as", "pi-5", "--slow", "40")}
        leaving = [enter(join(tmp_path, name, part, *slow.get(name, ()))) for name, part in held.items()]
        leaving.append(enter(edge(tmp_path, "low", low)))
        with edge(tmp_path, "mid", mid) as victim:
            log = tmp_path / "mid-1.log"
            until(lambda: log.exists() and "round 2: full accepted" in log.read_text())
            assert len([one for one in contributions_of_site(tmp_path, "low") if one["round"] == 2]) < 2
            victim.kill()  # mid-1 has its receipt of round 2, the edge below it is still at work
        leaving.append(enter(edge(tmp_path, "mid", mid)))
        assert serve.wait(300) == 0
        assert [process.wait(120) for process in leaving] == [0] * len(leaving)

    sizes = {name: part.stop - part.start for name, part in held.items()}
    sizes["low"] = sizes["low-1"] + sizes["low-2"]
    sizes["mid"] = sizes["mid-1"] + sizes["low"]
    counted = {
        ("top-1", "mid"): lines(tmp_path / "run" / "contributions.jsonl"),
        ("mid-1", "low"): contributions_of_site(tmp_path, "mid"),
        ("low-1", "low-2"): contributions_of_site(tmp_path, "low"),
    }
    for devices, contributions in counted.items():
        once = Counter((number, device) for number in range(1, ROUNDS + 1) for device in devices)
        assert Counter((one["round"], one["device"]) for one in contributions) == once
        assert all(one["num_examples"] == sizes[one["device"]] for one in contributions)
    for name in held:
        assert (tmp_path / f"{name}.log").read_text().count("full accepted") == ROUNDS
