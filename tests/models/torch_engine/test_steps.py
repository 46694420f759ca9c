"""The rows and weights of each step of several copies, as they are sent to the processor."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.torch_engine.place import TorchProcessor
from device_runtime.models.torch_engine.steps import CopySamples, planned_steps

CPU = TorchProcessor(torch.device("cpu"), 1, None)
NONE = np.zeros(0)


def copy_of(*batches: list[int], counted: int = 0) -> CopySamples:
    return CopySamples(NONE, NONE, [np.array(batch, np.int64) for batch in batches], counted)


def numbers(tensor) -> list:
    return tensor.tolist()


def test_a_step_has_the_rows_of_each_copy_that_takes_it_padded_by_the_first_of_its_batch():
    copies = [copy_of([2, 0, 1], [3], counted=1), copy_of([1, 4])]
    [first], [second] = planned_steps(copies, [0, 10], [3, 2], CPU)
    assert (first.at, second.at) == (slice(0, 2), slice(0, 1))
    assert numbers(first.rows) == [[2, 0, 1], [11, 14, 11]]
    assert first.rows.dtype == torch.int32
    assert numbers(first.shares) == [[pytest.approx(1 / 3)] * 3, [0.5, 0.5, 0.0]]
    assert numbers(first.counts) == [[0, 0, 0], [1, 1, 0]]
    assert (first.padded, second.padded) == (True, False)
    assert (numbers(second.rows), numbers(second.shares), numbers(second.counts)) == ([[3]], [[1]], [[1]])


def test_later_micro_batches_have_only_the_copies_that_have_one():
    copies = [copy_of([0, 1, 2]), copy_of([5]), copy_of([6, 7])]
    [(first, second, third)] = planned_steps(copies, [0, 0, 0], [1, 1, 1], CPU)
    assert numbers(first.rows) == [[0], [5], [6]]
    assert (numbers(second.at), numbers(second.rows)) == ([0, 2], [[1], [7]])
    assert (numbers(third.at), numbers(third.rows)) == ([0], [[2]])
    assert numbers(second.shares) == [[pytest.approx(1 / 3)], [0.5]]


def test_a_batch_without_samples_weighs_nothing():
    [first], [second] = planned_steps([copy_of([], [1]), copy_of([4])], [3, 0], [1, 1], CPU)
    assert (numbers(first.rows), numbers(first.shares)) == ([[3], [4]], [[0], [1]])
    assert (numbers(second.rows), numbers(second.shares)) == ([[4]], [[1]])
