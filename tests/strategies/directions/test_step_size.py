import numpy as np
import pytest

from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.strategies.directions.replaying import GRID, MOST, SMALLEST, ScalarMoment, relative, unit

SPECS = (TensorSpec("a", (3,)), TensorSpec("b", (1,)))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 1, 1], 1, 1.0),
        ([3, 3, 3], 3, 4.0),  # 2 ** 1.58
        ([2.8, 2.8, 2.8], 2.8, 2.0),  # 2 ** 1.49
        ([0, 0, 0], 1.0, 0.5),  # the root of 1/4
        ([0, 0, 0], 0.0, SMALLEST),
    ],
)
def test_the_unit_is_the_root_mean_square_as_the_nearest_power_of_two(a, b, expected):
    weights = {"a": np.array(a, np.float32), "b": np.array([b], np.float32), "other": np.full(9, 1e3)}
    assert unit(weights, SPECS, "relative") == expected
    assert unit(weights, SPECS, "absolute") == 1.0


def test_the_moment_is_a_mean_that_forgets_and_is_unbiased_from_the_first_on():
    moment = ScalarMoment().after(9.0, 0.9)
    assert moment.usual == pytest.approx(3.0)
    moment = moment.after(4.0, 0.9)
    assert moment.usual**2 == pytest.approx((0.9 * 0.1 * 9 + 0.1 * 4) / (0.9 * 0.1 + 0.1))
    assert ScalarMoment.of(moment.kept()) == moment
    assert ScalarMoment.of({}) == ScalarMoment()


def test_a_jump_is_remembered_as_no_more_than_the_step_that_it_makes():
    """A lie of a billion would else leave a thousand rounds without a step."""
    moment = ScalarMoment()
    for square in (1.0, 1.0, 1e18):
        moment = moment.after(square, 0.99)
    assert 1.0 < moment.usual < MOST / GRID
    for _ in range(600):
        moment = moment.after(10_000.0, 0.99)
    assert moment.usual == pytest.approx(100.0, rel=0.05)  # what stays is followed
    assert ScalarMoment().after(0.0, 0.99).after(1.0, 0.99).usual > 0.5


def test_a_jump_in_the_first_round_is_one_from_the_median_device():
    moment = ScalarMoment().after(1e18, 0.99, median=4.0)
    assert moment.usual == pytest.approx(2.0 * MOST / GRID)
    assert ScalarMoment().after(9.0, 0.99, median=4.0) == ScalarMoment().after(9.0, 0.99)


def test_the_second_round_bounds_the_first_which_had_nothing_to_be_bound_by():
    moment = ScalarMoment().after(1e18, 0.99).after(4.0, 0.99)
    assert moment.usual < 2.0 * MOST / GRID
    third = ScalarMoment().after(4.0, 0.99).after(4.0, 0.99).after(1e-6, 0.99)
    assert third.usual == pytest.approx(2.0 * (2 / 3) ** 0.5, rel=0.02)  # later ones do not


def test_relative_scalars_are_bytes_in_the_log_and_what_is_rounded_to_nothing_is_too():
    scalars = relative(np.array([-1e-9, 1e-9, -1.0]), 1.0)
    step = Step(1, "philox/1", 7, "all", 0.1, 1.0, tuple(scalars.tolist()))
    assert [stretch.form for stretch in steps.pack([step])] == ["i1"]


def test_relative_scalars_are_bytes():
    scalars = relative(np.array([2.0, -1.0, 0.03, 50.0, -50.0]), 2.0)
    assert scalars.tolist() == [32, -16, 0, MOST, -MOST]
    assert relative(np.array([2.0]), 0.0).tolist() == [0]
