"""Curves of seeds that have no point of an axis in common."""

import numpy as np
import pytest

from device_runtime.simulation.history.metrics import Curve
from device_runtime.simulation.report import accuracy
from device_runtime.simulation.report.canvas import panels


def curve(*at):
    return Curve(np.array(at, float), np.linspace(0.2, 0.8, len(at)))


def test_seeds_of_which_one_ends_before_another_begins_are_drawn_each_by_itself():
    _, axes = panels(1, 1, 3)
    accuracy._curve(axes[0, 0], "few-shot", [curve(1.0, 2.0), curve(5.0, 9.0)], size=1.0)
    drawn = [line.get_xdata().tolist() for line in axes[0, 0].lines if len(line.get_xdata()) > 1]
    assert drawn == [[1.0, 2.0], [5.0, 9.0]]
    assert list(axes[0, 0].get_legend_handles_labels()[1]) == ["few-shot"]


def test_seeds_that_overlap_have_a_mean_and_a_band_as_far_as_both_go():
    _, axes = panels(1, 1, 3)
    accuracy._curve(axes[0, 0], "few-shot", [curve(1.0, 4.0), curve(2.0, 9.0)], size=1.0)
    mean = axes[0, 0].lines[0].get_xdata()
    assert (mean[0], mean[-1]) == (2.0, 4.0)
    assert len(axes[0, 0].collections) == 1


@pytest.mark.parametrize(
    "curves, end", [([curve(1.0, 4.0), curve(2.0, 9.0)], 4.0), ([curve(1.0, 2.0), curve(5.0, 9.0)], 9.0)]
)
def test_the_axis_ends_where_all_seeds_go_or_with_the_last_of_those_apart(curves, end):
    assert accuracy._end(curves) == end


@pytest.mark.parametrize("classes", [3, 30])
def test_classes_without_a_recall_are_left_out_of_the_drawing(classes, recwarn):
    """As of data without test samples of a class, and of a model that gives no number."""
    rows = np.full((2, classes), 0.5)
    rows[:, 1] = np.nan
    _, axes = panels(1, 1, 3)
    accuracy._by_class(axes[0, 0], "few-shot", rows, 0.0)
    accuracy._by_class(axes[0, 0], "drop", np.full((2, classes), np.nan), 0.0)
    assert len(axes[0, 0].lines[0].get_xdata()) == classes - 1
    assert not recwarn.list


def test_a_curve_that_lies_on_another_one_says_so_in_the_legend():
    _, axes = panels(1, 1, 3)
    on, drawn = axes[0, 0], {}
    for policy, curves in {"a": [curve(1.0, 4.0)], "b": [curve(1.0, 4.0)], "c": [curve(1.0, 5.0)]}.items():
        accuracy._curve(on, policy, curves, size=1.0)
        accuracy._mark_twin(on, policy, drawn.setdefault(accuracy._outline(curves), policy))
    assert on.get_legend_handles_labels()[1] == ["a", "b (same as a)", "c"]
