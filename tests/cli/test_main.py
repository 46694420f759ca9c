"""The command line as people use it: in processes of its own."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from device_runtime.cli import main
from device_runtime.cli.table import COMMANDS, GROUPS, overview
from device_runtime.extras import EXTRAS

COMMAND = Path(sys.executable).with_name("device-runtime")
ROOT = Path(__file__).parents[2]


def run(*arguments, timeout=120, **options):
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def test_help_lists_every_command_under_who_uses_it():
    first, *sections = re.split(r"^(?=\w.*:$)", run("--help").stdout, flags=re.M)
    assert first.startswith("usage: device-runtime COMMAND")
    assert [section.split("\n")[0] for section in sections] == [f"{heading}:" for heading in GROUPS.values()]
    for group, section in zip(GROUPS, sections, strict=True):
        listed = re.findall(r"^  (\S+)  ", section, re.M)
        assert listed == [name for name, command in COMMANDS.items() if command.group == group]


def test_the_table_has_every_module_that_is_a_command():
    is_command = re.compile(r"^def add_arguments\(.*^def run\(", re.M | re.S)
    commands = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "device_runtime").rglob("*.py")
        if is_command.search(path.read_text())
    ]
    assert sorted(commands) == sorted(command.module for command in COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does_in_one_style(name):
    """Imperative, capital first letter, full stop."""
    help_text = COMMANDS[name].help
    assert re.fullmatch(r"[A-Z].*[^.]\.", help_text)
    assert not help_text.split()[0].endswith(("s", "ing"))


def options_of(parser):
    """All that a parser takes, with that of its subcommands: name and help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((choice.dest, choice.help) for choice in action._choices_actions)
            for below in action.choices.values():
                yield from options_of(below)
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            yield (action.option_strings or [action.dest])[-1], action.help


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_says_what_it_does_in_the_same_style(name):
    parser = argparse.ArgumentParser()
    import_module(COMMANDS[name].module).add_arguments(parser)
    wrong = {
        option: help_text
        for option, help_text in options_of(parser)
        if not re.fullmatch(r"[A-Z].*\.", help_text or "")
    }
    assert wrong == {}


def test_the_list_of_commands_fits_a_narrow_terminal():
    assert max(map(len, overview(60).splitlines())) <= 72  # the sentence above the list is not broken
    assert all(len(line) <= 60 for line in overview(60).splitlines() if line.startswith("  "))


ABSENT = """
import contextlib, importlib.util, io, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in {absent} else found(name, *rest)
for name in {absent}:
    sys.modules[name] = None
from device_runtime.cli import main
for command in {commands}:
    for name in {absent}:
        sys.modules.pop(name, None)
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
"""


def test_help_shows_the_options_of_commands_whose_extras_are_not_installed():
    absent = [module for extra in EXTRAS.values() for module in extra.modules]
    commands = ["partition", "simulate", "compare", "demo", "export", "serve", "edge"]
    code = ABSENT.format(absent=absent, commands=commands)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for option in ("--data-path", "--compare", "--eval-data", "--input", "--executor", "--min-devices"):
        assert option in process.stdout
    assert process.stdout.count("Needs: pip install 'device-runtime[") == len(commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_s_help_has_an_example_that_parses(name, capsys, monkeypatch):
    module = import_module(COMMANDS[name].module)
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"\nExample: {COMMANDS[name].example}\n" in capsys.readouterr().out
    words = shlex.split(COMMANDS[name].example)
    assert words[:2] == ["device-runtime", name]
    calls = []
    monkeypatch.setattr(module, "run", lambda options: calls.append(options) or 0)
    assert main(words[1:]) == 0
    assert calls


@pytest.mark.parametrize(
    "typed, message",
    [
        ("serv", "there is no command 'serv': did you mean serve? `device-runtime --help` lists them all"),
        ("jion", "there is no command 'jion': did you mean join? `device-runtime --help` lists them all"),
        (
            "uninstall",
            "there is no command 'uninstall': did you mean leave? `device-runtime --help` lists them all",
        ),
        ("quux", "there is no command 'quux': `device-runtime --help` lists them all"),
        ("--quux", "there is no command '--quux': `device-runtime --help` lists them all"),
    ],
)
def test_a_mistyped_command_is_told_the_nearest(typed, message, capsys):
    assert main([typed]) == 2
    assert capsys.readouterr().err == f"device-runtime: {message}\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_reader_that_has_seen_enough_is_no_error():
    piped = f"{shlex.quote(str(COMMAND))} inspect digits-wrn-10-1 | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("digits-wrn-10-1")
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0


def test_profile_says_what_this_device_can_do():
    output = run("profile").stdout
    for word in ("engine", "onnxruntime", "memory", "GFLOP/s", "train.all", "W idle", "measured"):
        assert word in output


def test_profile_says_what_energy_is_told_by():
    text = run("profile", "--meter", "command:echo 3 W").stdout
    assert re.search(r"^energy +command +what the command measures, ± 5%$", text, re.M)
    text = json.loads(run("profile", "--as", "pi-5", "--format", "json").stdout)
    assert text["meter"] == "modelled"
    assert text["energy"].startswith("from ")


def test_profile_of_a_pretended_board_is_as_slow_as_the_board():
    profile = json.loads(run("profile", "--as", "pi-zero-2w", "--slow", "10", "--format", "json").stdout)
    assert profile["name"] == "pi-zero-2w"
    rate = 0.6e9 / 0.147 / 10
    assert profile["speed"]["flops_per_s"] == pytest.approx(rate, rel=0.15)


def test_explain_shows_every_candidate_its_cost_and_the_reason():
    output = run(
        "explain", "--as", "pi-zero-2w", "--slow", "25", "--samples", "180", "--deadline", "3"
    ).stdout
    assert re.search(r"^->\s+few-shot .*the richest that fits", output, re.M)
    assert re.search(r"^\s+full\s+[\d.]+ .*needs [\d.]+ s and has 2.7 s \(mostly to compute\)", output, re.M)
    assert "A straggler for this task" in output
    assert "fits, but poorer than the chosen one" in output


@pytest.mark.slow
def test_explain_shows_what_class_statistics_add_to_each_kind_on_a_board():
    task = ("explain", "--board", "pi-5", "--samples", "180")
    heads = r"kB up +kB down +joule +of it statistics: s +kB up +joule +why$"
    assert re.search(heads, run(*task, "--statistics").stdout, re.M)
    rows = json.loads(run(*task, "--statistics", "--format", "json").stdout)
    plain = json.loads(run(*task, "--head", "trained", "--format", "json").stdout)
    assert all(row["statistics"] is None for row in plain)
    for row, without in zip(rows, plain, strict=True):
        if row["kind"] == "class-means":  # which is nothing else
            continue
        added = row["cost"]["bytes_up"] - without["cost"]["bytes_up"]
        assert row["statistics"]["bytes_up"] == added
        assert row["cost"]["energy_j"] - without["cost"]["energy_j"] == pytest.approx(
            row["statistics"]["energy_j"]
        )
    added = {row["kind"]: row["statistics"]["bytes_up"] for row in rows}
    begin, moments = (
        2 + 4 + 4,
        64 * 65 + 4 + 2 * 72,
    )  # label, count and scale; half of the moments in 2 bytes each
    for kind, bytes_of_a_number in (("full", 2), ("few-shot", 2), ("zeroth-order", 1), ("class-means", 1)):
        assert added[kind] == 10 * (begin + 64 * bytes_of_a_number) + 72 + moments


def test_explain_says_of_how_many_classes_statistics_fit_over_a_narrow_link():
    """Of six classes 636 bytes go up in 53 s, of seven 710 in 59 s; 54 s of the 60 are planned for."""
    narrow = ("--as", "pi-zero-2w", "--uplink", "12", "--deadline", "60")
    output = run("explain", *narrow, "--kinds", "class-means", "--head", "closed-form").stdout
    assert "chosen: the richest that fits; sends class statistics of 6 of 10 classes" in output


def test_explain_as_json_holds_the_same_decision():
    text = run("explain", "--as", "phone-high", "--deadline", "30", "--format", "json").stdout
    rows = json.loads(text)
    assert [row["kind"] for row in rows if row["taken"]] == ["full"]
    assert all(row["cost"]["energy_j"] > 0 for row in rows)


@pytest.mark.slow
def test_a_memory_cap_makes_a_straggler_and_is_named():
    task = ("explain", "--deadline", "60", "--samples", "100")
    rows = json.loads(run(*task, "--format", "json").stdout)
    [least] = [row["cost"]["peak_memory_bytes"] for row in rows if row["kind"] == "class-means"]
    cap = least / 1e6 + 13  # a forward pass may be tried, a training step is judged by its shapes
    assert re.search(r"full .*needs \d+ MB of \d+ MB", run(*task, "--memory", f"{cap:.1f}").stdout)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["join", "mqtt://127.0.0.1:1", "--data", "/nowhere"], "no data at /nowhere: give a folder"),
        (["join", "mqtt://example.org", "--data", "."], "--insecure"),
        (["join", "http://example.org", "--data", "."], "not a broker URL"),
        (
            ["join", "mqtt://127.0.0.1:1", "--data", ".", "--slow", "3"],
            "--slow, --uplink and --downlink need --as DEVICE",
        ),
        (
            ["join", "mqtt://127.0.0.1:1", "--data", ".", "--cpu-percent", "50"],
            "--cpu-percent needs --service",
        ),
        (
            ["join", "mqtt://127.0.0.1:1", "--data", ".", "--allow-kinds", "ful,peft"],
            "no kind of update is called 'ful'; did you mean full?; there are full+few-shot,",
        ),
        (
            ["join", "mqtt://127.0.0.1:1", "--data", ".", "--ca", "none.pem"],
            "--ca, --cert and --key are for a broker with TLS",
        ),
        (
            ["join", "mqtts://127.0.0.1:1", "--data", ".", "--key", "none.pem"],
            "--key is the key of a certificate",
        ),
        (
            ["join", "mqtts://127.0.0.1:1", "--data", ".", "--ca", "none.pem"],
            "cannot use the TLS files none.pem",
        ),
        (["explain", "--data", ".", "--samples", "30"], "omit --samples"),
        (["measure", "--data", ".", "--samples", "30"], "omit --samples"),
        (["explain", "--state", "nothere"], "no device is in nothere"),
        (["policy", "--name", "nobody", "--below-c", "60"], "no device is in "),
        (["bundle-wheels", "/dev/null/wheels"], "/dev/null/wheels: not a directory"),
        (["join", "mqtt://127.0.0.1:1", "--data", ".", "--name", "a/b"], "device name 'a/b'"),
        (["explain", "--as", "abacus"], "no profile named 'abacus'"),
        (["join", "mqtt://127.0.0.1:1", "--data", ".", "--meter", "sundial"], "--meter sundial: expected"),
        (["profile", "--meter", "sundial"], "--meter sundial: expected one of auto, jetson"),
        (["explain", "--board", "abacus"], "no profile named 'abacus'"),
        (
            ["explain", "--board", "pi-5", "--slow", "2"],
            "omit --as, --slow, --memory, --uplink and --downlink",
        ),
        (["explain", "--kinds", "telepathy"], "no kind of update is called 'telepathy'"),
        (["explain", "--bundle", "nothing"], "neither a bundle folder or zip nor a shipped bundle"),
        (["explain", "--memory", "1"], "this device may use 1 MB"),
        (["serve", "--bundle", "nothing", "--broker", "mqtt://127.0.0.1:1"], "nothing"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    [line] = output.err.splitlines()
    assert line.startswith("device-runtime: ")
    assert message in line


def test_a_bundle_with_a_flipped_byte_is_named_with_its_file(bundle, tmp_path):
    from device_runtime.models.bundles.archive import read_zip

    for name, data in read_zip(bundle.packed()).items():
        (tmp_path / name).write_bytes(data)
    graph = tmp_path / "forward.onnx"
    damaged = bytearray(graph.read_bytes())
    damaged[100] ^= 1
    graph.write_bytes(damaged)
    ended = run("explain", "--bundle", str(tmp_path))
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert "forward.onnx of bundle digits-wrn-10-1 is damaged" in line


@pytest.mark.parametrize(
    "wrong, message",
    [
        (["explain", "--samples", "-5"], "'-5' is not a whole number, 1 or more"),
        (["explain", "--deadline", "nan"], "nan is not a number of more than 0"),
        (["explain", "--as", "pi-5", "--slow", "inf"], "inf is not a number of more than 0"),
        (["join", "mqtt://127.0.0.1:1", "--data", ".", "--threads", "0"], "'0' is not a whole number"),
        (["profile", "--memory", "much"], "'much' is not a number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_their_value(wrong, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(wrong)
    assert message in capsys.readouterr().err


def test_rules_are_judged_for_this_machine_before_any_device_has_joined(capsys):
    assert main(["policy", "--others-below", "100", "--daily-mb", "5"]) in (0, 1)
    output = capsys.readouterr()
    assert ("0 of 5 MB" in output.out, output.err) == (True, "")
    assert main(["policy", "--cores", "99"]) == 0  # no rule of when work may be done
    assert main(["policy"]) == 2
    assert "no device is in " in capsys.readouterr().err
