"""`device-runtime mask-helper` before it connects: its key, its settings, and its exit codes."""

import re
import shlex
import socket
import sys
from pathlib import Path

import pytest

from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.cli import main
from device_runtime.cli.operator import mask_helper
from device_runtime.device.agent.instance import folder_lock
from device_runtime.device.service import install
from device_runtime.mask_helper.ledger import FILE
from device_runtime.service_process import Exit

URL = "mqtt://127.0.0.1:1"


@pytest.fixture
def state(tmp_path):
    return tmp_path / "club"


@pytest.fixture
def key(state, capsys):
    """The key as it is printed, of the helper with this name."""

    def printed(name="club", folder=state):
        assert main(["mask-helper", URL, "--name", name, "--state", str(folder), "--print-key"]) == 0
        return capsys.readouterr().out

    return printed


def test_the_key_is_printed_as_an_aggregator_takes_it_and_stays(key, state, tmp_path):
    first = key()
    assert re.fullmatch(r"club=[0-9a-f]{64}\n", first)
    assert key() == first
    assert key("site-b", tmp_path / "b") != first.replace("club", "site-b")
    assert (state / FILE).stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700


def ends(capsys, *arguments, code):
    """The one line that it ends with."""
    assert main(["mask-helper", *map(str, arguments)]) == code
    [*_, line] = capsys.readouterr().err.splitlines()
    return line


def test_each_failure_leaves_with_its_own_number(state, tmp_path, capsys, monkeypatch):
    ours = (URL, "--name", "club", "--state", state)
    assert "not a broker URL" in ends(capsys, "http://x", "--state", state, code=Exit.SETTINGS)
    assert "device name 'a/b'" in ends(capsys, URL, "--name", "a/b", code=Exit.SETTINGS)
    others = tmp_path / "others"
    others.mkdir()
    (others / "letter.txt").write_text("mine")
    assert "has other things in it" in ends(capsys, *ours[:4], others, code=Exit.FOLDER)
    assert main(["mask-helper", *map(str, ours), "--print-key"]) == 0
    with folder_lock(state):
        assert "is in use by process" in ends(capsys, *ours, code=Exit.FOLDER)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        output = ends(capsys, *ours, "--metrics", f"127.0.0.1:{port}", code=Exit.ADDRESS)
        assert f"--metrics 127.0.0.1:{port}: cannot listen there: Address already in use" in output
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "device_runtime.mask_helper.metrics", raising=False)
        patch.setitem(sys.modules, "prometheus_client", None)
        output = ends(capsys, *ours, "--metrics", "0", code=Exit.MISSING)
        assert "mask-helper needs the extra service: pip install 'device-runtime[service]'" in output
    (state / FILE).write_bytes(b"damaged" * 1000)
    assert "file is not a database" in ends(capsys, *ours, code=Exit.FOLDER)


@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_a_broker_that_refuses_is_told_apart(state, capsys):
    broker = brokers.start("mosquitto", BrokerOptions(users={"pi": "secret"}))
    try:
        words = (broker.url.replace("//", "//club:wrong@"), "--state", state)
        assert "refused user 'club'" in ends(capsys, *words, code=Exit.BROKER)
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (("--metrics", "nowhere"), "'nowhere' is not HOST:PORT, nor a port of this machine"),
        (("--metrics", "127.0.0.1:70000"), "'127.0.0.1:70000' is not HOST:PORT"),
        (("--min-group", "0"), "'0' is not a whole number, 1 or more"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_their_value(wrong, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["mask-helper", URL, *wrong])
    assert message in capsys.readouterr().err


def test_limits_may_stand_in_a_file_and_the_command_line_wins(state, tmp_path, monkeypatch):
    file, calls = tmp_path / "helper.toml", []
    file.write_text(f'broker = "{URL}"\nname = "club"\nstate = "{state}"\nmin-group = 7\nmost_values = 99\n')
    monkeypatch.setattr(mask_helper, "_serve", lambda options, *_: calls.append(options))
    assert main(["mask-helper", "--config", str(file), "--most-values", "1000"]) == 0
    [options] = calls
    assert (options.min_group, options.most_values, options.most_devices) == (7, 1000, 100_000)


def test_a_file_with_an_unknown_key_is_refused(tmp_path, capsys):
    file = tmp_path / "helper.toml"
    file.write_text("min_groups = 7\n")
    assert "min_groups" in ends(capsys, "--config", file, code=Exit.SETTINGS)


def test_a_service_runs_it_with_its_options_and_leave_takes_it_away(
    state, tmp_path, monkeypatch, capsys, key
):
    """`leave` removes key and ledger together: what was summed cannot be opened again."""
    ran, before = [], key()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(install, "run_command", lambda words: ran.append(words) or "")
    monkeypatch.setattr(install, "service_manager", lambda _env: "user")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    words = [URL, "--name", "club", "--state", str(state), "--min-group", "7", "--metrics", "127.0.0.1:9000"]
    assert main(["mask-helper", *words, "--service"]) == 0
    unit = (tmp_path / "config/systemd/user/device-runtime-club.service").read_text()
    assert ("systemctl", "--user", "restart", "device-runtime-club.service") in ran
    command = shlex.split(re.search(r"^ExecStart=:(.*)$", unit, re.MULTILINE)[1])
    assert command[1:] == ["mask-helper", "--config", str(state / "device.toml")]
    calls = []
    monkeypatch.setattr(mask_helper, "_serve", lambda options, *_: calls.append(options))
    assert main(command[1:]) == 0
    assert (calls[0].min_group, calls[0].metrics, calls[0].broker) == (7, "127.0.0.1:9000", URL)
    assert main(["leave", "--state", str(state), "--yes"]) == 0
    assert "a mask helper's key, and which masks it has summed" in capsys.readouterr().out
    assert not state.exists() and not list(Path(tmp_path).rglob("*.service"))
    assert key() != before
