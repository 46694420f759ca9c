import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.partition import classes, shards


@pytest.fixture
def labels():
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))


def test_two_shards_are_two_classes_where_shards_divide_them(labels):
    # 600 samples in 30 * 2 shards of 10: six shards are one class
    parts = shards(labels, 30, 2, np.random.default_rng(1))
    assert [len(part) for part in parts] == [20] * 30
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert max(len(np.unique(labels[part])) for part in parts) == 2


def test_the_remainder_of_shards_is_drawn_from_all_classes(labels):
    # 7 * 3 shards of 28 samples leave 12
    parts = shards(labels, 7, 3, np.random.default_rng(1))
    used = np.concatenate(parts)
    assert (len(used), len(np.unique(used))) == (588, 588)
    assert len(np.unique(np.delete(labels, used))) > 3


@given(devices=st.integers(1, 60), each=st.integers(1, 10), seed=st.integers(0, 1000))
def test_every_device_has_exactly_n_classes(devices, each, seed):
    y = np.repeat(np.arange(10), 60)
    parts = classes(y, devices, each, np.random.default_rng(seed))
    assert [len(np.unique(y[part])) for part in parts] == [each] * devices
    every = np.concatenate(parts)
    assert len(np.unique(every)) == len(every)
    holders = np.bincount(np.concatenate([np.unique(y[part]) for part in parts]), minlength=10)
    assert holders.max() - holders.min() <= 1


def test_pairs_of_classes_are_mixed(labels):
    parts = classes(labels, 60, 2, np.random.default_rng(0))
    assert len({tuple(np.unique(labels[part])) for part in parts}) > 20  # of 45


def test_a_cap_is_divided_among_the_classes(labels):
    parts = classes(labels, 20, 3, np.random.default_rng(0), most=7)
    assert all(np.bincount(labels[part])[np.unique(labels[part])].tolist() == [2, 2, 2] for part in parts)


def test_what_does_not_suffice_is_said():
    y = np.repeat([0, 1], [50, 2])
    with pytest.raises(DataSetError, match="class 1 has 2 samples for 3 devices"):
        classes(y, 3, 2, np.random.default_rng(0))
    with pytest.raises(DataSetError, match="classes_per_client is 3, the training data has 2 classes"):
        classes(y, 3, 3, np.random.default_rng(0))
    with pytest.raises(DataSetError, match="27 devices of 2 shards need as many samples, the data has 52"):
        shards(y, 27, 2, np.random.default_rng(0))
