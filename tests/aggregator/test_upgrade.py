"""A run, an enrolment and devices of the version before go on with this one; needs the history of git."""

import json
import os
import pwd
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port

ROOT = Path(__file__).parents[2]
BEFORE = "7c801a8c"
"""The commit of the version before: the last one that wrote 0.1.0's run folders."""
PATIENCE_S = 300.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed"),
]


@pytest.fixture
def before(tmp_path):
    """The program of the version before, as words in a folder of its own."""
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"this checkout has no commit {BEFORE}")
    folder = tmp_path / "before"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    (tmp_path / "old.sh").write_text(
        f'#!/bin/sh\ncd {folder} && PYTHONPATH={folder} exec {sys.executable} -m device_runtime "$@"\n'
    )
    (tmp_path / "old.sh").chmod(0o755)
    return str(tmp_path / "old.sh")


def test_a_run_goes_on_with_devices_of_both_versions(
    before, program, launched, digits_in, eventually, lines, tmp_path
):
    site, run = tmp_path / "enrolment", tmp_path / "run"
    user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []

    def old(*words, **more):
        return subprocess.run([before, *map(str, words)], check=True, capture_output=True, text=True, **more)

    with pytest.raises(subprocess.CalledProcessError):
        old("audit", tmp_path)  # it has no such command
    old("broker", "init", site, "--name", "127.0.0.1", "--port", find_port(BrokerOptions()), *user)
    data = digits_in(tmp_path / "digits.npz")

    def round_of(number, programs):
        """One more round of the run: the aggregator's program, then that of each device."""
        settings = f"--bundle digits-wrn-10-1 --rounds {number} --deadline 120 --min-devices 2"
        log = tmp_path / f"serve-{number}.log"
        words = ("serve", *settings.split(), "--enrolment", site, "--run-dir", run)
        with launched(log, *words, other=(programs[0],)) as service:
            joined = ("join", "--data", data, "--until-done", "--state")
            with (
                launched(tmp_path / "1.log", *joined, tmp_path / "pi-1", other=(programs[1],)) as first,
                launched(tmp_path / "2.log", *joined, tmp_path / "pi-2", other=(programs[2],)) as second,
            ):
                assert service.wait(PATIENCE_S) == 0, log.read_text()
                assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
        return log.read_text()

    conf = ("-c", str(site / "mosquitto.conf"))
    with launched(tmp_path / "mosquitto.log", other=(str(mosquitto.find()), *conf)):
        eventually(lambda: "running" in (tmp_path / "mosquitto.log").read_text())
        for name in ("pi-1", "pi-2"):
            _, *line = old("device", "add", name, "--dir", site).stdout.split()
            old(*line, "--state", tmp_path / name)
        round_of(1, (before, before, before))
        begun = json.loads((run / "task.json").read_bytes())
        text = round_of(2, (program, program, before))
    assert "resumed after 1 closed" in text
    counted = [(entry["round"], entry["device"]) for entry in lines(run / "contributions.jsonl")]
    assert sorted(counted) == [(number, name) for number in (1, 2) for name in ("pi-1", "pi-2")]
    assert json.loads((run / "task.json").read_bytes())["rounds"] == begun["rounds"] + 1
    models = subprocess.run([program, "models", run, "--format", "json"], capture_output=True, text=True)
    assert [model["round"] for model in json.loads(models.stdout)] == [1, 2]
