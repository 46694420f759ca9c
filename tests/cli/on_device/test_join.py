"""`join`, as far as the link: who the device is, and where."""

import argparse
import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from nacl.signing import SigningKey

from device_runtime.broker.errors import BrokerRefused
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli import main, parse
from device_runtime.cli.on_device import join
from device_runtime.cli.options import tags
from device_runtime.device.connection.connecting import Connection
from device_runtime.models.errors import DataError


class Joined(Exception):
    """With whom a link would be made."""


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Run `join` with these arguments; returns (URL, client id)."""
    monkeypatch.setattr("device_runtime.device.connection.connecting._root", lambda: tmp_path / "state")
    (tmp_path / "samples.npz").write_bytes(b"")

    def new_link(url, client_id, *_):
        raise Joined(url, client_id)

    monkeypatch.setattr("device_runtime.device.agent.instance.Link", new_link)

    def run(*arguments):
        parser = argparse.ArgumentParser()
        join.add_arguments(parser)
        with pytest.raises(Joined) as caught:
            join.run(parse(parser, [*arguments, "--data", str(tmp_path / "samples.npz")]))
        return caught.value.args

    return run


KEY = bytes(SigningKey(bytes(32)).verify_key)


def enrolment(name):
    return Enrolment("mqtts://broker.example.org:8883", name, f"secret of {name}", b"der", KEY, 5)


def test_whoever_has_just_been_enrolled_joins_whoever_else_is_enrolled_here(joined):
    for name in ("pi-1", "pi-2"):
        url, client_id = joined("--enrol", enrolment(name).token)
        assert (url.user, client_id) == (name, enrolment(name).client_id)


def test_enrolled_by_another_address_it_is_still_the_one_that_was_enrolled(joined):
    url, client_id = joined("mqtts://192.0.2.7", "--enrol", enrolment("pi-1").token)
    assert (url.host, url.user, url.password) == ("192.0.2.7", "pi-1", "secret of pi-1")
    assert client_id == enrolment("pi-1").client_id


def test_joining_by_an_address_alone_past_an_enrolment_is_said(joined, caplog):
    joined("mqtts://192.0.2.7")
    assert caplog.text == ""
    joined("--enrol", enrolment("pi-1").token)
    url, _ = joined("mqtts://192.0.2.7")
    assert (url.user, url.password) == (None, None)
    assert "not enrolled: offers of any aggregator count" in caplog.text
    assert "enrolled here: pi-1; --name says which to join as" in caplog.text
    caplog.clear()
    joined("mqtts://192.0.2.7", "--name", "pi-1")
    assert caplog.text == ""


@pytest.fixture
def devices(tmp_path, monkeypatch):
    """Where the devices of this machine have their folders; the board's is there."""
    folder = tmp_path / "state"
    monkeypatch.setattr("device_runtime.device.connection.connecting._root", lambda: folder)
    (folder / "board" / "outbox").mkdir(parents=True)
    np.savez(tmp_path / "samples.npz", x=np.zeros((4, 1, 8, 8), np.float32), y=np.arange(4))
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield folder
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Refuses:
    """A link to a broker that does not let the device in."""

    bytes_up = bytes_down = 0

    def __init__(self, *_):
        pass

    def connect(self, *, stop):
        raise BrokerRefused("the broker at mqtt://127.0.0.1:1 refuses user 'a'")

    def close(self, farewell):
        assert farewell.topic == "fl/v1/d/a/up/state"


def test_a_device_whose_samples_are_not_there_leaves_no_folder(devices, tmp_path, capsys):
    assert main(["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "nothing")]) == 2
    assert [path.name for path in devices.iterdir()] == ["board"]
    assert main(["traffic"]) == 0  # there is one device, and no need to say which
    assert "say which" not in capsys.readouterr().err


def test_a_device_that_the_broker_refuses_leaves_no_folder(devices, tmp_path, monkeypatch):
    monkeypatch.setattr("device_runtime.device.agent.instance.Link", Refuses)
    words = ["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "samples.npz")]
    assert main([*words, "--in-process"]) == 2
    assert [path.name for path in devices.iterdir()] == ["board"]


def test_a_device_that_never_found_its_broker_leaves_no_folder(devices, tmp_path, monkeypatch):
    monkeypatch.setattr(  # stopped before one answered
        "device_runtime.device.agent.instance.first_connection", lambda *_, **__: False
    )
    words = ["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "samples.npz")]
    assert main([*words, "--in-process"]) == 0
    assert [path.name for path in devices.iterdir()] == ["board"]


def test_a_refused_device_that_was_there_before_keeps_its_folder(devices, tmp_path, monkeypatch):
    monkeypatch.setattr("device_runtime.device.agent.instance.Link", Refuses)
    (devices / "a" / "outbox").mkdir(parents=True)
    (devices / "a" / "outbox" / "update").write_text("of yesterday")
    words = ["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "samples.npz")]
    assert main([*words, "--in-process"]) == 2
    assert (devices / "a" / "outbox" / "update").read_text() == "of yesterday"


def test_an_empty_folder_that_was_given_stays_and_is_empty_again(devices, tmp_path, monkeypatch):
    monkeypatch.setattr("device_runtime.device.agent.instance.Link", Refuses)
    (tmp_path / "mine").mkdir()
    words = ["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "samples.npz")]
    assert main([*words, "--in-process", "--state", str(tmp_path / "mine")]) == 2
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_device_that_joined_keeps_its_folder(devices, tmp_path, monkeypatch):
    monkeypatch.setattr("device_runtime.device.agent.instance.Link", Refuses)
    monkeypatch.setattr("device_runtime.device.agent.instance.first_connection", lambda *_, **__: True)
    monkeypatch.setattr("device_runtime.device.agent.agent.Agent.run", lambda *_, **__: None)
    words = ["join", "mqtt://127.0.0.1:1", "--name", "a", "--data", str(tmp_path / "samples.npz")]
    assert main([*words, "--in-process"]) == 0
    assert (devices / "a" / "outbox").is_dir()


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (errno.ENOSPC, 4, "no space left on device: free some space"),
        (errno.EROFS, 4, "read-only file system: name a folder on a disk that is not read-only"),
        (errno.EACCES, 2, "permission denied"),
    ],
)
def test_a_disk_that_is_full_before_the_first_start_has_the_code_of_a_full_disk(
    devices, monkeypatch, capfd, number, code, says
):
    def refused(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "touch", refused)
    words = ["join", "mqtt://127.0.0.1:9", "--data", str(devices.parent / "samples.npz"), "--name", "new"]
    assert main(words) == code
    errors = capfd.readouterr().err
    assert errors.startswith("device-runtime: no device can be in ") and says in errors


def parsed(*words):
    parser = argparse.ArgumentParser(exit_on_error=False)
    join.add_arguments(parser)
    return parse(parser, ["mqtt://127.0.0.1", *words])


def test_tags_are_checked_and_may_stand_in_the_device_file(tmp_path, capsys):
    assert tags(parsed("--tag", "kitchen", "--tag", "floor=2")) == ("kitchen", "floor=2")
    assert tags(parsed()) == ()
    with pytest.raises(SystemExit):
        main(["join", "mqtt://127.0.0.1", "--tag", "a b"])
    assert "argument --tag: tag 'a b': use letters, digits" in capsys.readouterr().err
    many = [word for number in range(17) for word in ("--tag", f"t{number}")]
    with pytest.raises(DataError, match="--tag: 17 tags, expected 16 or fewer"):
        tags(parsed(*many))
    file = tmp_path / "device.toml"
    file.write_text('tag = ["lab"]\n')
    options = parsed("--config", str(file))
    join.policy_options.configure(options, join.add_arguments)
    assert tags(options) == ("lab",)


@pytest.mark.parametrize(
    ("enrolled", "says"),
    [
        (False, "Enrol the device: `device-runtime device add pi` where the broker"),
        (
            True,
            "Enrol it again: `device-runtime device add pi --again` where the broker",
        ),
    ],
)
def test_a_device_that_is_refused_for_its_password_is_told_how_it_is_enrolled(tmp_path, enrolled, says):
    enrolment = Enrolment("mqtts://h", "pi", "x", b"", bytes(32), 1) if enrolled else None
    connection = Connection(BrokerUrl.parse("mqtts://pi@h"), "pi", tmp_path, "pi", enrolment=enrolment)
    assert says in join._way_in(connection, "the broker at h refused user 'pi': wrong user name or password")
    assert join._way_in(connection, "the broker at h does not let 'pi' read") == ""
