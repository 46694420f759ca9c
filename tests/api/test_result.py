"""What a simulation returns: curves, tables, pictures, the report."""

import builtins
import json
from math import isnan

import numpy as np
import pytest

from device_runtime.api import result as results
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.report.write import PICTURES


def test_a_run_has_its_curve_and_figures(small):
    run = small.run("class-means")
    assert (run.policy, run.seed, run.round.tolist()) == ("class-means", 0, [1, 2])
    assert run.time_s.dtype == np.float64
    assert (np.diff(run.time_s) > 0).all()
    assert run.figures.final_acc == run.accuracy[-1]
    assert run.figures.bytes_up == run.columns()["bytes_up"].sum()
    assert "fc.weight" in run.weights() or run.weights()
    with pytest.raises(SimulationError, match=r"there is no run drop-0; there are few-shot-0, class-means-0"):
        small.run("drop")


def test_the_table_is_that_of_the_command(small):
    table, whole = small.table(), small.table(whole=True)
    assert [line.split()[0] for line in table.splitlines()[4:6]] == ["few-shot", "class-means"]
    assert table.splitlines()[0] == whole.splitlines()[0]
    assert "points over" in table.splitlines()[0]
    assert "accuracy at equal rounds, time, energy and bytes" in whole
    narrow = small.table(width=40)
    assert len(narrow.splitlines()) > len(table.splitlines())


def test_figures_are_plain_values(small):
    whole = small.to_dict()
    assert json.loads(json.dumps(whole)) == whole
    assert whole["policies"]["few-shot"]["final_acc"]["mean"] == pytest.approx(small.runs[0].accuracy[-1])
    assert [run["policy"] for run in whole["runs"]] == ["few-shot", "class-means"]
    assert len(whole["runs"][0]["rounds"]["accuracy"]) == 2
    assert whole["runs"][1]["rounds"]["closed_form_eval_acc"] == [None, None]  # a kind alone has no such head
    assert all(isnan(line.closed_form_eval_acc) for line in small.runs[1].rounds)


def test_a_data_frame_has_a_row_for_each_round_of_each_run(small):
    pytest.importorskip("pandas")
    frame = small.to_pandas()
    assert list(frame.columns[:4]) == ["policy", "seed", "round", "opened_s"]
    assert (
        frame[frame.policy == "class-means"].accuracy.tolist() == small.run("class-means").accuracy.tolist()
    )
    assert len(frame) == 4


def test_pictures_have_plain_names_and_are_shown_by_notebooks(small, tmp_path):
    picture = small.plot("accuracy", tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG"
    assert picture.figure.axes
    with pytest.raises(SimulationError, match=f"no picture 'beauty'; there are {', '.join(PICTURES)}"):
        small.plot("beauty")
    with pytest.raises(SimulationError, match="nothing to draw in picture 'groups'"):
        small.plot("groups")


def test_the_docstring_names_every_picture():
    assert f"Names: {', '.join(PICTURES)}." in " ".join(results.SimulationResult.plot.__doc__.split())


def test_without_matplotlib_the_message_says_what_to_install(small, monkeypatch):
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'device-runtime\[simulation\]'"):
        small.plot()


def test_nothing_but_a_data_frame_needs_pandas(small, monkeypatch):
    imported = builtins.__import__

    def without_pandas(name, *rest):
        if name.startswith("pandas"):
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    assert small.table() and small.to_dict()
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        small.to_pandas()


@pytest.mark.slow
def test_the_report_is_a_page_in_the_folder_that_is_given(small, tmp_path):
    page = small.report(tmp_path / "report")
    assert page == tmp_path / "report" / "report.html"
    assert "device_runtime.simulate" in page.read_text("utf-8")
    assert {path.name for path in page.parent.iterdir()} == {
        "report.html", "accuracy.png", "rounds.csv", "summary.json",
    }  # fmt: skip


def test_notebooks_show_the_sentence_and_the_short_table(small):
    page = small._repr_html_()
    assert page.startswith("<p>") and "class-means</th>" in page and "at the end" in page
    assert repr(small) == "<SimulationResult of few-shot, class-means>"


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match="is not the folder of a simulation"):
        results.SimulationResult.load(tmp_path)
