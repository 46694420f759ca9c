"""Trained copies are added up, measured and told apart where they are, as one by one in main memory."""

import pickle

import numpy as np
import pytest
import torch

from device_runtime.models.bundles.stacked import StackedCopy, only, outline, squares, with_others
from device_runtime.models.torch_engine import copies
from device_runtime.models.torch_engine.copies import TorchCopies
from device_runtime.models.torch_engine.place import TorchProcessor
from device_runtime.strategies.interface.aggregator_half import TensorMean

K = 5


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"a": rng.standard_normal((K, 2, 3), np.float32), "b": rng.standard_normal((K, 7), np.float32)}


@pytest.fixture
def stack(arrays) -> TorchCopies:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return TorchCopies(tensors, TorchProcessor(torch.device("cpu"), 1, None))


def test_a_copy_reads_as_its_tensors_and_others_beside_them(arrays, stack):
    copy = with_others(StackedCopy(stack, 3), {"class/rows": np.arange(4)})
    assert list(copy) == ["a", "b", "class/rows"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(copy[name], array[3])
        assert outline(copy)[name].shape == array[3].shape
    assert "c" not in copy
    rest, statistics = only(copy, {"a", "b"}.__contains__), only(copy, {"class/rows"}.__contains__)
    assert isinstance(rest, StackedCopy)
    assert (list(rest), list(statistics)) == (["a", "b"], ["class/rows"])
    read = pickle.loads(pickle.dumps(copy))  # noqa: S301 - its own
    assert type(read) is dict
    np.testing.assert_array_equal(read["b"], arrays["b"][3])


def test_copies_that_are_not_finite_are_known(arrays):
    arrays["a"][1, 1, 2], arrays["b"][2, 0], arrays["a"][3, 0, 0] = np.nan, np.inf, -np.inf
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    stack = TorchCopies(tensors, TorchProcessor(torch.device("cpu"), 1, None))
    assert [StackedCopy(stack, i).finite for i in range(K)] == [True, False, False, False, True]


@pytest.mark.parametrize("at_once", [1, 1 << 17])
def test_a_mean_of_copies_is_that_of_their_tensors(arrays, stack, at_once, monkeypatch):
    """Copies of two stacks, and updates from main memory between them; one copy does not count."""
    monkeypatch.setattr(copies, "CPU_BLOCK", at_once)
    other = TorchCopies(
        {name: torch.from_numpy(array[:2] + 1) for name, array in arrays.items()},
        TorchProcessor(torch.device("cpu"), 1, None),
    )
    added = [StackedCopy(stack, 4), StackedCopy(stack, 0), {"a": arrays["a"][1] * 3}, StackedCopy(other, 1)]
    added += [StackedCopy(stack, 2), only(StackedCopy(stack, 3), "b".__eq__)]
    mean, expected = TensorMean(), TensorMean()
    for weight, tensors in enumerate(added, 1):
        mean, expected = mean.add(tensors, weight), expected.add(dict(tensors), weight)
    assert mean.weights == expected.weights
    joined = TensorMean().join(mean)
    assert mean.mean().keys() == expected.mean().keys()
    for name, value in expected.mean().items():
        np.testing.assert_allclose(mean.mean()[name], value, rtol=1e-6)
        np.testing.assert_array_equal(joined.mean()[name], mean.mean()[name])


def test_another_shape_than_before_is_no_part_of_a_mean(stack):
    mean = TensorMean().add({"a": np.zeros((3, 2), np.float32)}, 1.0).add(StackedCopy(stack, 0), 1.0)
    with pytest.raises(ValueError, match=r"a is \(2, 3\), the ones before it were \(3, 2\)"):
        mean.mean()


def test_distances_are_measured_where_the_copies_are_and_once(arrays, stack, monkeypatch):
    starts = {"b": arrays["b"][0], "a": np.zeros((), np.float32), "rows": np.ones(2, np.float32)}
    copy = with_others(StackedCopy(stack, 2), {"rows": np.full(2, 3, np.float32)})
    expected = squares(dict(copy), starts)
    monkeypatch.setattr(stack, "fetched", pytest.fail)
    measured = squares(copy, starts)
    assert list(measured) == list(starts)
    assert measured == pytest.approx(expected, rel=1e-6)
    monkeypatch.setattr(stack, "_squared", pytest.fail)
    assert squares(copy, starts) == measured
