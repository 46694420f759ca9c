"""Passwords and tokens that others on the machine could see: by `ps`, in a shell's history, in a file."""

import argparse
import re
from contextlib import suppress
from pathlib import Path

import pytest

from device_runtime.aggregator.configuration.config import BrokerSection, broker_for
from device_runtime.aggregator.errors import ConfigError
from device_runtime.broker.errors import UrlError
from device_runtime.broker.wire.url import PASSWORD_VARIABLE, BrokerUrl
from device_runtime.cli import main
from device_runtime.cli.on_device import join, service
from device_runtime.device.connection.connecting import connect
from device_runtime.device.service.install import ServiceCommand

ROOT = Path(__file__).parents[2]
SECRET = "se:cr@t/"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def options(tmp_path, monkeypatch):
    """The options of `join` that these words give."""
    monkeypatch.setattr("platformdirs.user_state_dir", lambda *_a, **_k: str(tmp_path / "state"))

    def read(*words):
        parser = argparse.ArgumentParser()
        join.add_arguments(parser)
        return parser.parse_args(words)

    return read


def test_a_password_is_read_from_a_file_for_the_user_of_the_url_or_of_the_name(file, options):
    for words in (["mqtts://pi@broker.example"], ["mqtts://broker.example", "--name", "pi"]):
        url = connect(options(*words, "--password-file", str(file))).url
        assert (url.user, url.password) == ("pi", SECRET)


def test_a_password_is_read_from_the_environment_where_the_url_has_a_user_and_none(options, monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    for url, password in (
        ("mqtts://pi@broker.example", SECRET),
        ("mqtts://pi:other@broker.example", "other"),
        ("mqtts://broker.example", None),
    ):
        assert connect(options(url)).url.password == password


@pytest.mark.parametrize(
    ("url", "content", "message"),
    [
        ("mqtts://pi:x@broker.example", SECRET, "give one of them"),
        ("mqtts://broker.example", SECRET, "Name the user in the URL"),
        ("mqtts://pi@broker.example", "", "one line, the password"),
        ("mqtts://pi@broker.example", "a\nb", "one line, the password"),
        ("mqtts://pi@broker.example", None, "no such file"),
    ],
)
def test_a_password_file_that_cannot_be_meant_is_refused_without_its_content(
    tmp_path, options, url, content, message
):
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UrlError, match=message) as refused:
        connect(options(url, "--password-file", str(file)))
    assert SECRET not in str(refused.value)


def test_a_password_file_that_others_can_read_is_named(file, caplog):
    file.chmod(0o644)
    BrokerUrl.parse("mqtts://pi@broker.example").with_password(file)
    assert f"chmod 600 {file}" in caplog.text
    assert SECRET not in caplog.text


def test_the_aggregator_reads_a_password_for_the_user_of_its_url(file, tmp_path, monkeypatch):
    url = "mqtts://aggregator@broker.example"
    assert broker_for(BrokerSection(url=url, password_file=file), tmp_path)[1].password == SECRET
    with pytest.raises(ConfigError, match="for whom"):
        broker_for(BrokerSection(url="mqtts://broker.example", password_file=file), tmp_path)
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    assert broker_for(BrokerSection(url=url), tmp_path)[1].password == SECRET


@pytest.mark.parametrize(
    ("url", "warned"), [("mqtts://broker.example", True), ("mqtt://127.0.0.1:1883", False), ("auto", False)]
)
def test_the_aggregator_warns_of_a_broker_elsewhere_at_which_nobody_is_enrolled(
    tmp_path, caplog, url, warned
):
    broker, url_of_broker = broker_for(BrokerSection(url=url), tmp_path)
    if broker:
        broker.stop()
        assert url_of_broker.loopback
    assert ("no devices are enrolled at" in caplog.text) == warned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["join", "mqtts://pi:secret@broker.invalid", "--data", "x"], "--password-file"),
        (["doctor", "--broker=wss://pi:secret@broker.invalid/mqtt", "--state", "x"], "--password-file"),
        (["mask-helper", "mqtts://pi:secret@broker.invalid", "--state", "/dev/null"], "--password-file"),
        (["serve", "--broker", "mqtts://a:secret@broker.invalid", "--bundle", "none"], "--password-file"),
        (["edge", "mqtts://a:secret@broker.invalid", "--state", "/dev/null"], "--password-file"),
        (["join", "mqtt://127.0.0.1:1", "--data", "x", "--meter", "mqtt://u:secret@h/t"], "for --config"),
        (["join", "--enrol", "fl1.secret", "--state", "x"], "--enrol - reads it from stdin"),
    ],
)
def test_a_password_or_token_on_a_command_line_is_warned_of(tmp_path, monkeypatch, caplog, words, message):
    monkeypatch.chdir(tmp_path)
    with suppress(Exception, SystemExit):  # none of them comes far
        main(words)
    assert "everybody on this machine can see" in caplog.text
    assert message in caplog.text
    assert "secret" not in caplog.text


def test_no_warning_where_nothing_is_to_be_seen(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    main(["doctor", "--broker", "mqtt://pi@127.0.0.1:1", "--state", "x", "--bundle", "none"])
    assert "can see" not in caplog.text


def test_a_service_keeps_a_password_of_the_environment_in_a_file_of_its_owner(tmp_path, options, monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    folder = tmp_path / "device"
    folder.mkdir()
    arguments = options("mqtts://pi@broker.example", "--data", str(tmp_path), "--state", str(folder))
    text = service.write_settings(arguments, join.add_arguments).read_text()
    file = folder / service.PASSWORD
    assert file.read_text() == SECRET + "\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert SECRET not in text
    assert f'password_file = "{file}"' in text
    command = ServiceCommand("pi", ("device-runtime", "join", "--config", "x"), folder)
    assert SECRET not in repr(command)


def test_no_page_shows_a_command_with_a_password():
    pattern = re.compile(r"(?:mqtts?|wss?|postgres(?:ql)?)://[^/@\s:`]+:[^/@\s`]+@|--enrol TOKEN")
    pages = [
        ROOT / "README.md",
        *(p for name in ("docs/*.md", "deploy/**/*", "broker/*.md") for p in ROOT.glob(name)),
    ]
    for page in pages:
        if page.is_file():
            assert not pattern.search(page.read_text()), page
