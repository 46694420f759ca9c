"""Every command of a device on every machine that lacks something: a sentence, a code, and no traceback."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from device_runtime.cli.table import COMMANDS, DEVICE

from .machines import MACHINES, Machine, can_isolate, start

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
    "leave": ("leave", "--yes", "--state", "STATE"),
}
"""Words in capitals are paths; `join` is ended by a signal once it waits for its broker."""
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


def run(folder: Path, machine: Machine, words: tuple[str, ...]) -> CompletedProcess[str]:
    """Runs a command in a folder of its own, with a device that was there before."""
    state, data = folder / "state", folder / "data"
    for made in (folder / "home", state / "outbox", data):
        made.mkdir(parents=True)
    state.chmod(0o700)
    (state / "lock").touch()
    rng = np.random.default_rng(0)
    np.savez(data / "a.npz", x=rng.random((20, 1, 8, 8), np.float32), y=np.arange(20) % 10)
    paths = {"STATE": str(state), "DATA": str(data)}
    return start(machine, tuple(re.sub("STATE|DATA", lambda m: paths[m[0]], word) for word in words), state)


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory):
    """The exit code of each command on this machine as it is."""
    known: dict[str, int] = {}

    def code(trial: str) -> int:
        if trial not in known:
            known[trial] = run(tmp_path_factory.mktemp("base"), Machine(), TRIALS[trial]).returncode
        return known[trial]

    return code


def check(done: CompletedProcess[str], machine: Machine, trial: str, expected: int) -> None:
    said = done.stdout + done.stderr
    assert "Traceback" not in said and "Exception ignored" not in said, said[-2000:]
    assert done.returncode in CODES, said[-2000:]
    if machine.works and not trial.startswith("policy"):  # whose code is of the load of the moment
        assert done.returncode == expected, said[-2000:]
    if done.returncode == 2 and "2>" not in machine.streams and "-" not in machine.streams:
        assert re.search(r"^device-runtime: .{10}", done.stderr, re.MULTILINE), said[-2000:]


def test_every_command_of_a_device_is_tried():
    names = {words[0] for words in TRIALS.values()}
    assert {name for name, command in COMMANDS.items() if command.group == DEVICE} <= names
    assert {machine for machine, _ in QUICK} <= set(MACHINES)


@pytest.mark.parametrize("machine, trial", QUICK)
def test_a_machine_that_lacks_something(tmp_path, machine, trial):
    done = run(tmp_path, MACHINES[machine], TRIALS[trial])
    check(done, MACHINES[machine], trial, done.returncode)


@pytest.mark.slow
@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_command_on_every_machine(tmp_path, elsewhere, machine, trial):
    check(run(tmp_path, MACHINES[machine], TRIALS[trial]), MACHINES[machine], trial, elsewhere(trial))
