import argparse
from pathlib import Path

import pytest

from device_runtime.cli import options as data_options
from device_runtime.cli.on_device import join
from device_runtime.device.training.settings import PersonalModelSettings
from device_runtime.models.data import SampleSource
from device_runtime.models.errors import DataError


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    return parser.parse_args(["mqtt://127.0.0.1", *arguments])


def test_a_place_is_a_path_or_a_query_with_its_labels(tmp_path):
    (tmp_path / "a.db").write_bytes(b"")
    text = "sqlite:" + str(tmp_path / "a.db") + "?SELECT x, y FROM t"  # noqa: S608
    options = parsed("--data", text, "--labels", "l.toml", "--label-column", "y")
    source = SampleSource(tmp_path / "a.db", "SELECT x, y FROM t", Path("l.toml"), "y")
    assert data_options.place(options.data, options) == source


@pytest.mark.parametrize("folder", ["", "/srv/pi/", "some/where/"])
def test_a_database_is_found_where_the_path_was_made_absolute(folder):
    assert SampleSource.of(Path(f"{folder}sqlite:a.db?SELECT 1, 2")) == SampleSource(
        Path(f"{folder}a.db"), "SELECT 1, 2"
    )
    assert SampleSource.of(Path(f"{folder}sqlite:/b/a.db?SELECT 1, 2")).path == Path("/b/a.db")


def test_nothing_there_is_known_before_anything_else(tmp_path):
    options = parsed("--data", str(tmp_path / "none"))
    with pytest.raises(DataError, match="no data at"):
        data_options.place(options.data, options)


def test_a_tenth_is_held_out_and_the_model_is_kept_unless_said_otherwise():
    assert data_options.personal_settings(parsed()) == PersonalModelSettings(True, None, False)
    assert data_options.personal_settings(
        parsed("--no-keep-model", "--held-out", "0")
    ) == PersonalModelSettings(False, 0.0, False)
    assert data_options.personal_settings(
        parsed("--held-out", "0.3", "--personal-head")
    ) == PersonalModelSettings(True, 0.3, True)


@pytest.mark.parametrize("other", [("--no-keep-model",), ("--held-out", "0")])
def test_a_head_of_its_own_wants_a_model_and_samples_to_choose_it_on(other):
    with pytest.raises(DataError, match="--personal-head"):
        data_options.personal_settings(parsed("--personal-head", *other))


@pytest.mark.parametrize("share", ["1", "-0.1", "nan", "half"])
def test_a_share_is_from_0_to_less_than_1(share, capsys):
    with pytest.raises(SystemExit):
        parsed("--held-out", share)
    assert "--held-out" in capsys.readouterr().err
