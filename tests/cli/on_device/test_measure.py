import csv
import json
import re

import numpy as np
import pytest

from device_runtime.cli import main
from device_runtime.device.measurement import measurement as trials


@pytest.mark.slow
def test_every_kind_is_measured_beside_its_prediction(capsys, tmp_path):
    files = tmp_path / "kinds.csv", tmp_path / "kinds.png"
    arguments = ("--kinds", "few-shot,class-means", "--repeats", "2", "--samples", "50")
    assert (
        main(["measure", *arguments, "--meter", "modelled", "--csv", str(files[0]), "--plot", str(files[1])])
        == 0
    )
    output = capsys.readouterr().out
    assert "energy: modelled, from 2 W idle, 8 W under load (assumed: no profile), ± 100%" in output
    for kind in ("few-shot", "class-means"):
        assert re.search(rf"^{kind} .* ± .* modelled ± 100% ", output, re.M)
    assert "Medians of 2 runs" in output
    rows = list(csv.DictReader(files[0].open(newline="")))
    assert [row["kind"] for row in rows] == ["few-shot", "class-means"] * 2
    assert all(float(row["seconds"]) > 0 and float(row["predicted_s"]) > 0 for row in rows)
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_json_has_the_kinds_and_their_runs(capsys):
    arguments = ("--kinds", "class-means", "--repeats", "1", "--meter", "command:echo 3 W", "--idle", "0.01")
    assert main(["measure", *arguments, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["meter"], report["energy"]) == ("command", "what the command measures, ± 5%")
    assert report["idle_w"] > 0
    [kind], [run] = report["kinds"], report["runs"]
    assert kind["seconds"] == {"median": run["seconds"], "least": run["seconds"], "most": run["seconds"]}
    assert run["source"] == "command"


@pytest.mark.slow
def test_local_data_is_taken_where_it_is_given(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 8, 8), np.uint8), y=np.arange(6) // 2)
    arguments = (
        "measure",
        "--kinds",
        "class-means",
        "--repeats",
        "1",
        "--data",
        str(tmp_path),
        "--meter",
        "modelled",
    )
    assert main([*arguments]) == 0
    assert "class-means" in capsys.readouterr().out


@pytest.mark.slow
def test_a_kind_that_cannot_be_done_is_told_with_the_reason_and_nothing_at_all_is_a_failure(capsys):
    words = ("measure", "--kinds", "attention-transfer", "--repeats", "1", "--meter", "modelled")
    assert main([*words]) == 1
    assert re.search(r"^attention-transfer: .*needs graph", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--kinds", "telepathy"], "no kind of update is called 'telepathy'"),
        (["--data", "/nowhere"], "no data at /nowhere"),
        (["--csv", "/nowhere/kinds.csv"], "there is no folder /nowhere"),
        (["--plot", "kinds.xyz"], "--plot kinds.xyz: expected a name that ends in .png or .svg"),
        (["--csv", "/tmp"], "/tmp cannot be written: it is a folder"),
        (["--meter", "sundial"], "--meter sundial: expected one of auto"),
        (["--bundle", "nothing"], "neither a bundle folder"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(trials, "in_a_child", lambda order: pytest.fail("measured"))
    assert main(["measure", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_data_without_samples_of_the_task_is_refused_before_anything_is_measured(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(trials, "in_a_child", lambda order: pytest.fail("measured"))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8), np.uint8), y=np.array([77, 78]))
    assert main(["measure", "--data", str(tmp_path / "a.npz")]) == 2
    output = capsys.readouterr().err
    assert "no readable samples in" in output
    assert "DataError" not in output


def test_a_plot_without_matplotlib_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["measure", "--plot", str(tmp_path / "a.png")]) == 2
    assert "pip install 'device-runtime[simulation]'" in capsys.readouterr().err


def test_it_runs_the_updates_that_explain_plans_for_and_both_count_the_same_bytes(capsys):
    words = ("--samples", "100", "--kinds", "full,class-means")
    assert main(["explain", *words, "--board", "pi-5", "--format", "json"]) == 0
    plans = {row["kind"]: row["cost"] for row in json.loads(capsys.readouterr().out)}
    measured = ("--repeats", "1", "--idle", "0", "--meter", "modelled", "--format", "json")
    assert main(["measure", *words, *measured]) == 0
    kinds = {row["kind"]: row for row in json.loads(capsys.readouterr().out)["kinds"]}
    for name in ("full", "class-means"):
        assert kinds[name]["predicted_bytes_up"] == plans[name]["bytes_up"]
        assert kinds[name]["bytes_down"] == plans[name]["bytes_down"]
        assert kinds[name]["bytes_up"] == pytest.approx(plans[name]["bytes_up"], rel=0.03)
    statistics = 10 * (64 + 4 + 1) + 64 * 65  # at least: means of ten classes, second moments of features
    assert kinds["class-means"]["bytes_up"] > statistics
