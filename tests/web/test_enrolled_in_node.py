"""An enrolled JavaScript device, over TLS: it believes its aggregator alone, and follows it in few bytes."""

import os
import pwd
import re
import shutil
import subprocess

import pytest

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port

from .serving_pages import WEB

NODE = shutil.which("node")
pytestmark = [
    pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(
        NODE is None or not (WEB / "vendor" / "msgpack" / "index.mjs").exists(),
        reason="needs Node, and: npm ci && npm run vendor in web/",
    ),
]
PATIENCE_S = 300.0


@pytest.fixture
def command(program):
    """The command, run to its end: what it printed."""

    def run(*arguments):
        words = [program, *map(str, arguments)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def site(command, launched, eventually, tmp_path):
    """The folder of a broker for production that runs, with TLS over TCP and WebSockets."""
    folder, ports = tmp_path / "site", set()
    while len(ports) < 2:
        ports.add(find_port(BrokerOptions()))
    port, web = ports
    user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []
    text = command(
        "broker", "init", folder, "--name", "127.0.0.1", "--port", port, "--websockets", web, *user
    )
    start = next(line.strip() for line in text.splitlines() if "-c " in line).split()
    log = tmp_path / "mosquitto.log"
    with launched(log, other=tuple(start)):
        eventually(lambda: "running" in log.read_text())
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("web", [True, False])
def test_an_enrolled_javascript_device_follows_rounds_of_scalars_over_tls(
    web, site, command, launched, digits_in, lines, tmp_path
):
    added = command("device", "add", "js", "--dir", site, *(["--websockets"] if web else []))
    [token] = re.findall(r"fl1\.\S+", added)
    settings = ("--data", digits_in(tmp_path / "js.npz"), "--state", tmp_path / "js", "--until-done")
    task = ("--bundle", "digits-wrn-10-1", "--kinds", "zeroth-order", "--rounds", "5", "--deadline", "600")
    run = ("--enrolment", site, "--run-dir", tmp_path / "run")
    log = tmp_path / "js.log"
    with (
        launched(tmp_path / "serve.log", "serve", *task, *run) as service,
        launched(log, "--enrol", token, *settings, other=(NODE, str(WEB / "node" / "run.js"))) as device,
    ):
        assert service.wait(PATIENCE_S) == 0
        assert device.wait(600) == 0
    sent = lines(tmp_path / "run" / "contributions.jsonl")
    assert [(row["device"], row["round"]) for row in sent] == [("js", number) for number in range(1, 6)]
    assert all(row["bytes_up"] < 60 for row in sent if row["round"] > 2), "in few bytes"
    assert "ignored" not in log.read_text()
    assert token not in log.read_text()


def test_a_token_that_was_cut_is_refused_in_one_line(tmp_path):
    words = [NODE, str(WEB / "node" / "run.js"), "--enrol", "fl1.abc", "--data", "x", "--state", tmp_path]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    warning, refused = ended.stderr.splitlines()
    assert "can see the token on this command line" in warning and "fl1.abc" not in ended.stderr
    assert refused == "device-runtime: the token of the enrolment is cut or mistyped: paste it whole"


def test_a_token_on_the_standard_input_is_on_no_command_line(tmp_path):
    words = [NODE, str(WEB / "node" / "run.js"), "--enrol", "-", "--data", "x", "--state", tmp_path]
    ended = subprocess.run(words, input="fl1.abc\n", capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "device-runtime: the token of the enrolment is cut or mistyped: paste it whole\n"
