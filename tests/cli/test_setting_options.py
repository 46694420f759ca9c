"""Options of serve and simulate are those that the settings of a task declare."""

import argparse
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Literal

import pytest

from device_runtime.aggregator.configuration.config import ServerConfig
from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli import main
from device_runtime.cli.operator import serve
from device_runtime.cli.research import simulate
from device_runtime.cli.research.simulate_options import NOT_SIMULATED
from device_runtime.cli.setting_options import _optional, add_settings, option_values
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.strategies.settings import REQUIRED, Setting

DECLARED = [(owner, name, entry) for owner in (Task, SharedSettings) for name, entry in _optional(owner, ())]
OF_COMMANDS = [
    (command, owner, name, entry)
    for owner, name, entry in DECLARED
    for command in (serve, simulate)
    if command is serve or name not in NOT_SIMULATED
]
IDS = [f"{command.__name__.rpartition('.')[2]}-{name}" for command, _, name, _ in OF_COMMANDS]
FLAGS = """
--bundle --name --rounds --deadline --min-contributions --min-devices --late --wait-for --head
--devices-per-round --buffer-size --max-staleness --staleness-weight --deadline-quantile --deadline-margin
--deadline-least --max-extensions --stop-after --stop-gain --stop-metric --keep-versions --robust
--robust-trim --robust-clip --robust-clip-factor --robust-byzantine --seed --eval-data --generic --family
--mask-helpers --min-group --lr --epochs --batch --codec
"""
"""Those of serve before they were made from the declaration."""


FLAGS_OF_SERVER = """
--run-dir --workers --max-devices --database --broker --password-file --port --ca --enrolment --insecure
--token-file --http-open --log-format
"""


def parser_of(command):
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return parser


def test_the_flags_of_a_task_keep_their_names():
    assert set(FLAGS.split()) <= {f"--{entry.option}" for _, _, entry in DECLARED}


def test_the_flags_of_the_service_keep_their_names_and_are_read_as_its_file_is(tmp_path):
    assert {f"--{entry.option}" for _, entry in _optional(ServerConfig, ())} == set(FLAGS_OF_SERVER.split())
    words = "--broker=mqtts://fl@there --insecure --http=:80 --http-open --database=postgresql://db/fl"
    options = parser_of(serve).parse_args([*words.split(), "--workers=2", f"--run-dir={tmp_path}"])
    config = serve.server_config(options)
    assert (config.broker.url, config.broker.insecure) == ("mqtts://fl@there", True)
    assert (config.http.port, config.http.open, config.database.url) == (80, True, "postgresql://db/fl")
    assert (config.workers, config.run_dir, config.tasks) == (2, tmp_path, ())
    assert serve.server_config(parser_of(serve).parse_args([])) == ServerConfig()


def test_only_tables_and_what_a_simulation_has_not_have_no_flag():
    names = {name for _, name, _ in DECLARED}
    assert set(Task.__struct_fields__) - names == {"kinds", "server", "statistics", "masks"}
    assert set(NOT_SIMULATED) <= names
    assert set(scenarios.NOT_OURS) <= set(NOT_SIMULATED)


@pytest.mark.parametrize(("command", "owner", "name", "entry"), OF_COMMANDS, ids=IDS)
def test_serve_and_simulate_agree_with_the_declaration(command, owner, name, entry, capsys):
    parser, flag, setting = parser_of(command), f"--{entry.option}", entry.setting
    [action] = [action for action in parser._actions if flag in action.option_strings]
    assert tuple(action.choices or ()) == entry.choices
    default = scenarios.TASK_DEFAULTS.get(name, entry.default) if command is simulate else entry.default
    if default not in (REQUIRED, None, (), ""):
        text = {True: "yes", False: "no"}[default] if isinstance(default, bool) else default
        text = f"{text:g}" if isinstance(text, float) else text
        assert f"(default: {text})" in action.help
    assert action.help.startswith(setting.meaning.rstrip("."))
    words = ",".join(setting.example) if entry.item else str(setting.example)
    option = flag if isinstance(setting.example, bool) else f"{flag}={words}"
    without = NOT_SIMULATED if command is simulate else ()
    table = option_values(parser.parse_args([option]), owner, without)
    for part in name.split("."):
        table = table[part]
    assert table == (list(setting.example) if entry.item else setting.example)
    if entry.type not in (int, float):
        return
    at_least, at_most = setting.at_least - 1, setting.at_most + 1
    outside = [setting.more_than, setting.less_than, at_least, at_most, float("nan")]
    for number in (entry.type(number) if isfinite(number) else number for number in outside):
        with pytest.raises(argparse.ArgumentError, match=f"expected a {entry.toml_type}, {setting.range}"):
            parser.parse_args([f"{flag}={number}"])


@dataclass(frozen=True)
class Deep:
    depth_s: Annotated[float, Setting("Dive for at most 50% of this time.", 2.0, "seconds")] = 1.0
    fins: Annotated[bool, Setting("Wear fins.", True, flag="with-fins")] = False


@dataclass(frozen=True)
class Dive:
    air_s: Annotated[float | None, Setting("Surface after this time.", 3.0, "seconds", none="never")] = None
    by: Annotated[Literal["boat", "foot"], Setting("Go by this.", "foot", metavar="-")] = "boat"
    deep: Annotated[Deep, Setting("The dive.", {})] = Deep()


def test_a_table_s_settings_have_an_option_where_they_name_it():
    parser = argparse.ArgumentParser()
    add_settings(parser, Dive, without=("by",))
    helps = {action.option_strings[0]: action.help for action in parser._actions[1:]}
    assert helps == {
        "--air": "Surface after this time (default: never).",
        "--with-fins": "Wear fins.",
    }
    assert [action.metavar for action in parser._actions[1:]] == ["SECONDS", None]
    options = parser.parse_args(["--with-fins"])
    assert option_values(options, Dive, ("by",)) == {"deep": {"fins": True}}
    assert option_values(parser.parse_args([]), Dive, ("by",)) == {}
    assert "%" not in parser.format_help()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["simulate", "--device-per", "4"], "unrecognized arguments: --device-per; did you mean --device?"),
        (["simulate", "digits", "--stop=3"], "unrecognized arguments: --stop=3; did you mean --stop-gain?"),
        (["serve", "--robust-cli=3"], "unrecognized arguments: --robust-cli=3; did you mean --robust-clip?"),
        (["broker", "init", "folder", "--nam=x"], "unrecognized arguments: --nam=x"),
    ],
)
def test_an_option_is_written_out_and_the_nearest_is_named(words, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert says in capsys.readouterr().err


def test_no_gain_is_a_gain_in_a_simulation_as_it_is_by_default():
    options = parser_of(simulate).parse_args(["--stop-after", "2", "--stop-gain", "0"])
    assert option_values(options, Task, NOT_SIMULATED) == {"stop_after": 2, "stop_gain": 0.0}
