"""`device-runtime compare` as people use it."""

import json
import shutil
from pathlib import Path

import pytest

from device_runtime.cli import main

WORDS = "--devices 3 --rounds 1 --deadline 600 --compare kinds=fedavg,few-shot"
SIMULATE = ["simulate", *WORDS.split()]


@pytest.mark.slow
def test_folders_of_simulations_are_shown_side_by_side(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*SIMULATE, "--run-dir", "here"]) == 0
    shutil.copytree("here", "copy")
    shutil.rmtree(Path("copy") / "runs" / "few-shot-0")
    capsys.readouterr()
    assert main(["compare", "here"]) == 0
    first = capsys.readouterr().out
    assert [line.split()[0] for line in first.splitlines()[4:6]] == ["fedavg", "few-shot"]
    assert main(["compare", "here", "copy"]) == 0
    assert capsys.readouterr().out == first, "parts of one comparison, joined"
    assert main(["compare", "here", "copy", "--apart", "--all-tables"]) == 0
    both = capsys.readouterr().out
    assert both.splitlines()[2].split() == ["here/fedavg", "here/few-shot", "copy/fedavg"]
    assert "not finished: copy/few-shot" in both
    assert "here/few-shot − here/fedavg" in both
    assert main(["compare", "copy", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"].keys() == {"fedavg"}


def test_a_folder_without_a_comparison_is_said_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "nowhere"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "nowhere is not the folder of a simulation" in line
