import logging

import numpy as np
import pytest

from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.partition import natural

GROUPS = np.array([5, 5, 5, 2, 2, 9, 9, 9, 9, 0])  # writers 0, 2, 5, 9 with 1, 2, 3, 4 samples


def owners(parts, groups):
    return [sorted(set(groups[part].tolist())) for part in parts]


def test_as_many_devices_as_groups_have_one_each():
    parts = natural(GROUPS, 4, np.random.default_rng(0))
    assert sorted(owners(parts, GROUPS)) == [[0], [2], [5], [9]]
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))


def test_fewer_devices_have_several_groups_and_it_is_said(caplog):
    with caplog.at_level(logging.INFO):
        parts = natural(GROUPS, 2, np.random.default_rng(0))
    assert [len(names) for names in owners(parts, GROUPS)] == [2, 2]
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    assert "4 groups for 2 devices: 2 each" in caplog.text


def test_one_group_each_leaves_the_others_unused(caplog):
    with caplog.at_level(logging.INFO):
        parts = natural(GROUPS, 3, np.random.default_rng(0), each=1)
    assert [len(names) for names in owners(parts, GROUPS)] == [1, 1, 1]
    assert "1 of 4 groups stay unused, 0 of them too small" in caplog.text


def test_small_groups_are_left_out():
    assert sorted(owners(natural(GROUPS, 2, np.random.default_rng(0), least=3), GROUPS)) == [[5], [9]]


def test_samples_of_nobody_are_dealt_to_all():
    groups = np.array([1, 1, 2, 2, -1, -1, -1, -1])
    parts = natural(groups, 2, np.random.default_rng(0))
    assert [np.bincount(groups[part] + 1).tolist()[0] for part in parts] == [2, 2]
    assert sorted(np.concatenate(parts).tolist()) == list(range(8))


def test_more_devices_than_groups_is_an_error():
    with pytest.raises(DataSetError, match="5 devices need 5 groups, the data has 4 of 1 samples or more"):
        natural(GROUPS, 5, np.random.default_rng(0))
    with pytest.raises(DataSetError, match="3 devices need 6 groups, the data has 4"):
        natural(GROUPS, 3, np.random.default_rng(0), each=2)
