import numpy as np
import pytest

from device_runtime.models.engines.base import batches, check_sizes, copied_weights
from device_runtime.models.errors import EngineError, TensorError


@pytest.mark.parametrize(
    ("samples", "size", "expected"),
    [(0, 4, []), (3, 4, [(0, 3)]), (8, 4, [(0, 4), (4, 8)]), (9, 4, [(0, 4), (4, 8), (8, 9)])],
)
def test_batches_cover_every_sample_once_in_order(samples, size, expected):
    assert [(part.start, part.stop) for part in batches(samples, size)] == expected


def test_sizes_below_one_are_refused():
    check_sizes(1, 1)
    for batch, threads in ((0, 1), (1, -1)):
        with pytest.raises(EngineError, match=f"batch is {batch} and threads is {threads}"):
            check_sizes(batch, threads)


def test_weights_are_copied_and_those_that_do_not_fit_refused(digits):
    tensors = {"head.bias": np.arange(10, dtype=np.float32)}
    copied = copied_weights(digits.manifest, tensors)
    tensors["head.bias"][:] = 0
    np.testing.assert_array_equal(copied["head.bias"], np.arange(10))
    with pytest.raises(TensorError, match="tail not expected"):
        copied_weights(digits.manifest, {**tensors, "tail": np.zeros(1, np.float32)})
    with pytest.raises(TensorError, match=r"head.bias is \(3,\), expected \(10,\)"):
        copied_weights(digits.manifest, {"head.bias": np.zeros(3, np.float32)})
