"""`python -m benchmarks.papers` as people use it, on a table that is small."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as papers
from benchmarks.papers import catalogue
from device_runtime.simulation.errors import SimulationError

ROOT = Path(__file__).parents[3]
CONTENT = {
    "title": "Few shots",
    "caption": "Best accuracy.",
    "paper": "002",
    "setting": {
        "bundle": "digits-wrn-10-1",
        "devices": 3,
        "deadline": {},
        "task": {"rounds": 1},
        "data": {"max_train": 90, "max_test": 40, "alpha": 10.0},
        "settings": {"full": {"epochs": 1}},
    },
    "scales": {"cpu": {"seeds": 1, "differences": ["One round."]}},
    "columns": [{"id": "even", "title": "Digits", "data": "digits"}],
    "rows": [{"system": "fedavg", "paper": {"even": "80.00±1.00"}}, {"system": "few-shot"}],
    "claims": [{"text": "few-shot over FedAvg", "better": "few-shot", "than": "fedavg"}],
}


@pytest.fixture
def table(monkeypatch, tmp_path):
    """The only one there is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEVICE_RUNTIME_DATA", raising=False)

    def only(**changes):
        small_table = catalogue.table({**CONTENT, **changes}, "paper:002-t9.9")
        monkeypatch.setattr(papers.catalogue, "load", lambda name: small_table)

    only()
    return only


@pytest.mark.slow
def test_a_table_is_run_shown_and_written_and_then_is_not_run_again(table, capsys, monkeypatch):
    words = ["paper:002-t9.9", "--run-dir", "here", "--kept", "kept"]
    assert papers.main([*words, "--write", "results"]) == 0
    text = capsys.readouterr().out
    assert "scale cpu, 1 seed: 2 runs; kept in here/" in text
    assert "fedavg in even-0: finished" in text
    assert "few-shot over FedAvg" in text
    page = Path("results/002.md").read_text("utf-8")
    line = "python -m benchmarks.papers paper:002-t9.9 --scale cpu --seeds 1 --write results"
    assert page.count(line) == 1
    assert "<!-- paper:002-t9.9 cpu -->" in page
    assert "* One round." in page
    assert "](pictures/002-t9.9-cpu.svg)" in page
    picture = Path("results/pictures/002-t9.9-cpu.svg").read_bytes()

    def never(*_):
        raise AssertionError("a run was started again")

    monkeypatch.setattr(papers, "run_jobs", never)
    assert papers.main([*words, "--format", "json"]) == 0
    again = capsys.readouterr()
    assert "2 runs, 2 of them finished before" in again.err
    assert json.loads(again.out)["columns"][0]["rows"][0]["paper"] == "80.00±1.00"
    assert papers.main([*words, "--write", "results"]) == 0
    assert Path("results/002.md").read_text("utf-8") == page
    shutil.rmtree("here")
    assert len(list(Path("kept").iterdir())) == 2
    assert papers.main([*words, "--only-kept", "--write", "results"]) == 0
    assert Path("results/002.md").read_text("utf-8") == page
    assert not Path("here").exists()
    assert Path("results/pictures/002-t9.9-cpu.svg").read_bytes() == picture


@pytest.mark.slow
def test_what_was_stopped_is_gone_on_with(table, capsys):
    words = ["paper:002-t9.9", "--run-dir", "here", "--kept", "kept"]
    assert papers.main(words) == 0
    [plan] = Path("here").iterdir()
    shutil.rmtree(plan / "runs" / "few-shot-0")
    capsys.readouterr()
    assert papers.main(words) == 0
    text = capsys.readouterr().out
    assert "2 runs, 1 of them finished before" in text
    assert "few-shot in even-0: finished (1 of 1 runs)" in text
    assert "fedavg in even-0" not in text


def test_the_others_are_shown_when_a_run_fails(table, capsys, monkeypatch):
    def fail(jobs, children, view):
        for name in jobs:
            view.ended(name, "out of order")
        raise SimulationError("out of order")

    monkeypatch.setattr(papers, "run_jobs", fail)
    assert papers.main(["paper:002-t9.9", "--run-dir", "here", "--seeds", "2"]) == 2
    output = capsys.readouterr()
    assert "not run: few-shot in even-1: out of order" in output.out
    assert "not run: rows: fedavg; few-shot\nnot run: columns: Digits\n" in output.out
    assert output.err.strip() == "python -m benchmarks.papers: fedavg in even-0: out of order (and 3 more)"


def test_alone_it_lists_the_tables_and_what_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEVICE_RUNTIME_DATA", raising=False)
    assert papers.main([]) == 0
    text = capsys.readouterr().out
    assert "paper:002-t4.3" in text
    assert "7 systems, 4 columns; data for smoke; no CIFAR-10" in text
    assert "paper:002-t4.8      averages the few-shot classifier" in text
    assert "data: no folder; give --data-dir DIR" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["paper:002-t0"], "no table 'paper:002-t0'"),
        (["paper:002-t4.3"], "no CIFAR-10 for scale cpu without a data folder"),
        (["paper:002-t4.3", "--data-dir", "nowhere"], "nowhere: no such folder"),
        (["nowhere"], "no table 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_one_line(monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEVICE_RUNTIME_DATA", raising=False)
    assert papers.main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue.names())
def test_every_table_runs_at_scale_smoke(name, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", name, "--scale", "smoke", "--format", "json",
         "--run-dir", tmp_path],
        capture_output=True, text=True, timeout=900, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    whole = json.loads(ended.stdout)
    assert not whole["not_run"]
    assert whole["columns"]
