"""The command line as people use it: in processes of its own."""

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from device_runtime.cli import GROUP, main

COMMAND = Path(sys.executable).with_name("device-runtime")
COMMANDS = sorted(point.name for point in metadata.entry_points(group=GROUP))


def run(*arguments, timeout=60, **options):
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def test_help_lists_every_command():
    shown = run("--help").stdout
    assert all(re.search(rf"^    {name}\b", shown, re.M) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_s_help_has_an_example_that_parses(name, capsys, monkeypatch):
    [point] = metadata.entry_points(group=GROUP, name=name)
    module = point.load()
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "Example: device-runtime" in capsys.readouterr().out
    words = shlex.split(module.EXAMPLE)
    assert words[:2] == ["device-runtime", name]
    seen = []
    monkeypatch.setattr(module, "run", lambda options: seen.append(options) or 0)
    assert main(words[1:]) == 0
    assert seen


def test_a_reader_that_has_seen_enough_is_no_error():
    piped = f"{shlex.quote(str(COMMAND))} inspect digits-wrn-10-1 | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("digits-wrn-10-1")
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0


def test_profile_says_what_this_device_can_do():
    shown = run("profile").stdout
    for word in ("engine", "onnxruntime", "memory", "GFLOP/s", "train.all", "W idle", "measured"):
        assert word in shown


def test_profile_says_what_energy_is_told_by():
    shown = run("profile", "--meter", "command:echo 3 W").stdout
    assert re.search(r"^energy +command +what the command measures, ± 5%$", shown, re.M)
    shown = json.loads(run("profile", "--as", "pi-5", "--format", "json").stdout)
    assert shown["meter"] == "modelled"
    assert shown["energy"].startswith("from ")


def test_profile_of_a_pretended_board_is_as_slow_as_the_board():
    shown = json.loads(run("profile", "--as", "pi-zero-2w", "--slow", "10", "--format", "json").stdout)
    assert shown["name"] == "pi-zero-2w"
    rate = 0.6e9 / 0.147 / 10
    assert shown["speed"]["flops_per_s"] == pytest.approx(rate, rel=0.15)


def test_explain_shows_every_candidate_its_cost_and_the_reason():
    shown = run("explain", "--as", "pi-zero-2w", "--slow", "25", "--samples", "180", "--deadline", "3").stdout
    assert re.search(r"^->\s+few-shot .*the richest that fits", shown, re.M)
    assert re.search(r"^\s+full\s+[\d.]+ .*needs [\d.]+ s of 2.7 s \(compute\)", shown, re.M)
    assert "A straggler for this task" in shown
    assert "fits, but poorer than the chosen one" in shown


def test_explain_as_json_holds_the_same_decision():
    text = run("explain", "--as", "phone-high", "--deadline", "30", "--format", "json").stdout
    rows = json.loads(text)
    assert [row["kind"] for row in rows if row["taken"]] == ["full"]
    assert all(row["cost"]["energy_j"] > 0 for row in rows)


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
        (["join", "mqtt://127.0.0.1:1", "--data", ".", "--name", "a/b"], "device name 'a/b'"),
        (["explain", "--as", "abacus"], "no profile named 'abacus'"),
        (["join", "mqtt://127.0.0.1:1", "--data", ".", "--meter", "sundial"], "--meter sundial: expected"),
        (["profile", "--meter", "sundial"], "--meter sundial: expected one of auto, jetson"),
        (["explain", "--kinds", "telepathy"], "no kind of update is called 'telepathy'"),
        (["explain", "--bundle", "nothing"], "neither a bundle folder or zip nor a shipped bundle"),
        (["explain", "--memory", "1"], "this device may use 1 MB"),
        (["serve", "--bundle", "nothing", "--broker", "mqtt://127.0.0.1:1"], "nothing"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, tmp_path):
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith("device-runtime: ")
    assert message in line


def test_a_bundle_with_a_flipped_byte_is_named_with_its_file(bundle, tmp_path):
    from models.archive import read_zip

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
