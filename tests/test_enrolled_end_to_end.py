"""A broker set up for production, devices enrolled at it, and real rounds: who takes part, and who not."""

import json
import os
import pwd
import queue
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest

from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.signing import Signer
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions

pytestmark = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
PATIENCE_S = 300.0


@pytest.fixture
def command(program):
    """The command, run to its end."""

    def run(*arguments):
        words = [program, *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)

    return run


@pytest.fixture
def build(tmp_path, command, launched, digits_in, lines):
    """Set up an enrolment; `web`: who is enrolled to connect over WebSockets."""
    return lambda web=(): Enrolled(tmp_path, (command, launched, digits_in, lines), web)


class Enrolled:
    """The folder of a broker, Mosquitto on it, and the folders of devices."""

    def __init__(self, folder, tools, web):
        self.folder, self.web = folder, web
        self._command, self._launched, self._digits_in, self._lines = tools
        self.site = folder / "enrolment"
        user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []
        ports = set()
        while len(ports) < 2:
            ports.add(find_port(BrokerOptions()))
        port, web_port = ports
        listeners = ["--port", port, *(["--websockets", web_port] if web else [])]
        process = self._command("broker", "init", self.site, "--name", "127.0.0.1", *listeners, *user)
        assert process.returncode == 0, process.stderr
        self.start = next(line.strip() for line in process.stdout.splitlines() if "-c " in line).split()

    def mosquitto(self):
        return self._launched(self.folder / "mosquitto.log", other=tuple(self.start))

    def running(self):
        return "running" in (self.folder / "mosquitto.log").read_text()

    def enrol(self, name):
        """As an operator does: the line that is printed, pasted on the device."""
        web = ["--websockets"] if name in self.web else []
        added = self._command("device", "add", name, "--dir", self.site, *web)
        program, *line = added.stdout.split()
        assert (program, added.returncode) == ("device-runtime", 0), added.stderr
        joined = self._command(*line, "--state", self.folder / name)
        assert joined.returncode == 0, joined.stderr

    def join(self, name, *extra):
        settings = ("--data", self._digits_in(self.folder / f"{name}.npz"), "--state", self.folder / name)
        return self._launched(self.folder / f"{name}.log", "join", *settings, *extra)

    def serve(self, rounds, *extra):
        options = f"--bundle digits-wrn-10-1 --kinds few-shot --rounds {rounds} --deadline 120".split()
        run = ["--enrolment", self.site, "--run-dir", self.folder / "run", "--min-devices", "2", *extra]
        return self._launched(self.folder / "serve.log", "serve", *options, *run)

    def log_of(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def contributions(self):
        return self._lines(self.folder / "run" / "contributions.jsonl")


def test_two_enrolled_devices_take_part_over_tls_and_whoever_is_not_let_in_does_not(
    build, command, eventually, tmp_path
):
    enrolled = build()
    with enrolled.mosquitto() as broker:
        eventually(enrolled.running)
        for name in ("pi-1", "pi-2", "pi-3"):
            enrolled.enrol(name)
        revoked = command("device", "revoke", "pi-3", "--dir", enrolled.site)
        assert "has been told" in revoked.stderr
        enrolment = Enrolment.load(tmp_path / "pi-1")
        with enrolled.join("pi-1", "--until-done") as first, enrolled.join("pi-2", "--until-done") as two:
            eventually(
                lambda: "connected" in enrolled.log_of("pi-1") and "connected" in enrolled.log_of("pi-2")
            )

            # An offer of somebody else who may speak to all, by the broker's own word, is not acted on.
            forger = Link(
                BrokerFolder(enrolled.site).for_aggregator, "forger", queue.SimpleQueue(), LinkOptions()
            )
            forger.connect()
            forged = _offer(b"forged")
            for payload in (Signer(bytes(32)).seal(topics.down("pi-1", "task"), forged, 1), b"\x93\x03"):
                forger.publish(topics.down("pi-1", "task"), payload)
            eventually(lambda: enrolled.log_of("pi-1").count("refused: it is not signed") == 2)
            forger.close()

            with enrolled.join("pi-3") as out:
                assert out.wait(PATIENCE_S) == 2
            assert "refused user 'pi-3'" in enrolled.log_of("pi-3")

            with enrolled.serve(2) as service:
                assert service.wait(PATIENCE_S) == 0, enrolled.log_of("serve")
            assert (first.wait(PATIENCE_S), two.wait(PATIENCE_S)) == (0, 0)
        assert {(c["round"], c["device"]) for c in enrolled.contributions()} == {
            (number, name) for number in (1, 2) for name in ("pi-1", "pi-2")
        }
        assert enrolment.password not in enrolled.log_of("pi-1") + enrolled.log_of("serve")

        examined = command("doctor", "--state", tmp_path / "pi-1", "--format", "json")
        assert examined.returncode == 0, examined.stdout
        findings = {finding["what"]: finding for finding in json.loads(examined.stdout)}
        for what in (
            "enrolment",
            "broker",
            "tls",
            "credentials",
            "own branch",
            "access list",
            "packet limit",
        ):
            assert findings[what]["state"] == "ok", findings[what]
        assert "no aggregator has offered anything" in findings["offer"]["found"]  # the task is over
        assert findings["clock"]["state"] == "ok"
        assert command("doctor", "--state", tmp_path / "pi-3").returncode == 1
        broker.send_signal(signal.SIGTERM)


@pytest.mark.slow
def test_devices_over_web_sockets_and_one_over_tcp_go_on_where_mosquitto_was_killed(
    build, command, eventually, tmp_path
):
    names, rounds = ("pi-1", "pi-2", "pi-3"), 5
    enrolled = build(names[:2])
    with ExitStack() as stack:
        with enrolled.mosquitto() as broker:
            eventually(lambda: enrolled.running() or broker.poll() is not None)
            if "Websockets support not available" in enrolled.log_of("mosquitto"):
                pytest.skip("this mosquitto was built without WebSockets")
            for name in names:
                enrolled.enrol(name)
            devices = [stack.enter_context(enrolled.join(name, "--until-done")) for name in names]
            service = stack.enter_context(enrolled.serve(rounds, "--min-contributions", len(names)))
            eventually(lambda: len(enrolled.contributions()) >= len(names))
            broker.kill()
        stack.enter_context(enrolled.mosquitto())
        assert service.wait(PATIENCE_S) == 0, enrolled.log_of("serve")
        assert [device.wait(PATIENCE_S) for device in devices] == [0] * len(names)
        urls = {name: Enrolment.load(tmp_path / name).url for name in names}
        assert [url.partition("://")[0] for url in urls.values()] == ["wss", "wss", "mqtts"]
        assert all(f"connected to {url} again" in enrolled.log_of(name) for name, url in urls.items())
        examined = command("doctor", "--state", tmp_path / "pi-1", "--format", "json")
        states = {finding["what"]: finding["state"] for finding in json.loads(examined.stdout)}
        named = ("broker", "tls", "credentials", "access list")
        assert {what: states[what] for what in named} == dict.fromkeys(named, "ok")
        assert states["offer"] == "missing"  # the service has ended
    counted = Counter((row["round"], row["device"]) for row in enrolled.contributions())
    assert counted == Counter((number, name) for number in range(1, rounds + 1) for name in names)


@pytest.mark.slow
def test_an_aggregator_with_another_key_gets_no_update(build, eventually):
    enrolled = build()
    with enrolled.mosquitto():
        eventually(enrolled.running)
        enrolled.enrol("pi-1")
        (enrolled.site / "aggregator.key").unlink()  # it is made anew, on first need
        with enrolled.join("pi-1") as device, enrolled.serve(1, "--min-devices", "1"):
            eventually(lambda: "refused: it is not signed by the aggregator" in enrolled.log_of("pi-1"))
            assert device.poll() is None
        assert not enrolled.contributions()


def _offer(content):
    from device_runtime.broker.wire.blobs import blob_of
    from device_runtime.broker.wire.messages import Base, Offer

    blob = blob_of(content)
    return Offer(
        task="task",
        run="forged",
        round=1,
        seed=1,
        deadline_s=120.0,
        remaining_s=120.0,
        bundle=blob,
        base=Base(checkpoint=(blob,), sha=blob.sha),
        kinds=(),
    )


def test_a_board_enrols_checks_its_data_installs_a_service_and_leaves_without_a_trace(
    build, command, eventually, tmp_path, digits_in
):
    """The unit's own command joins in the end; systemd itself is a script that notes its arguments."""
    enrolled = build()
    units, log, tools = tmp_path / "units", tmp_path / "systemctl.log", tmp_path / "bin"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {log}\n')
        (tools / name).chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(units),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip
    booted = (
        "import sys; from device_runtime.cli import main; from device_runtime.device.service import install; "
        "install.service_manager = lambda env: 'user'; sys.exit(main(sys.argv[1:]))"
    )

    def board(*words, typed=""):
        """The command on a machine that was booted by systemd, and whose token is typed."""
        line = [sys.executable, "-c", booted, *map(str, words)]
        return subprocess.run(
            line, input=typed, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )

    photos = digits_in(tmp_path / "photos.npz", slice(100))
    with enrolled.mosquitto():
        eventually(enrolled.running)
        added = command("device", "add", "pi-1", "--dir", enrolled.site)
        token = added.stdout.split()[added.stdout.split().index("--enrol") + 1]
        with enrolled.serve(1, "--min-devices", "1"):
            eventually(lambda: (enrolled.folder / "run").exists() and "round" in enrolled.log_of("serve"))
            joined = board("join", "--enrol", "-", "--data", photos, "--service", typed=token)
            assert joined.returncode == 0, joined.stderr + joined.stdout
            assert joined.stdout.startswith("enrolled as pi-1 at mqtts://127.0.0.1:")
            assert "for which pi-1 is enrolled" in joined.stdout
            assert "digits-wrn-10-1: 100 samples" in joined.stdout
            folder = tmp_path / "state" / "device-runtime" / "pi-1"
            assert f"device-runtime leave --state {folder}" in joined.stdout
            assert "journalctl --user -u device-runtime-pi-1 -f" in joined.stdout
            unit = units / "systemd" / "user" / "device-runtime-pi-1.service"
            [line] = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=:")]
            assert "systemctl --user restart device-runtime-pi-1.service" in log.read_text()
            words = [word.strip('"') for word in line.removeprefix("ExecStart=:").split()]
            with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE):
                eventually(enrolled.contributions)
                left = board("leave", "--state", folder, "--yes")
            assert left.returncode == 0, left.stderr
            assert f"removed {unit}" in left.stdout
            assert not unit.exists() and not folder.exists()
