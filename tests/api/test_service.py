"""An aggregator and devices from Python: in threads, with a broker of their own, and stopped at any time."""

import os
import signal
import threading

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.aggregator.errors import ConfigError, RunInUse
from device_runtime.device.errors import InUse, NoDevice
from device_runtime.device.policy.rules import AllowList, Policy
from device_runtime.device.training.settings import PersonalModelSettings
from device_runtime.models.errors import DataError
from device_runtime.profiles import ProfileError
from device_runtime.strategies.errors import KindError

TASK = {"bundle": "digits-wrn-10-1", "rounds": 1, "head": "trained"}
HERE = dr.DeviceOptions(in_process=True)
NOBODY = "mqtt://127.0.0.1:1"


@pytest.fixture
def samples(handwritten, tmp_path):
    np.savez(tmp_path / "samples.npz", x=handwritten[0], y=handwritten[1])
    return tmp_path / "samples.npz"


def written(folder, text):
    (folder / "mine.toml").touch()
    (folder / "server.toml").write_text(text)
    return folder / "server.toml"


def kinds(*names):
    return tuple(dr.KindSettings(name=name) for name in names)


def test_a_device_learns_with_an_aggregator_and_keeps_its_model(samples, handwritten, capsys):
    task = dr.Task(**TASK, kinds=kinds("few-shot"))
    with dr.Aggregator(task, run_dir="run") as service:
        service.start()
        assert f"devices join with: device-runtime join {service.url}" in capsys.readouterr().out
        with dr.Device(service.url, data=samples, name="pi", state="pi", options=HERE) as device:
            device.run(until_done=True)
        assert service.wait(60)
        assert service.done
    model = dr.load("pi")
    assert isinstance(model, dr.Personal)
    assert model.labels == tuple("0123456789")
    [first, two] = model.predict(handwritten[0][:2])
    assert (first.file, two.number, len(first.guesses)) == ("array", 1, 3)
    assert device.model().record == model.record
    again = dr.Aggregator(task, run_dir="run", quiet=True)
    again.run()  # it is done already
    assert again.done


@pytest.mark.slow
def test_two_tasks_are_served_and_a_device_joins_the_one_that_it_names(samples):
    first = dr.Task(**TASK, name="one", kinds=kinds("few-shot"))
    two = dr.Task(**TASK, name="two", kinds=kinds("class-means"))
    with dr.Aggregator(first, two, run_dir="runs", quiet=True) as service:
        service.start()
        assert [folder.name for folder in service.folders] == ["one", "two"]
        with dr.Device(service.url, data=samples, name="pi", state="pi", task="two") as device:
            device.start(until_done=True)
            with pytest.raises(InUse, match="running already: call stop"):
                device.run()
            assert device.wait(300)
        assert not service.wait(0)
    assert not service.done


@pytest.mark.slow
def test_a_stopped_aggregator_goes_on_where_it_was(samples):
    task = dr.Task(**{**TASK, "rounds": 2}, kinds=kinds("few-shot"), min_devices=2)
    service = dr.Aggregator(task, run_dir="run", quiet=True)
    service.start()
    url = service.url
    service.stop()
    assert not service.done
    with service:
        service.start()
        with pytest.raises(RunInUse, match="running already: call stop"):
            service.run()
        assert service.url == url
        devices = [dr.Device(url, data=samples, name=name, state=name, options=HERE) for name in ("a", "b")]
        for device in devices:
            device.start(until_done=True)
        assert all(device.wait(300) for device in devices)
        assert service.wait(60)
    assert service.done


def test_http_is_served_at_the_address_that_is_given():
    with dr.Aggregator(dr.Task(**TASK), run_dir="run", http="0", quiet=True) as service:
        assert (service.url, service.http_url) == ("", "")
        service.start()
        assert service.http_url.startswith("http://127.0.0.1:")
        assert not service.wait(0)


def test_a_service_that_cannot_start_says_so_where_it_is_started():
    from device_runtime.broker.errors import BrokerUnreachable

    with pytest.raises(BrokerUnreachable):
        dr.Aggregator(dr.Task(**TASK), broker=NOBODY, run_dir="run", quiet=True).start()


def test_a_signal_stops_what_runs_here_and_handlers_are_as_before(samples):
    """As Ctrl-C on a terminal and the stop button of a notebook do."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    device = dr.Device(NOBODY, data=samples, name="pi", state="pi")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    device.run()
    service = dr.Aggregator(dr.Task(**TASK), run_dir="run", quiet=True)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    service.run()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_device_that_never_connected_leaves_no_folder(samples, tmp_path):
    with dr.Device(NOBODY, data=samples, name="pi", state="pi") as device:
        device.start()
        assert device.running
    assert not device.running
    assert not (tmp_path / "pi").exists()


def test_an_error_of_a_device_s_thread_is_raised_by_whoever_waits(samples, tmp_path):
    (tmp_path / "pi").mkdir()
    (tmp_path / "pi" / "letter.txt").write_text("dear")
    device = dr.Device(NOBODY, data=samples, name="pi", state="pi")
    device.start()
    with pytest.raises(NoDevice, match="has other things in it"):
        device.wait(60)
    assert device.wait(60)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda path: dr.Device(data=path / "none"), DataError, "no data at"),
        (lambda path: dr.Device(data=path, emulate="pi-99"), ProfileError, "pi-99"),
        (
            lambda path: dr.Device(
                data=path, options=dr.DeviceOptions(policy=Policy(allowed=AllowList(("ful",))))
            ),
            KindError,
            "did you mean full",
        ),
        (lambda path: PersonalModelSettings(head=True), ValueError, "head is True: it needs keep = True"),
        (lambda path: PersonalModelSettings(True, 0.0, True), ValueError, "and held_out samples"),
        (lambda path: dr.load(path / "none"), NoDevice, "no device is in"),
        (lambda path: dr.Aggregator(), ConfigError, "no task is given"),
        (
            lambda path: dr.Aggregator(dr.Task(**TASK), http="here"),
            ConfigError,
            "http here: expected HOST:PORT",
        ),
        (lambda path: dr.Aggregator(*[dr.Task(**TASK)] * 2), ConfigError, "each needs a different name"),
        (
            lambda path: dr.Aggregator(dr.Task(**TASK), settings=written(path, 'tasks = ["mine.toml"]')),
            ConfigError,
            "server.toml has tasks: leave them out, and give Task objects",
        ),
    ],
)
def test_what_cannot_be_is_said_when_it_is_made(make, error, message, tmp_path):
    with pytest.raises(error, match=message):
        make(tmp_path)
