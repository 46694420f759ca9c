"""Pictures of tables."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from benchmarks.papers import pictures
from benchmarks.papers.outcome import TableOutcome
from benchmarks.papers.runs import WantedTable
from device_runtime.simulation.compare.figures import FinishedRun
from device_runtime.simulation.compare.run_folder import RunInfo, RunName
from device_runtime.simulation.history.metrics import tally


@pytest.fixture
def run(round_line):
    def make(*accuracies):
        lines = tuple(
            round_line(round=number, eval_acc=each, closed_s=10.0 * number)
            for number, each in enumerate(accuracies, 1)
        )
        info = RunInfo(policy="drop", seed=0, sha256="")
        return FinishedRun(RunName("drop", 0), info, lines, tally([]))

    return make


@pytest.fixture
def outcome(table, tmp_path, run):
    runs = (run(0.1, nan, 0.3), run(0.3, nan, 0.5))
    values = {("drop", "even"): (0.3, 0.5), ("drop", "efficiency"): (0.1, 0.2)}
    return TableOutcome(
        WantedTable(table, "cpu", 2, tmp_path),
        values,
        {},
        {},
        runs={("drop", "even"): runs, ("drop", "uneven"): (None, None), ("drop", "efficiency"): runs},
    )


def test_a_curve_is_the_mean_over_seeds_in_rounds_that_all_evaluated(run):
    at, value = pictures.mean_curve([run(0.1, 0.2, 0.3), run(0.3, nan, 0.5)])
    assert at.tolist() == [1.0, 3.0]
    assert value.tolist() == pytest.approx([0.2, 0.4])
    assert [each.size for each in pictures.mean_curve([])] == [0, 0]


def test_a_curve_over_time_ends_with_the_shortest_run(run):
    at, value = pictures.mean_curve([run(0.1, 0.2, 0.3), run(0.3, 0.4)], "time")
    assert (at[0], at[-1]) == (10.0, 20.0)
    assert np.allclose((value[0], value[-1]), (0.2, 0.3))


def test_columns_with_curves_or_values_are_drawn_and_others_are_not(outcome):
    assert [column.id for column in pictures._panels(outcome)] == ["even", "efficiency"]


def test_equal_outcomes_give_equal_pictures_and_none_without_runs(outcome):
    pytest.importorskip("matplotlib")
    first = pictures.svg(outcome)
    assert first.startswith("<?xml")
    assert first.rstrip().endswith("</svg>")
    assert pictures.svg(outcome) == first
    assert pictures.svg(replace(outcome, runs={}, values={})) is None


def test_a_curve_is_of_the_model_that_the_measure_looks_at(outcome, run, changed):
    lines = tuple(replace(line, base_eval_acc=0.9) for line in run(0.1, 0.2).rounds)
    rows = [{"system": "drop", "measure": "late_acc_trained"}, {"system": "few-shot"}]
    request = replace(outcome.request, table=changed(rows=rows, claims=[]))
    both = {(row, "even"): (replace(run(), rounds=lines),) for row in ("drop", "few-shot")}
    outcome_ = replace(outcome, request=request, runs=both)
    table = request.table
    assert pictures._curve(outcome_, table.rows[0], table.columns[0])[1].tolist() == [0.9, 0.9]
    assert pictures._curve(outcome_, table.rows[1], table.columns[0])[1].tolist() == [0.1, 0.2]


@pytest.mark.parametrize(("times", "scale"), [(2, "linear"), (50, "log")])
def test_the_axis_of_time_is_logarithmic_where_rows_end_far_apart(outcome, run, changed, times, scale):
    figures = pytest.importorskip("matplotlib.figure")
    column = {"id": "even", "title": "", "data": "digits", "measure": "late_acc_at_time"}
    rows = [{"system": "drop"}, {"system": "few-shot"}]
    table = changed(columns=[column], rows=rows, claims=[], scales={"cpu": {}})
    fast = run(0.1, 0.2)
    slow = replace(fast, rounds=tuple(replace(each, closed_s=times * each.closed_s) for each in fast.rounds))
    outcome_ = replace(
        outcome,
        request=replace(outcome.request, table=table),
        runs={("drop", "even"): (fast,), ("few-shot", "even"): (slow,)},
    )
    on = figures.Figure().subplots()
    pictures._curves(on, outcome_, table.columns[0])
    assert on.get_xscale() == scale
