"""Sensor data as people use it: synthetic persons, a bundle, a simulation, devices over MQTT, predictions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import device_runtime as dr
from device_runtime.cli import main

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[1] / "examples" / "activities.py"
LABELS = "sitting,stairs,walking,running"


def test_devices_learn_activities_from_recordings_and_name_those_of_a_new_one(
    broker, launched, program, lines, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, EXAMPLE, "people", "--persons", "3", "--seconds", "12"], check=True)
    network = ("cnn1d", "--set", "classes=4", "--set", "width=0.5", "--input", "3,64")
    windows = ("--window-step", "32", "--columns", "x,y,z", "--standardise", "people")
    sets = ("--tunable", "all", "--labels", LABELS, "--out", "bundle")
    assert main(["export", *network, *windows, *sets]) == 0

    data = dr.data.recordings("people", partition="natural")
    simulated = dr.simulate("bundle", data=data, kinds=["full"], devices=2, rounds=1, progress=False)
    assert 0 <= simulated.runs[0].rounds[-1].eval_acc <= 1

    serving = ("--bundle", "bundle", "--rounds", 2, "--deadline", 600, "--kinds", "full", "--run-dir", "run")
    settings = (
        "--name",
        "p01",
        "--state",
        "state",
        "--data",
        "people/p01",
        "--held-out",
        0.2,
        "--personal-head",
    )
    with (
        launched(tmp_path / "serve.log", "serve", *serving, "--broker", broker.url) as serve,
        launched(tmp_path / "p01.log", "join", broker.url, *settings, "--until-done") as device,
    ):
        assert device.wait(600) == 0
        assert serve.wait(600) == 0
    holdout = json.loads(Path("state/personal/model.json").read_text())["rounds"][0]["served"]["num_examples"]
    trained = [row["num_examples"] for row in lines(Path("run/contributions.jsonl"))]
    assert trained == [4 * 2 * 17 - holdout] * 2  # 600 rows give 17 windows
    assert holdout % 17 == 0

    process = subprocess.run(
        [program, "predict", "--state", "state", "--format", "json", "people/p01/running/2.csv"],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    answers = json.loads(process.stdout)
    assert [answer["number"] for answer in answers] == list(range(17))
    assert sum(answer["guesses"][0]["label"] == "running" for answer in answers) > 8
