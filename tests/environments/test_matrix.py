"""Every command of a device on every machine that lacks something: a sentence, a code, and no traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from device_runtime.cli.table import COMMANDS, DEVICE
from device_runtime.service_process import Exit

from .machines import MACHINES, Machine, Ran, can_isolate, hides_checkout, start

pytestmark = pytest.mark.skipif(
    not can_isolate(), reason="this machine lets no mount namespace be made (unshare, setpriv)"
)

NOT_REACHED = "mqtt://127.0.0.1:9"
RULES = (
    *("--mains", "--battery-above", "20", "--below-c", "90", "--unmetered", "--others-below", "99"),
    *("--between", "00:00-23:59", "--daily-mb", "5"),
)
TRIALS: dict[str, tuple[str, ...]] = {
    "--help": ("--help",),
    "--version": ("--version",),
    "policy": ("policy", *RULES),
    "policy of a device": ("policy", "--others-below", "99", "--state", "STATE"),
    "doctor": ("doctor",),
    "doctor of a device": ("doctor", "--state", "STATE"),
    "profile": ("profile",),
    "explain": ("explain", "--samples", "20"),
    "measure": (*("measure", "--kinds", "few-shot", "--repeats", "1", "--idle", "0"), "--samples", "20"),
    "data check": ("data", "check", "DATA", "--bundle", "digits-wrn-10-1"),
    "predict": ("predict", "DATA/a.npz", "--state", "STATE"),
    "pause": ("pause", "--state", "STATE"),
    "resume": ("resume", "--state", "STATE"),
    "traffic": ("traffic", "--state", "STATE"),
    "join": ("join", NOT_REACHED, "--data", "DATA", "--state", "STATE", "--name", "pi"),
    "join at home": ("join", NOT_REACHED, "--data", "DATA", "--name", "pi"),
    "join in process": (
        *("join", NOT_REACHED, "--data", "DATA"),
        "--state",
        "STATE",
        "--name",
        "pi",
        "--in-process",
    ),
    "join --service": ("join", NOT_REACHED, "--data", "DATA", "--name", "unit", "--service"),
    "leave": ("leave", "--yes", "--state", "STATE"),
}
"""Words in capitals are paths; `join` is ended by a signal once it waits for its broker."""
OPERATOR: dict[str, tuple[str, ...]] = {
    "broker init": ("broker", "init", "STATE/broker", "--name", "localhost", "--run-as", "root"),
    "device add": ("device", "add", "pi", "--dir", "STATE/broker"),
    "device list": ("device", "list", "--dir", "STATE/broker"),
    "serve": (
        *("serve", "--bundle", "digits-wrn-10-1", "--rounds", "1", "--deadline", "600"),
        *("--run-dir", "STATE/run"),
    ),
    "serve far": ("serve", "--bundle", "digits-wrn-10-1", "--broker", NOT_REACHED, "--run-dir", "STATE/far"),
    "serve-init": ("serve-init", "STATE/site", "--name", "localhost", "--run-as", "root"),
    "models": ("models", "STATE/run"),
    "audit": ("audit", "STATE/run", "STATE/broker"),
    "backup": ("backup", "STATE/run", "STATE/run.tar"),
    "mask-helper": ("mask-helper", NOT_REACHED, "--name", "club", "--print-key", "--state", "STATE/helper"),
    "new": ("new", "STATE/project"),
    "kinds": ("kinds",),
    "systems": ("systems",),
    "inspect": ("inspect", "digits-wrn-10-1"),
    "partition": ("partition", "--devices", "3", "--data", "digits", "--out", "STATE/p.png"),
    "compare": ("compare", "STATE/simulated"),
}
"""Commands of operators and researchers, but those that fetch something, emulate a fleet or need torch."""
LEFT_OUT = ("edge", "web", "bundle-wheels", "demo", "simulate", "fleet", "export")
QUICK = (
    ("HOME unset, no passwd entry", "join at home"),
    ("no /tmp", "measure"),
    ("/proc denied", "doctor of a device"),
    ("full disk", "join"),
    ("stdout full", "--help"),
    ("all streams closed", "--version"),
)
"""Those that `make test` runs."""
CODES = {0, 1, 2}
OF_SERVICES = {*CODES, *(code for code in Exit if code != Exit.MISTAKE)}
EVERY = TRIALS | OPERATOR


def run(folder: Path, machine: Machine, names: Iterable[str]) -> Ran:
    """Runs commands in a folder of their own, with a device that was there before."""
    if hides_checkout(machine):
        pytest.skip("this checkout lies below /tmp, which this machine hides")
    state, data = folder / "state", folder / "data"
    for folder_ in (folder / "home", state / "outbox", data):
        folder_.mkdir(parents=True)
    state.chmod(0o700)
    (state / "lock").touch()
    rng = np.random.default_rng(0)
    np.savez(data / "a.npz", x=rng.random((20, 1, 8, 8), np.float32), y=np.arange(20) % 10)
    paths = {"STATE": str(state), "DATA": str(data)}
    words = {
        name: tuple(re.sub("STATE|DATA", lambda match: paths[match[0]], word) for word in EVERY[name])
        for name in names
    }
    return start(machine, words, state)


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory):
    """The exit code of each command on this machine as it is."""
    return run(tmp_path_factory.mktemp("base"), Machine(), EVERY).codes


def check(ran: Ran, machine: Machine, expected: Mapping[str, int | str]) -> None:
    """No traceback; each command ends as it does elsewhere, or refuses with a sentence."""
    for word in ("Traceback", "Exception ignored", "Logging error"):
        assert word not in ran.output + ran.errors, (ran.output + ran.errors)[-3000:]
    for name, code in ran.codes.items():
        allowed = OF_SERVICES if name.startswith(("serve", "mask-helper", "join")) else CODES
        assert code in allowed, (name, code, ran.errors[-2000:])
        if machine.works and not name.startswith("policy"):  # whose code is of the load of the moment
            assert code == machine.ends.get(name, expected[name]), f"{name}: {code}\n{ran.errors[-2000:]}"
    if "2>" not in machine.streams:
        refused = sum(code not in (0, 1) for code in ran.codes.values())
        assert len(re.findall(r"^device-runtime: .{10}", ran.errors, re.MULTILINE)) >= refused, ran.errors


def test_every_command_is_tried_or_left_out():
    names = {words[0] for words in EVERY.values()}
    assert {name for name, command in COMMANDS.items() if command.group == DEVICE} <= names
    assert {*COMMANDS} == {name for name in names if not name.startswith("-")} | {*LEFT_OUT}
    assert {machine for machine, _ in QUICK} <= set(MACHINES)


@pytest.mark.parametrize("machine, trial", QUICK)
def test_a_machine_that_lacks_something(tmp_path, machine, trial):
    ran = run(tmp_path, MACHINES[machine], [trial])
    check(ran, MACHINES[machine], ran.codes)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_every_command_on_a_machine_that_lacks_something(tmp_path, elsewhere, machine):
    limits = MACHINES[machine]
    check(run(tmp_path, limits, [name for name in EVERY if name not in limits.without]), limits, elsewhere)
