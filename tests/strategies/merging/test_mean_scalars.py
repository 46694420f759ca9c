import numpy as np

from device_runtime.strategies.interface.device_half import Late
from device_runtime.strategies.kinds.zeroth_order import MeanScalars

NOW = Late(7, 70, 1.0)


def test_scalars_are_averaged_by_weight():
    state = MeanScalars.empty(2).add(np.array([1.0, 2.0]), 30, None).add(np.array([5.0, 2.0]), 10, None)
    [mean] = state.means(NOW)
    assert (mean.of, mean.scalars.tolist(), mean.share) == (NOW, [2.0, 2.0], 1.0)  # (30 * 1 + 10 * 5) / 40


def test_what_comes_late_is_along_directions_of_its_own_round():
    late, later = Late(5, 50, 0.5), Late(6, 60, 0.7)
    state = MeanScalars.empty(1).add(np.array([4.0]), 10, later).add(np.array([1.0]), 20, None)
    state = state.add(np.array([2.0]), 5, late).add(np.array([6.0]), 5, late)
    means = list(state.means(NOW))
    assert [(mean.of, mean.scalars.tolist(), mean.share) for mean in means] == [
        (late, [4.0], 0.25), (later, [4.0], 0.25), (NOW, [1.0], 0.5)
    ]  # fmt: skip
    assert state.whole == 40


def test_of_nobody_there_is_no_mean():
    assert list(MeanScalars.empty(3).means(NOW)) == []


def test_the_median_is_that_of_the_mean_squares_of_devices_and_of_two_the_smaller():
    state = MeanScalars.empty(2, squares=True)
    assert state.median == float("inf")
    for g in ([1.0, 1.0], [1e9, 1e9]):
        state = state.add(np.array(g), 10, None)
    assert state.median == 1.0
    assert state.add(np.array([2.0, 4.0]), 10, None).median == 10.0
    assert MeanScalars.empty(2).add(np.ones(2), 1, None).median == float("inf")


def test_the_squares_of_many_devices_are_gathered_in_a_moment():
    state = MeanScalars.empty(1, squares=True)
    for g in range(20_001):
        state = state.add(np.array([float(g)]), 1, None)
    assert state.median == 10_000.0**2
