"""A device file: the options of `join`, strictly, the command line over it."""

import argparse
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_runtime.cli import parse
from device_runtime.cli.on_device import join, policy_options
from device_runtime.device.errors import PolicyError
from device_runtime.device.policy.rules import DayWindow, Policy
from device_runtime.device.policy.work_gate import ProcessPriority
from device_runtime.device.service import device_file

ALL = """
broker = "mqtts://broker.example.org"
name = "kitchen-pi"
data = "samples.npz"
threads = 2
until-done = true
as = "pi-5"

[policy]
mains = true
battery_above = 40
below-c = 65.5
unmetered = true
between = ["22:00-06:30", "12:00-13:00"]
others_below = 30
daily_mb = 50
disk = 2000
nice = 10
idle_io = true
cores = 1
"""


@pytest.fixture
def read(tmp_path):
    """The options of `join --config` with this text, and these arguments."""

    def options(text, *arguments):
        file = tmp_path / "device.toml"
        file.write_text(text)
        parser = argparse.ArgumentParser()
        join.add_arguments(parser)
        options_ = parse(parser, [*arguments, "--config", str(file)])
        policy_options.configure(options_, join.add_arguments)
        return options_

    return options


def test_every_option_of_join_may_stand_in_a_file(read, tmp_path):
    options = read(ALL)
    assert (options.broker, options.name, options.threads) == ("mqtts://broker.example.org", "kitchen-pi", 2)
    assert (options.until_done, options.emulated) == (True, "pi-5")
    assert Path(options.data) in (tmp_path / "samples.npz", Path("samples.npz"))
    windows = (DayWindow.of("22:00-06:30"), DayWindow.of("12:00-13:00"))
    assert policy_options.policy(options) == Policy(True, 40.0, 65.5, True, windows, 30.0, 50_000_000)
    assert policy_options.process_priority(options) == ProcessPriority(10, True, 1)
    assert policy_options.disk_bytes(options, tmp_path) == 2_000_000_000


def test_models_take_half_of_the_disk_s_room_where_nothing_is_said(read, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "one").write_bytes(bytes(200))
    assert policy_options.disk_bytes(read(""), tmp_path) == 600


def test_where_the_disk_does_not_say_what_is_free_models_have_no_limit(read, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    assert policy_options.disk_bytes(read(""), tmp_path) is None


def test_paths_are_relative_to_the_file(read, tmp_path):
    assert read('ca = "ca.pem"\n').ca == tmp_path / "ca.pem"
    assert read('ca = "/etc/ca.pem"\n').ca == Path("/etc/ca.pem")
    plugins = read('plugin = ["mine.py:TopK", "mine:TopK"]\n').plugins
    assert plugins == [f"{tmp_path}/mine.py:TopK", "mine:TopK"]


def test_the_command_line_stands_over_the_file(read):
    options = read(ALL, "--battery-above", "70", "--name", "other", "mqtt://127.0.0.1")
    assert (options.battery_above, options.name, options.broker) == (70.0, "other", "mqtt://127.0.0.1")
    assert options.below_c == 65.5
    assert read(ALL, "--nice", "0").nice == 0  # its default, but said


def test_a_switch_with_two_forms_has_one_key_which_means_what_it_says(read):
    assert read("keep-model = false").keep_model is False
    assert read("keep_model = false", "--keep-model").keep_model is True
    with pytest.raises(PolicyError, match="no_keep_model: there is no such key.*did you mean keep_model"):
        read("no_keep_model = true")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'", "nmae: there is no such key; there are"),
        (
            "[policy]\nbatery_above = 4",
            "policy.batery_above: there is no such key; there are allow_bundle, allow_kinds, battery_above,",
        ),
        ("mains = true", "mains: there is no such key"),
        ("[policy]\nname = 'x'", "policy.name: there is no such key"),
        ("[policy]\nmains = 1", "policy.mains: expected true or false, not 1"),
        ("[policy]\nbattery_above = 400", "policy.battery_above: 400 is not a percentage"),
        ("[policy]\nbattery_above = true", "policy.battery_above: expected percent, not True"),
        ("[policy]\nbelow_c = 'hot'", "policy.below_c: 'hot' is not a number"),
        ("[policy]\nbetween = '22:00-06:30'", "policy.between: expected a list"),
        ("[policy]\nbetween = ['night']", "policy.between: 'night' is not a part of the day"),
        ("[policy]\nnice = -5", "policy.nice: '-5' is not a whole number from 0 to 19"),
        ("engine = 'steam'", "engine: expected one of auto"),
        ("policy = 3", "policy: expected a table"),
        ("[server]\nport = 3", "server: there is no such key"),
        ("config = 'other.toml'", "config: there is no such key"),
        ("name = ", "is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_file_and_the_key(read, text, message):
    with pytest.raises(PolicyError, match=r"device\.toml") as refused:
        read(text)
    assert message in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    options = argparse.Namespace(config=tmp_path / "none.toml")
    with pytest.raises(PolicyError, match=r"cannot read .*none\.toml: no such file"):
        policy_options.configure(options, join.add_arguments)


def test_what_is_written_is_read_as_the_same(read, tmp_path):
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    first = read(ALL + "\n", "--memory", "64", "--task", 'a "quoted" täsk', "--ca", "here.pem")
    again = read(device_file.text(first, parser, policy_options.RULES))
    settings = {
        key: value for key, value in vars(first).items() if key not in ("config", "ca", "data", "flag_names")
    }
    assert settings == {key: vars(again)[key] for key in settings}
    assert again.ca == Path("here.pem").absolute()


def test_an_enrolment_is_no_setting(read):
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    text = device_file.text(read("", "--enrol", "secret", "--service"), parser, policy_options.RULES)
    assert "secret" not in text
    assert "service" not in text
