import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.partition.methods import Sizes, apportioned


def test_the_largest_remainders_get_what_is_left():
    # 10 by 1 : 2 : 4 is 1.43, 2.86, 5.71: floors are 1, 2, 5, and the two left go to .86 and .71
    assert apportioned(np.array([1.0, 2.0, 4.0]), 10).tolist() == [1, 3, 6]


def test_the_least_comes_first():
    # 2 each, and 4 by 1 : 3
    assert apportioned(np.array([1.0, 3.0]), 8, least=2).tolist() == [3, 5]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.integers(0, 1000), st.integers(0, 5))
def test_what_is_apportioned_sums_to_the_total(weights, extra, least):
    total = extra + least * len(weights)
    sizes = apportioned(np.array(weights), total, least)
    assert sizes.sum() == total
    assert sizes.min() >= least


def test_equal_sizes_leave_the_remainder():
    assert Sizes().draw(10, 3, np.random.default_rng(0)).tolist() == [3, 3, 3]
    assert Sizes(each=2).draw(10, 3, np.random.default_rng(0)).tolist() == [2, 2, 2]


def test_log_normal_sizes_have_the_spread_asked_for():
    sizes = Sizes(sigma=0.7).draw(10_000_000, 5000, np.random.default_rng(0))
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.05)
    assert sizes.sum() == 10_000_000


def test_a_mean_and_a_skew_go_together():
    sizes = Sizes(each=50, sigma=1.0).draw(100_000, 1000, np.random.default_rng(0))
    assert sizes.sum() == 50_000
    assert sizes.max() > 200


def test_a_small_alpha_gives_a_few_nearly_everything():
    few, many = (
        np.sort(Sizes(alpha=alpha).draw(100_000, 100, np.random.default_rng(0)))[-5:].sum()
        for alpha in (0.05, 10.0)
    )
    assert few > 50_000 > 20_000 > many


def test_too_few_samples_are_said_with_the_way_out():
    rng = np.random.default_rng(0)
    with pytest.raises(DataSetError, match="3 devices of 4 samples need 12, the data has 10: .*reuse = true"):
        Sizes(each=4).draw(10, 3, rng)
    with pytest.raises(DataSetError, match="10 samples do not give each of 11 devices 1 or more"):
        Sizes().draw(10, 11, rng)
    with pytest.raises(DataSetError, match="each of 3 devices 4 or more"):
        Sizes(sigma=1.0, least=4).draw(10, 3, rng)
    with pytest.raises(
        DataSetError, match="samples_per_client is 11, the data has 10: a device cannot have a sample twice"
    ):
        Sizes(each=11, reuse=True).draw(10, 3, rng)
