"""`device-runtime serve-init`: what it writes is started, joined, scraped and backed up, without Docker."""

import errno
import json
import os
import pwd
import re
import shutil
import ssl
import subprocess
import tarfile
import urllib.request
from argparse import Namespace
from pathlib import Path

import pytest

from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.security.audit import entries
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.broker_folder import SetupError
from device_runtime.broker.servers.production import AuthorityError
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.cli import main
from device_runtime.cli.operator import serve_init

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
USER = "root" if os.geteuid() == 0 else ""
PATIENCE_S = 300.0
KEYS = {
    *("image", "command", "user", "environment", "restart", "depends_on", "ports", "volumes", "ulimits"),
    *("stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt", "healthcheck"),
}
"""Keys of a service in the Compose specification, of those that the file may use."""


def init(folder, port=8883, http=8443, name="127.0.0.1", user=USER):
    words = {"folder": folder, "name": [name], "port": port, "http": http, "run_as": user, "again": False}
    return serve_init.run(Namespace(**words))


@pytest.fixture
def site(tmp_path):
    init(tmp_path / "site")
    return tmp_path / "site"


def of(path):
    return yaml.safe_load(path.read_text())


def test_all_that_is_written_is_meant_and_secrets_are_its_owner_s(site, capsys):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert [path for path in files if re.search(r"{{\w", path.read_text())] == []
    server = config.load(site / "server.toml", {})
    assert (server.run_dir, server.http.token_file) == (site / "run", site / "http-token")
    task = tasks.load(server.tasks[0], {})
    assert (task.name, task.statistics.hold_out) == ("digits", 0.1)
    for name in (*serve_init.SECRETS, "enrolment/ca.key", "enrolment/aggregator.password"):
        assert (site / name).stat().st_mode & 0o077 == 0, name
    assert site.stat().st_mode & 0o077 == 0


def test_it_is_two_words_or_one(tmp_path, capsys):
    words = ("--name", "localhost", *(("--run-as", USER) if USER else ()))
    assert main(["serve", "init", str(tmp_path / "a"), *words]) == 0
    assert main(["serve-init", str(tmp_path / "b"), *words]) == 0
    out = capsys.readouterr().out
    for line in (
        "docker compose -f {}/compose.yaml up -d",
        "device-runtime device add NAME --dir {}/enrolment",
    ):
        assert line.format(tmp_path / "b") in out


def test_again_leaves_what_an_operator_edited_and_says_where_ports_differ(site, capsys):
    prometheus, server = site / "prometheus.yml", site / "server.toml"
    prometheus.write_text(
        prometheus.read_text().replace("aggregator:8443", "localhost:8443") + "alerting: {}\n"
    )
    edited = prometheus.read_text()
    again = ["serve-init", str(site), "--again", *(("--run-as", USER) if USER else ())]
    assert main(again) == 0
    assert "nothing, as all is so" in capsys.readouterr().out
    server.write_text(server.read_text().replace("port = 8443", "port = 9443"))
    assert main(again) == 0
    assert "prometheus.yml names another port than 9443" in capsys.readouterr().out
    assert prometheus.read_text() == edited


def test_a_folder_that_may_not_be_written_is_refused_with_the_command_that_makes_it(
    tmp_path, monkeypatch, capsys
):
    def refuse(self, *_args, **_keywords):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(["serve-init", str(tmp_path / "fl"), *(("--run-as", USER) if USER else ())]) == 2
    assert (
        f"sudo install -d -m 700 -o {pwd.getpwuid(os.geteuid()).pw_name} {tmp_path / 'fl'}"
        in capsys.readouterr().err
    )


def test_the_compose_file_has_all_that_it_mounts_and_opens_no_more_than_broker_and_https(site):
    compose = of(site / "compose.yaml")
    assert set(compose["services"]) == {"mosquitto", "aggregator", "prometheus", "grafana"}
    for name, service in compose["services"].items():
        assert set(service) <= KEYS, name
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        for mount in service["volumes"]:
            assert mount.startswith("/dev/null:") or (site / mount.split(":")[0]).exists(), mount
        assert re.fullmatch(r"\d+:\d+", service["user"])
    outside = [
        port
        for service in compose["services"].values()
        for port in service["ports"]
        if not port.startswith("127.0.0.1:")
    ]
    assert outside == ["8883:8883", "8443:8443"]
    masked = [
        mount for service in compose["services"].values() for mount in service["volumes"] if "ca.key" in mount
    ]
    whole = [
        service
        for service in compose["services"].values()
        if f"./enrolment:{site}/enrolment" in service["volumes"]
    ]
    assert len(masked) == len(whole) == 2


def test_docker_reads_the_compose_file(site):
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        ["docker", "compose", "-f", site / "compose.yaml", "config", "--quiet"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "ex ample.org"}, "cannot stand in a certificate"),
        ({"port": 8443}, "expected two from 1 to 65535"),
        ({"http": 70000}, "expected two from 1 to 65535"),
        ({"user": "nobody-of-this-name"}, "no user of this machine is called"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, options, message):
    with pytest.raises((SetupError, AuthorityError), match=message):
        init(tmp_path / "site", **options)


def test_a_folder_that_is_not_free_and_one_that_compose_cannot_name_are_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "server.toml").write_text("mine")
    (tmp_path / "file").touch()
    for name, message in (("full", "is not empty"), ("file", "is a file"), ("a: b", "expected a path of")):
        with pytest.raises(SetupError, match=message):
            init(tmp_path / name)
    assert (tmp_path / "full" / "server.toml").read_text() == "mine"
    if os.geteuid() == 0:
        with pytest.raises(SetupError, match="--run-as"):
            init(tmp_path / "as-root", user="")


def test_the_board_and_the_alerts_have_the_form_that_grafana_and_prometheus_read(site):
    board = json.loads((site / "grafana" / "device-runtime.json").read_text())
    source = of(site / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"][0]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    rules = of(site / "alerts.yml")["groups"][0]["rules"]
    assert all(
        {"alert", "expr", "annotations"} <= set(rule) <= {"alert", "expr", "for", "annotations"}
        for rule in rules
    )
    assert of(site / "prometheus.yml")["rule_files"] == ["alerts.yml"]


def test_the_page_says_of_every_alert_what_to_do(site):
    page = (Path(__file__).parents[3] / "docs" / "service.md").read_text()
    section = page.split("\n## Ten alerts, and what to do\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| .{20,} \| .{20,} \|$", section, re.MULTILINE)
    assert listed == [rule["alert"] for rule in of(site / "alerts.yml")["groups"][0]["rules"]]
    assert len(listed) == 10


def scraped(site, port):
    """The metrics, read as prometheus.yml says."""
    job = of(site / "prometheus.yml")["scrape_configs"][0]
    trust = ssl.create_default_context(cafile=site / job["tls_config"]["ca_file"])
    token = (site / job["authorization"]["credentials_file"]).read_text().strip()
    request = urllib.request.Request(  # noqa: S310 - ours
        f"{job['scheme']}://{job['tls_config']['server_name']}:{port}/metrics",
        headers={"Authorization": f"{job['authorization']['type']} {token}"},
    )
    with urllib.request.urlopen(request, context=trust, timeout=120) as answer:  # noqa: S310
        return answer.read().decode()


@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_devices_join_over_tls_what_is_watched_is_exported_and_a_backup_is_made(
    tmp_path, program, launched, digits_in, eventually
):
    site, port, http = tmp_path / "site", find_port(BrokerOptions()), find_port(BrokerOptions())
    init(site, port, http)
    task = (site / "task.toml").read_text().replace("rounds = 100", "rounds = 1")
    (site / "task.toml").write_text(f'{task}\n[[kinds]]\nname = "few-shot"\n')
    log = tmp_path / "serve.log"
    with launched(
        tmp_path / "mosquitto.log", other=(mosquitto.find(), "-c", str(site / "enrolment/mosquitto.conf"))
    ):
        eventually(lambda: "running" in (tmp_path / "mosquitto.log").read_text())
        with launched(log, "serve", "--config", site / "server.toml") as service:
            for name in ("pi-1", "pi-2"):
                add = [program, "device", "add", name, "--dir", site / "enrolment"]
                line = subprocess.run(add, capture_output=True, text=True, check=True).stdout.split()[1:]
                subprocess.run([program, *line, "--state", tmp_path / name], check=True, capture_output=True)
            data = digits_in(tmp_path / "digits.npz")
            joined = ("join", "--data", data, "--until-done", "--state")
            with (
                launched(tmp_path / "1.log", *joined, tmp_path / "pi-1") as first,
                launched(tmp_path / "2.log", *joined, tmp_path / "pi-2") as second,
            ):
                assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0, log.read_text()
            text = eventually(lambda: (t := scraped(site, http)) and "rounds_closed_total{" in t and t)
            done = subprocess.run([site / "backup.sh"], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
            assert "serve-init DIR --again" in done.stdout
            service.terminate()
            assert service.wait(PATIENCE_S) == 0, log.read_text()
    actions = [[entry.action for entry in reversed(entries([site / name]))] for name in ("run", "enrolment")]
    assert actions == [["start", "backup", "stop"], ["enrol", "enrol"]]
    assert 'device_runtime_rounds_closed_total{task="digits"} 1.0' in text
    watched = [site / "alerts.yml", site / "grafana" / "device-runtime.json"]
    names = {name for path in watched for name in re.findall(r"device_runtime_\w+", path.read_text())}
    assert len(names) > 15
    assert {name for name in names if not re.search(rf"^{name}[{{ ]", text, re.MULTILINE)} == set()
    archives = {path.name.partition("-")[0]: path for path in (site / "backups").iterdir()}
    assert set(archives) == {"run", "site"}
    with tarfile.open(archives["site"]) as archive:
        assert {"./server.toml", "./enrolment/ca.key", "./enrolment/devices.json"} <= set(archive.getnames())
    with tarfile.open(archives["run"]) as archive:
        assert any(name.endswith("/run.sqlite") for name in archive.getnames())
