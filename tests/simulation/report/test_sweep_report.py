"""The report of a sweep, worked by hand."""

import csv
from math import nan

import pytest

from device_runtime.simulation.compare.figures import spread
from device_runtime.simulation.compare.sweep import WantedSweep, planned_sweep
from device_runtime.simulation.report.sweep_report import PointFigures, SweepFigures, drawn, write_sweep
from device_runtime.simulation.scenarios import scenario


@pytest.fixture
def swept(tmp_path):
    """A function of axes or points, and of the metric by seed of each point; a point without them failed."""

    def make(values, by_seed, metric="accuracy"):
        selection = WantedSweep(values if isinstance(values, dict) else None, values, seeds=2)
        plan = planned_sweep(scenario.load("digits"), selection, tmp_path / "run")
        plan.save()
        points = [
            PointFigures(
                point,
                dict(enumerate(each)),
                spread(each),
                spread([30.0, 32.0]),
                spread([1000.0, 1200.0]),
                spread([5e6, 6e6]),
            )
            if each
            else PointFigures(point, {}, why="diverged")
            for point, each in zip(plan.points, by_seed, strict=True)
        ]
        return SweepFigures(plan, metric, tuple(points))

    return make


def test_the_best_point_leads_the_next_one_by_seed(swept):
    read = swept({"lr": [0.01, 0.1, 1.0]}, [(0.80, 0.84), (0.90, 0.92), (0.88, 0.89)])
    # by seed 0.02 and 0.03: 2.5 ± 12.706 * 0.707 / sqrt(2) = 6.35
    assert read.sentence() == "best: lr=0.1 with accuracy 91.0 ± 1.4%, 2.5 [-3.9, 8.9] points over lr=1"
    text = read.text().splitlines()
    assert text[1].startswith("judged by 20% of the training samples, held out; no run saw the test samples")
    assert text[3].split() == ["lr", "accuracy", "virtual", "time", "energy", "(modelled)", "bytes"]
    assert [line.split()[0] for line in text[5:8]] == ["0.01", "0.1", "1"]
    assert [line.endswith("best") for line in text[5:8]] == [False, True, False]


def test_a_point_with_a_seed_that_has_no_figure_is_not_the_best(swept):
    read = swept({"lr": [0.01, 0.1, 1.0]}, [(0.80, 0.84), (0.99, nan), ()])
    assert read.best.point.values == {"lr": 0.01}
    assert read.text().splitlines()[-1] == "lr=1: diverged"
    nothing = swept({"lr": [0.01]}, [(nan, nan)])
    assert nothing.best is None
    assert nothing.sentence() == "no point is best: none has been evaluated in all of its runs"


def test_other_metrics_are_numbers(swept):
    read = swept({"lr": [0.01, 0.1]}, [(0.5, 0.5), (0.25, 0.25)], metric="R2")
    assert read.sentence() == "best: lr=0.01 with R2 0.500 ± 0.000, 0.250 [0.250, 0.250] over lr=0.1"


def test_the_files_have_a_row_a_point_and_the_command_runs_the_best_alone(swept):
    report = write_sweep(swept({"lr": [0.01, 0.1]}, [(0.80, 0.84), (0.90, 0.92)]))
    with report.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["lr"], float(row["accuracy"]), row["best"]) for row in rows] == [
        ("0.01", pytest.approx(0.82), "False"), ("0.1", pytest.approx(0.91), "True"),
    ]  # fmt: skip
    folder = report.table.parent
    assert report.command == f"device-runtime simulate --run-dir {folder / 'best' / 'lr=0.1'}"
    assert report.text().splitlines()[-1] == f"  {report.command}"
    assert report.picture.read_bytes()[:4] == b"\x89PNG"
    assert report.values()["best"] == {"lr": 0.1}


def lines_of(drawing):
    """The labels in the legend of a drawing, and the numbers on its x axis of each line."""
    [on] = drawing.figure.axes
    handles, labels = on.get_legend_handles_labels()
    return {
        label: handle.lines[0].get_xdata().tolist() for handle, label in zip(handles, labels, strict=True)
    }


def test_a_grid_is_drawn_over_its_longest_numeric_setting_with_a_line_for_each_other_value(swept):
    axes = {"policy": ["fedavg", "few-shot"], "lr": [0.001, 0.01, 0.1]}
    read = swept(axes, [(0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.1, 0.2), (0.2, 0.3), (0.3, 0.4)])
    drawing = drawn(read)
    [on] = drawing.figure.axes
    assert (on.get_xlabel(), on.get_xscale()) == ("lr", "log")
    same = "policy=few-shot (same as policy=fedavg)"
    assert lines_of(drawing) == {"policy=fedavg": [0.001, 0.01, 0.1], same: [0.001, 0.01, 0.1]}


def test_points_without_a_numeric_setting_are_rows(swept):
    read = swept({"late": ["discard", "count"]}, [(0.1, 0.2), ()])
    [on] = drawn(read).figure.axes
    assert [label.get_text() for label in on.get_yticklabels()] == ["late=discard", "late=count"]
