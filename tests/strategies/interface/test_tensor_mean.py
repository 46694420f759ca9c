"""The mean of named tensors: by hand, and to the bit as one sum in float64 gives it."""

import numpy as np
import pytest

from device_runtime.models.engines.base import BLOCK
from device_runtime.strategies.interface.aggregator_half import TensorMean


def test_tensors_are_averaged_by_weight_over_those_who_trained_them():
    mean = TensorMean()
    mean = mean.add({"a": np.float32([1, 2]), "b": np.float32([5])}, 1.0)
    mean = mean.add({"a": np.float32([4, 8])}, 2.0)
    means = mean.mean()
    assert means["a"].tolist() == [3.0, 6.0]  # (1 + 2 * 4) / 3, (2 + 2 * 8) / 3
    assert means["b"].tolist() == [5.0]
    assert mean.weights == {"a": 3.0, "b": 1.0}


@pytest.mark.parametrize("shape", [(), (3,), (0,), (BLOCK,), (BLOCK + 1,), (3, BLOCK - 5)])
def test_sums_are_those_of_whole_tensors_in_float64_to_the_bit(shape):
    rng = np.random.default_rng(1)
    members = [(np.asarray(rng.standard_normal(shape), np.float32), w) for w in (0.1, 60.0, 3.7)]
    mean = TensorMean()
    for value, weight in members:
        mean = mean.add({"w": value}, weight)
    expected = members[0][0].astype(np.float64) * 0.1
    for value, weight in members[1:]:
        expected = expected + value.astype(np.float64) * weight
    assert mean.sums["w"].dtype == np.float64
    assert np.asarray(mean.sums["w"]).tobytes() == np.asarray(expected).tobytes()
    assert mean.mean()["w"].dtype == np.float32
    assert mean.mean()["w"].tobytes() == (expected / mean.weights["w"]).astype(np.float32).tobytes()


def test_a_member_is_copied_and_may_lie_anyhow_in_memory():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    mean = TensorMean().add({"w": value.T}, 1.0).add({"w": value.T}, 1.0)
    value[...] = 0
    assert mean.mean()["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_joined_means_are_those_over_the_members_of_both_and_leave_them_as_they_are():
    first = TensorMean().add({"a": np.float32([1.0])}, 1.0)
    two = TensorMean().add({"a": np.float32([4.0]), "b": np.float32([7.0])}, 2.0)
    joined = first.join(two)
    assert joined.mean()["a"].tolist() == [3.0]
    assert joined.mean()["b"].tolist() == [7.0]
    joined.add({"b": np.float32([1.0])}, 2.0)
    assert (first.sums["a"].tolist(), two.sums["b"].tolist()) == ([1.0], [14.0])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight):
    with pytest.raises(ValueError, match="a weight must be positive"):
        TensorMean().add({"a": np.float32([1.0])}, weight)


def test_a_tensor_of_another_shape_is_refused():
    mean = TensorMean().add({"a": np.zeros((2, 2), np.float32)}, 1.0)
    with pytest.raises(ValueError, match=r"a tensor is \(4,\), the ones before it were \(2, 2\)"):
        mean.add({"a": np.ones(4, np.float32)}, 1.0)
    assert not mean.sums["a"].any()


def test_each_element_is_averaged_over_those_who_gave_it():
    base = {"w": np.float32([[10, 20, 30], [40, 50, 60]])}
    mean = TensorMean().add_leading({"w": np.float32([[1, 2]])}, 1.0, base)
    mean = mean.add_leading({"w": np.float32([[4], [8]])}, 2.0, base)
    means = mean.mean()["w"]
    assert means.tolist() == [[3, 2, 30], [8, 50, 60]]  # (1 + 2 * 4) / 3; 2; nobody; 8; nobody
    assert means.dtype == np.float32
    assert mean.most == 3.0
    assert base["w"][0, 0] == 10


def test_whole_tensors_count_in_every_element_whether_they_come_before_or_after_or_are_joined():
    base = {"w": np.zeros(2, np.float32)}
    whole, part = {"w": np.float32([2, 6])}, {"w": np.float32([8])}
    before = TensorMean().add(whole, 2.0).add_leading(part, 1.0, base)
    after = TensorMean().add_leading(part, 1.0, base).add(whole, 2.0)
    first, two = TensorMean().add(whole, 2.0), TensorMean().add_leading(part, 1.0, base)
    for mean in (before, after, first.join(two), two.join(first)):
        assert mean.mean()["w"].tolist() == [4.0, 6.0]  # (2 * 2 + 8) / 3, 2 * 6 / 2
        assert mean.most == 3.0
    assert (two.mean()["w"].tolist(), first.mean()["w"].tolist()) == ([8.0, 0.0], [2.0, 6.0])


def test_parts_that_are_the_whole_are_added_as_such_to_the_bit():
    rng = np.random.default_rng(2)
    members = [(rng.standard_normal((5, 7)).astype(np.float32), w) for w in (3.0, 0.7, 11.0)]
    base = {"w": np.zeros((5, 7), np.float32)}
    whole, parts = TensorMean(), TensorMean()
    for value, weight in members:
        whole, parts = whole.add({"w": value}, weight), parts.add_leading({"w": value}, weight, base)
    assert parts.parts == {}
    assert parts.mean()["w"].tobytes() == whole.mean()["w"].tobytes()


def test_what_is_no_part_of_the_base_is_refused():
    base = {"w": np.zeros((2, 2), np.float32)}
    for value in (np.zeros(2), np.zeros((1, 3)), np.zeros((2, 2, 1))):
        with pytest.raises(ValueError, match=r"w is \(.*\), which is no part of \(2, 2\)"):
            TensorMean().add_leading({"w": value.astype(np.float32)}, 1.0, base)
