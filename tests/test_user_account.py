"""The user's folders and name are found, or a sentence says what to set."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from device_runtime import user_account
from device_runtime.cli import main
from device_runtime.simulation.data import DataSpec, load
from device_runtime.user_account import NoHome


@pytest.fixture
def nobody(monkeypatch):
    """A user whom no passwd knows, without HOME, as in a container."""

    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "USER", "LOGNAME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "folder", [user_account.state_folder, user_account.config_folder, user_account.data_folder]
)
def test_without_a_home_it_is_said_what_to_set(nobody, folder, monkeypatch, tmp_path):
    with pytest.raises(NoHome, match=r"Set HOME or XDG_\w+_HOME"):
        folder()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder().is_relative_to(tmp_path)


def test_the_name_of_a_user_whom_nobody_knows_is_the_number(nobody):
    assert user_account.user_name() == str(os.geteuid())


def test_commands_of_a_user_without_a_home_say_so_and_make_no_folder(nobody, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").mkdir()
    state = str(tmp_path / "pi")
    for words in (
        ["traffic"],
        ["pause", "--name", "pi"],
        ["join", "mqtt://127.0.0.1:1", "--data", "samples"],
    ):
        assert main(words) == 2
        assert "Set HOME or XDG_STATE_HOME, or name the folder (--state)" in capsys.readouterr().err
    Path(state, "outbox").mkdir(parents=True)
    assert main(["pause", "--state", state]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pi", "samples"]


def test_the_doctor_of_a_user_without_a_home_finds_that(nobody, capsys):
    assert main(["doctor", "--bundle", "nowhere"]) == 1
    out = capsys.readouterr().out
    assert "storage" in out and "Set HOME or XDG_STATE_HOME" in out


def test_temporary_files_lie_in_the_devices_folder_where_the_system_has_none(tmp_path, monkeypatch):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(tempfile, "_get_default_tempdir", none)
    user_account.provide_temporary_folder(tmp_path / "pi")
    with tempfile.TemporaryDirectory() as folder:
        assert Path(folder).parent == tmp_path / "pi" / "tmp"
    assert os.environ["TMPDIR"] == str(tmp_path / "pi" / "tmp")


@pytest.mark.parametrize("path", ["~/x.csv", "~nobody-of-this-name/x.csv"])
def test_a_path_below_a_home_that_is_not_there_is_refused_in_a_sentence(nobody, path):
    with pytest.raises(NoHome, match="below a home folder, and there is none.*Give a full path"):
        user_account.expanded(path)
    with pytest.raises(NoHome, match="Give a full path"):
        load(DataSpec(source="table", path=path), 0)
    assert user_account.expanded("/a/x.csv") == Path("/a/x.csv")
