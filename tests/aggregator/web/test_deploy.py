"""What lies in deploy/, as far as a machine can check it without starting containers."""

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from aggregator import config
from aggregator import task as tasks
from aggregator.exits import Exit
from aggregator.web.metrics import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_server_file_and_its_task_are_meant():
    server = config.load(DEPLOY / "server.toml", {})
    assert server.tasks == (DEPLOY / "task.toml",)
    assert tasks.load(server.tasks[0], {}).name == "digits"


def test_systemd_reads_the_unit():
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = DEPLOY / "device-runtime.service"
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "/opt/device-runtime/bin" not in line]
    assert [line for line in complaints if "device-runtime.service" in line] == []
    assert f"RestartPreventExitStatus={Exit.SETTINGS:d} {Exit.MISSING:d}\n" in unit.read_text()


def test_the_compose_file_has_all_that_it_mounts():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(compose["services"]) == {"mosquitto", "aggregator", "prometheus"}
    volumes = [mount.split(":")[0] for one in compose["services"].values() for mount in one["volumes"]]
    for mount in volumes:
        there = (DEPLOY / mount).exists() or mount.startswith("./secrets/") or mount in compose["volumes"]
        assert there, mount
    assert all(port.startswith("127.0.0.1:") for one in compose["services"].values() for port in one["ports"])
    assert (DEPLOY / compose["services"]["aggregator"]["build"]["context"] / "deploy/Dockerfile").exists()


def test_alerts_ask_for_metrics_that_there_are(tmp_path, clock):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    from aggregator.observer import Refused

    from .test_watch import hosted

    metrics = Metrics()
    metrics.observe(hosted(tmp_path, clock))(Refused("pi", 1, "full", "refused", ""))
    there = metrics.text().decode()
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    names = set(re.findall(r"device_runtime_\w+", " ".join(rule["expr"] for rule in rules)))
    assert len(names) >= 4
    assert [name for name in names if name not in there] == []


def test_mosquitto_takes_its_configuration(tmp_path, eventually):
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if not program or not shutil.which("mosquitto_passwd"):
        pytest.skip("mosquitto is not installed")
    text = (DEPLOY / "mosquitto.conf").read_text()
    text = text.replace("/mosquitto/config/", f"{tmp_path}/").replace("/mosquitto/data/", f"{tmp_path}/")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = text.replace("listener 1883", f"listener {port} 127.0.0.1")
    text = text.replace("log_dest stdout", "log_dest stderr")  # to a file stdout is late
    (tmp_path / "mosquitto.conf").write_text(f"{text}user root\n")
    shutil.copy(DEPLOY / "access", tmp_path / "access")
    (tmp_path / "passwords").touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", tmp_path / "passwords", "aggregator", "x" * 16], check=True)
    log = tmp_path / "log"
    with log.open("wb") as out:
        running = subprocess.Popen([program, "-c", tmp_path / "mosquitto.conf"], stdout=out, stderr=out)
    try:
        assert eventually(lambda: "running" in log.read_text() or running.poll() is not None)
        assert running.poll() is None, log.read_text()
    finally:
        running.kill()
        running.wait()
