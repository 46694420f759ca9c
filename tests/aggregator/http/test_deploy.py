"""What lies in deploy/, as far as a machine can check it without starting containers."""

import argparse
import json
import queue
import re
import shlex
import shutil
import socket
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.http.metrics import ProcessMetrics
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.errors import BrokerRefused
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.table import COMMANDS
from device_runtime.content import tomllib
from device_runtime.service_process import Exit

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_server_file_and_its_task_are_meant():
    server = config.load(DEPLOY / "server.toml", {})
    assert server.tasks == (DEPLOY / "task.toml",)
    assert tasks.load(server.tasks[0], {}).name == "digits"


@pytest.mark.parametrize(
    "name, person",
    [
        ("device-runtime", (Exit.SETTINGS, Exit.MISSING, Exit.FRUITLESS)),
        ("device-runtime-mask-helper", (Exit.SETTINGS, Exit.MISSING)),
    ],
)
def test_systemd_reads_the_units(name, person):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = DEPLOY / f"{name}.service"
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "/opt/device-runtime/bin" not in line]
    assert [line for line in complaints if unit.name in line] == []
    numbers = " ".join(f"{number:d}" for number in person)
    assert f"RestartPreventExitStatus={numbers}\n" in unit.read_text()


def test_options_of_the_commands_in_the_units_exist():
    for unit in DEPLOY.glob("*.service"):
        [line] = re.findall(r"^ExecStart=\S+/device-runtime (.*)$", unit.read_text(), re.MULTILINE)
        command, *words = shlex.split(line)
        parser = argparse.ArgumentParser(exit_on_error=False)
        import_module(COMMANDS[command].module).add_arguments(parser)
        parser.parse_args(words)


def test_the_compose_file_has_all_that_it_mounts():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(compose["services"]) == {"mosquitto", "aggregator", "prometheus"}
    volumes = [
        mount.split(":")[0] for service in compose["services"].values() for mount in service["volumes"]
    ]
    for mount in volumes:
        exists = (DEPLOY / mount).exists() or mount.startswith("./secrets/") or mount in compose["volumes"]
        assert exists, mount
    assert all(
        port.startswith("127.0.0.1:") for service in compose["services"].values() for port in service["ports"]
    )
    assert (DEPLOY / compose["services"]["aggregator"]["build"]["context"] / "deploy/Dockerfile").exists()


def test_alerts_ask_for_metrics_that_there_are(tmp_path, clock):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    from device_runtime.aggregator.machine.run_events import ContributionRefused

    from .test_watch import hosted

    metrics = ProcessMetrics()
    metrics.observe(hosted(tmp_path, clock))(ContributionRefused("pi", 1, "full", "refused", ""))
    text = metrics.text().decode()
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    names = set(re.findall(r"device_runtime_\w+", " ".join(rule["expr"] for rule in rules)))
    assert len(names) >= 4
    assert [name for name in names if name not in text] == []


def test_mosquitto_of_the_compose_file_has_the_limits_and_the_access_list_of_the_others():
    lines = (DEPLOY / "mosquitto.conf").read_text().splitlines()
    assert set(mosquitto.LIMITS) | {f"max_connections {mosquitto.CONNECTIONS}"} <= set(lines)
    assert (DEPLOY / "access").read_text() == mosquitto.access_list(BrokerOptions())


def test_every_image_and_what_is_installed_into_it_has_an_exact_version():
    files = [DEPLOY / "Dockerfile", DEPLOY / "device.Dockerfile", DEPLOY / "compose.yaml"]
    text = "\n".join(path.read_text() for path in files)
    images = re.findall(r"^(?:FROM|\s+image:) +(\S+)", text, re.MULTILINE)
    assert len(images) == 7
    for image in images:
        assert re.fullmatch(r"\S+(:v?\d+\.\d+\.\d+\S*|@sha256:[0-9a-f]{64})", image), image
    commands = re.findall(r"pip install (.*?)(?:&&|\n(?!\s))", text.replace("\\\n", " "), re.DOTALL)
    assert len(commands) == 4
    for command in commands:
        assert re.search(r"pip==\d+\.\d+", command) or "-c deploy/constraints.txt" in command, command
    assert "npm ci " in text


def test_constraints_name_all_that_the_images_install_in_versions_that_are_meant():
    from packaging.requirements import Requirement

    lines = (DEPLOY / "constraints.txt").read_text().splitlines()[1:]
    pinned = dict(line.split("==") for line in lines)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    requirements = [*project["project"]["dependencies"], *extras["aggregator"], *extras["service"]]
    for text in [*requirements, *project["build-system"]["requires"]]:
        requirement = Requirement(text)
        if requirement.name != "tomli":  # for a Python that no image has
            assert requirement.specifier.contains(pinned[requirement.name]), text


def test_what_a_page_loads_of_libraries_is_checked_by_its_hash():
    lock = json.loads((DEPLOY.parent / "web" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 10
    for name, entry in packages.items():
        assert entry["integrity"].startswith("sha512-"), name
        assert "resolved" not in entry, name


@pytest.fixture
def deployed(tmp_path):
    """A copy of deploy/ with its secrets, as an operator makes them, and a device called pi-1."""
    if not shutil.which("mosquitto_passwd") or not shutil.which("openssl"):
        pytest.skip("mosquitto_passwd and openssl are not installed")
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder, ignore=shutil.ignore_patterns("secrets"))
    for arguments in ((), ("pi-1", "its password")):
        subprocess.run(["sh", folder / "secrets.sh", *arguments], check=True, capture_output=True)
    return folder


def test_secrets_that_are_there_stay(deployed):
    secrets = deployed / "secrets"
    before = {path.name: path.read_text() for path in secrets.iterdir()}
    assert len(before["http_token"].strip()) == len(before["broker_password"].strip()) == 64
    subprocess.run(["sh", deployed / "secrets.sh"], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in secrets.iterdir()} == before
    assert secrets.stat().st_mode & 0o077 == 0


def test_mosquitto_of_the_compose_file_lets_in_whom_it_should_and_speaks_at_once(deployed, eventually):
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if not program:
        pytest.skip("mosquitto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (deployed / "mosquitto.conf").read_text()
    text = text.replace("listener 1883", f"listener {port} 127.0.0.1")
    text = text.replace("/mosquitto/config/passwords", f"{deployed}/secrets/passwords")
    text = text.replace("/mosquitto/config/access", f"{deployed}/access")
    text = text.replace("/mosquitto/data/", f"{deployed}/")
    (deployed / "mosquitto.conf").write_text(f"{text}user root\n")
    log = deployed / "log"
    with log.open("wb") as out:
        running = subprocess.Popen([program, "-c", deployed / "mosquitto.conf"], stdout=out, stderr=out)
    try:
        assert eventually(lambda: "running" in log.read_text() or running.poll() is not None)
        assert running.poll() is None, log.read_text()
        ours = (deployed / "secrets" / "broker_password").read_text().strip()
        for user, password in (("aggregator", ours), ("pi-1", "its password")):
            link = Link(BrokerUrl("127.0.0.1", port, user=user, password=password), user, queue.SimpleQueue())
            link.connect()
            assert link.connected
            link.close()
        with pytest.raises(BrokerRefused):
            Link(BrokerUrl("127.0.0.1", port), "stranger", queue.SimpleQueue()).connect()
    finally:
        running.kill()
        running.wait()
