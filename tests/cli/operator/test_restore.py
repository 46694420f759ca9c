"""A site that is backed up while it runs, killed, and restored at another path and other ports."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack, closing, contextmanager

import pytest

from device_runtime.broker.security.audit import entries
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port
from tests.network import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed"),
]
PATIENCE_S = 300.0
DEVICES = ("pi-1", "pi-2")
ROUNDS = 8
USER = ("--run-as", "root") if os.geteuid() == 0 else ()


@pytest.fixture
def command(program):
    """The command, run to its end; what it prints."""

    def run(*words):
        line = [program, *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def free_ports():
    ports = set()
    while len(ports) < 2:
        ports.add(find_port(BrokerOptions()))
    return ports


def replace_in(path, before, text):
    assert path.read_text().count(before) == 1, before
    path.write_text(path.read_text().replace(before, text))


class Site:
    """The folder of a site; its broker and aggregator, and where they log."""

    def __init__(self, folder, launched, eventually):
        self.folder, self._launched, self._eventually = folder, launched, eventually
        self.run = folder / "run"
        self.log = folder.parent / "serve.log"

    @contextmanager
    def running(self):
        """Both processes, which are killed at the end."""
        log = self.folder.parent / "mosquitto.log"
        start = (mosquitto.find(), "-c", str(self.folder / "enrolment/mosquitto.conf"))
        with self._launched(log, other=start):
            self._eventually(lambda: "running" in log.read_text())
            with self._launched(self.log, "serve", "--config", self.folder / "server.toml") as service:
                yield service

    def audit(self):
        return list(reversed(entries([self.run, self.folder / "enrolment"])))

    def state(self, command, lines):
        """What must survive a restore: devices, models, key, counted contributions, the audit log."""
        return {
            "devices": json.loads(
                command("device", "list", "--dir", self.folder / "enrolment", "--format", "json")
            ),
            "models": [
                {**model, "served": None}
                for model in json.loads(command("models", self.run, "--format", "json"))
            ],
            "secrets": {
                name: (self.folder / name).read_bytes()
                for name in ("enrolment/aggregator.key", "enrolment/ca.key", "enrolment/passwords")
            },
            "counted": [(row["round"], row["device"]) for row in lines(self.run / "contributions.jsonl")],
            "audit": [entry for entry in self.audit() if entry.action != "backup"],
        }


def test_a_killed_site_goes_on_at_another_place_and_its_devices_are_not_enrolled_again(
    command, launched, eventually, lines, digits_in, tmp_path
):
    site = Site(tmp_path / "old" / "site", launched, eventually)
    old_port, old_http = free_ports()
    command(
        "serve", "init", site.folder, "--name", "localhost", "--port", old_port, "--http", old_http, *USER
    )
    (site.folder / "own").mkdir()
    digits_in(site.folder / "own" / "test.npz", slice(400, 500))
    settings = (site.folder / "task.toml").read_text().replace("rounds = 100", f"rounds = {ROUNDS}")
    (site.folder / "task.toml").write_text(
        f'eval_data = "own/test.npz"\n{settings}[[kinds]]\nname = "few-shot"\n'
    )
    states = {name: tmp_path / name for name in DEVICES}
    enrolments = {}
    logs = {name: tmp_path / f"{name}.log" for name in DEVICES}
    data = digits_in(tmp_path / "digits.npz")

    def join(name, *url):
        return launched(logs[name], "join", *url, "--data", data, "--state", states[name], "--until-done")

    def accepted(name):
        return len(re.findall(r"round \d+: few-shot accepted", logs[name].read_text()))

    with ExitStack() as devices:
        with site.running() as service:
            for name in DEVICES:
                _, *line = command("device", "add", name, "--dir", site.folder / "enrolment").split()
                command(*line, "--state", states[name])
                enrolments[name] = (states[name] / "enrolment.json").read_bytes()
            first = devices.enter_context(join("pi-1"))
            with join("pi-2") as second:
                eventually(lambda: accepted("pi-2") >= 2)
                second.send_signal(
                    signal.SIGSTOP
                )  # so that a round stays open, with one of two contributions
                eventually(lambda: accepted("pi-1") > accepted("pi-2"))
                before = site.state(command, lines)
                subprocess.run([site.folder / "backup.sh", tmp_path / "archives"], check=True, timeout=60)
                acknowledged = accepted("pi-1")
                second.send_signal(signal.SIGCONT)
                eventually(lambda: accepted("pi-1") > acknowledged + 1)  # what the backup does not have
                service.send_signal(signal.SIGKILL)
        (tmp_path / "old").rename(tmp_path / "burnt")

        place = Site(tmp_path / "another-machine" / "fl", launched, eventually)
        place.folder.mkdir(parents=True)
        for archive in sorted((tmp_path / "archives").iterdir()):
            subprocess.run(["tar", "-xf", archive, "-C", place.folder], check=True)
        port, http = free_ports()
        replace_in(place.folder / "server.toml", f"port = {old_http}", f"port = {http}")
        out = command("serve", "init", place.folder, "--again", "--port", port, *USER)
        assert f"join mqtts://localhost:{port}" in out
        assert {path.name for path in place.folder.glob("*.old")} >= {"backup.sh.old", "compose.yaml.old"}
        for path in place.folder.rglob("*"):
            if path.is_file() and path.suffix in (".toml", ".yaml", ".yml", ".conf", ".sh"):
                assert str(site.folder) not in path.read_text(), path
        after = place.state(command, lines)
        assert after.pop("audit")[: len(before["audit"])] == before.pop("audit")
        assert after == before

        with place.running() as service, closing(Proxy(f"mqtts://localhost:{port}", True, old_port)):
            second = devices.enter_context(join("pi-2", f"mqtts://localhost:{port}"))
            assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (0, 0), place.log.read_text()
            assert "not receipted" not in logs["pi-1"].read_text()
            service.terminate()
            assert service.wait(PATIENCE_S) == 0
            subprocess.run([place.folder / "backup.sh"], check=True, timeout=60)
    done = place.state(command, lines)
    assert done["counted"][: len(before["counted"])] == before["counted"]
    assert Counter(done["counted"]) == Counter((n, name) for n in range(1, ROUNDS + 1) for name in DEVICES)
    assert done["models"][: len(before["models"])] == before["models"]
    assert [entry.action for entry in place.audit()].count("start") == 2
    assert {name: (states[name] / "enrolment.json").read_bytes() for name in DEVICES} == enrolments
