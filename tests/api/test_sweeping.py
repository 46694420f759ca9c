"""`device_runtime.sweep`: a small grid with real training, and what is refused before any."""

import csv
from pathlib import Path

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.cli import main
from device_runtime.simulation.errors import ScenarioError

SMALL = {"fleet": "phones", "devices": 10, "policy": "few-shot", "progress": False}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "run"
    return dr.sweep("digits", lr=[1e-6, 0.1], rounds=2, seeds=2, run_dir=folder, **SMALL)


def test_the_best_point_is_named_by_held_out_samples(swept):
    assert swept.best.values == {"lr": 0.1}
    assert swept.table().startswith("best: lr=0.1 with accuracy ")
    assert "judged by 20% of the training samples, held out; no run saw the test samples" in swept.table()
    rows = swept.to_dict()
    assert [(row["lr"], row["seeds"], row["best"]) for row in rows] == [(1e-6, 2, False), (0.1, 2, True)]
    assert rows[1]["accuracy"] > rows[0]["accuracy"] and rows[1]["accuracy_sd"] is not None
    assert "lr" in swept._repr_html_() and repr(swept).startswith("<SweepResult of 2 points; best: lr=0.1")


def test_every_point_is_a_simulation_whose_test_samples_are_those_of_validation(swept):
    runs = swept[{"lr": 0.1}]
    assert runs.scenario.data.validation_share == 0.2
    assert runs.scenario.task.rounds == 2
    last = [run.accuracy.mean() for run in runs.runs]  # of both rounds, the last five at most
    assert swept.to_dict()[1]["accuracy"] == pytest.approx(np.mean(last))
    with pytest.raises(ScenarioError, match=r"there is no point \{'lr': 7\}; there are lr=1e-06; lr=0.1"):
        swept[{"lr": 7}]


def test_a_sweep_goes_on_in_its_folder_and_is_loaded_from_it(swept):
    before = {path: path.stat().st_mtime_ns for path in swept.folder.rglob("run.json")}
    again = dr.sweep("digits", lr=[1e-6, 0.1], rounds=2, seeds=2, run_dir=swept.folder, **SMALL)
    assert {path: path.stat().st_mtime_ns for path in swept.folder.rglob("run.json")} == before
    assert again.to_dict() == swept.to_dict() == dr.SweepResult.load(swept.folder).to_dict()


@pytest.mark.slow
def test_the_best_alone_is_run_on_the_test_samples_by_the_command_and_from_python(swept, capsys):
    words = swept.report().split()
    assert words[:3] == ["device-runtime", "simulate", "--run-dir"]
    assert main(words[1:]) == 0
    assert f"report {words[3]}/report.html" in capsys.readouterr().out
    by_command = dr.SimulationResult.load(words[3])
    here = dr.simulate(swept.best.scenario, policies=[swept.best.policy], seeds=2, progress=False)
    assert [run.accuracy.tolist() for run in here.runs] == [run.accuracy.tolist() for run in by_command.runs]
    with (swept.folder / "sweep.csv").open(newline="") as file:
        assert [row["lr"] for row in csv.DictReader(file)] == ["1e-06", "0.1"]


@pytest.mark.slow
def test_the_command_sweeps_too_and_goes_on_by_its_folder_alone(capsys):
    words = ["phones", "--devices", "10", "--rounds", "1", "--policy", "few-shot,fedavg"]
    assert main(["simulate", *words, "--sweep", "batch=8,16", "--run-dir", "here"]) == 0
    first = capsys.readouterr().out
    assert "4 points of batch, policy" in first and "best: batch=" in first
    assert main(["simulate", "--run-dir", "here"]) == 0
    again = capsys.readouterr().out
    assert "4 of them finished before" in again
    assert again.partition("best: ")[2] == first.partition("best: ")[2]
    assert Path("here/sweep.png").exists()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"lrr": [0.1]}, "no setting is called 'lrr'"),
        ({"lr": ["fast"]}, "lr=fast: expected a number, more than 0"),
        ({"lr": [0.1], "epochs": 0}, "epochs=0: expected a whole number, 1 to"),
        ({"lr": 0.1}, "a sweep needs settings to vary"),
        ({"points": [{"lr": 0.1}], "epochs": [1, 2]}, "points and a list of epochs: give one of them"),
        ({"lr": [0.1], "validation_share": 1.5}, "validation_share is 1.5, expected more than 0"),
        ({"lr": [0.1], "seeds": [-1]}, r"seeds is \[-1\], expected a number of seeds, or whole numbers"),
        ({"devices": [10, 5000]}, "devices=5000: 5000 devices, but"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(settings, message):
    with pytest.raises(ScenarioError, match=message):
        dr.sweep("digits", run_dir="here", progress=False, **settings)
    assert not Path("here").exists()


def test_parts_of_a_comparison_are_joined():
    for seed in (0, 1):
        dr.simulate(
            "digits", fleet="phones", devices=10, rounds=1, policies=["few-shot"], seeds=[seed],
            run_dir=f"part-{seed}", progress=False,
        )  # fmt: skip
    joined = dr.compare("part-0", "part-1")
    assert joined.policies == ("few-shot",)
    assert joined.summary["few-shot"]["final_acc"].n == 2
    assert dr.compare("part-0", "part-1", apart=True).policies == ("part-0/few-shot", "part-1/few-shot")
