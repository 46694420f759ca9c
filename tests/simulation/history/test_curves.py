"""Steps of accuracy over time, bytes and energy, worked by hand."""

from math import isnan, nan

import numpy as np
import pytest

from device_runtime.simulation.history.metrics import Curve, accuracy

CURVE = Curve(np.array([10.0, 20.0, 30.0]), np.array([0.4, 0.7, 0.6]))


@pytest.mark.parametrize("at, value", [(10, 0.4), (19.9, 0.4), (20, 0.7), (29, 0.7), (1000, 0.6)])
def test_a_model_is_served_until_the_next_one_is(at, value):
    assert CURVE.when(at) == value


def test_before_the_first_evaluation_nothing_is_known():
    assert isnan(CURVE.when(9.9))


def test_a_target_is_reached_when_the_accuracy_first_is_as_high():
    assert CURVE.reaches(0.4) == 10
    assert CURVE.reaches(0.5) == 20
    assert isnan(CURVE.reaches(0.71))


def test_the_best_may_be_before_the_end():
    assert (CURVE.best, CURVE.final) == (0.7, 0.6)


def test_samples_are_known_between_the_first_and_the_last_point_only():
    samples = CURVE.sampled(np.array([5.0, 10, 25, 30, 31]))
    assert samples == pytest.approx([nan, 0.4, 0.7, 0.6, nan], nan_ok=True)


def test_a_run_without_evaluation_has_no_accuracy_anywhere():
    empty = accuracy([])
    assert all(isnan(value) for value in (empty.final, empty.best, empty.when(1), empty.reaches(0)))
    assert np.isnan(empty.sampled(np.array([0.0, 1.0]))).all()


def test_rounds_that_were_not_evaluated_cost_and_show_no_point(round_line):
    rounds = [
        round_line(closed_s=5.0, eval_acc=nan),
        round_line(round=2, closed_s=9.0, eval_acc=0.3),
        round_line(round=3, closed_s=14.0, eval_acc=0.5),
    ]
    for axis, at in (("rounds", [2, 3]), ("time", [9, 14]), ("bytes", [8000, 12000]), ("energy", [60, 90])):
        assert accuracy(rounds, axis).at.tolist() == at
    assert accuracy(rounds).value.tolist() == [0.3, 0.5]


def test_a_mean_at_a_point_is_of_the_latest_values_up_to_it():
    assert CURVE.when(29, 2) == pytest.approx(0.55)
    assert CURVE.when(29, 9) == pytest.approx(0.55)
    assert isnan(CURVE.when(9, 2))


def test_a_smoothed_value_is_the_mean_of_the_latest_that_there_are():
    assert CURVE.smoothed(2).value == pytest.approx([0.4, 0.55, 0.65])
    assert CURVE.smoothed(9).final == pytest.approx(1.7 / 3)
    assert CURVE.smoothed(1).value == pytest.approx(CURVE.value)
    assert isnan(accuracy(()).smoothed(5).final)
