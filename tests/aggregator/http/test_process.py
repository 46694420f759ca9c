"""How the service starts and ends: its settings, and the numbers it leaves with."""

import re
import socket
from pathlib import Path

import pytest

from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.errors import ConfigError
from device_runtime.service_process import Exit

TASK = 'bundle = "digits-wrn-10-1"\n'


@pytest.mark.slow
def test_each_failure_leaves_with_its_own_number_and_names_the_key(started):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        silent = f'[broker]\nurl = "mqtt://127.0.0.1:{port}"\n'
        cases = (
            ('[http]\nport = "x"', Exit.SETTINGS, "http.port: expected `int`"),
            ('tasks = ["task.toml"]\n[broker]\nurl = "http://x"', Exit.SETTINGS, "not a broker URL"),
            ('tasks = ["task.toml"]\n[broker]\nurl = "mqtt://127.0.0.1:1"', Exit.BROKER, "no broker answers"),
            (
                f'tasks = ["task.toml"]\n{silent}[http]\nport = {port}',
                Exit.ADDRESS,
                "http.port: cannot listen",
            ),
            (
                f'tasks = ["task.toml"]\n{silent}[http]\nport = 0\ncert = "task.toml"\nkey = "task.toml"',
                Exit.SETTINGS,
                "http.cert, http.key: cannot use",
            ),
            ('tasks = ["task.toml"]\nrun_dir = "task.toml"\n[broker]\nport = 0', Exit.FOLDER, "run folder"),
        )
        for text, code, message in cases:
            status, output = started(text, **{"task.toml": TASK})
            assert (status, message in output) == (code, True), output
            assert "Traceback" not in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = [3]", "tasks[0]: expected a path, as a string"),
        ("taskz = []", "taskz: there is no such key; there are tasks, run_dir, workers, max_devices"),
        ("[http]\nprot = 1", "http.prot: there is no such key; there are host, port"),
        ("[http]\nport = 65536", "http.port: expected `int` <= 65535"),
        ("http = 3", "http: expected a table"),
        (
            '[http]\nhost = "0.0.0.0"',
            "http.host = 0.0.0.0 would send the token over the network in the clear",
        ),
        ('[http]\nhost = "0.0.0.0"\nopen = true', "http.open = true on 0.0.0.0 would show everything"),
        ('[http]\nopen = true\ntoken_file = "t"', "http.open = true asks for no token"),
        ('[http]\ncert = "c.pem"', "http.cert and http.key go together"),
        ('[broker]\nuser = "a"', "broker.user and broker.password_file go together"),
        ("max_devices = 0", "max_devices: expected `int` >= 1"),
        ('[log]\nformat = "xml"', "log.format: expected one of 'text', 'json', not 'xml'"),
        ("[http", "is not TOML"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_with_file_and_key(tmp_path, text, message):
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, {})
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_flags_stand_over_the_file_and_paths_are_near_the_file(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text(
        'tasks = ["a.toml"]\nrun_dir = "run"\n[http]\nport = 1\ntoken_file = "t"\n[broker]\nca = "/ca.pem"'
    )
    server = config.load(file, {"http": {"port": 2}, "log": {"format": "json"}, "broker": {}})
    assert server.tasks == (tmp_path / "a.toml",)
    assert server.run_dir == tmp_path / "run"
    assert server.http.port == 2
    assert server.http.token_file == tmp_path / "t"
    assert str(server.broker.ca) == "/ca.pem"
    assert server.log.format == "json"
    assert config.load(None, {}).http is None


def test_the_numbers_stand_in_the_docs_as_they_are():
    text = (Path(__file__).parents[3] / "docs" / "service.md").read_text()
    assert {int(number) for number in re.findall(r"(?m)^\| (\d+) \|", text)} == set(Exit)
