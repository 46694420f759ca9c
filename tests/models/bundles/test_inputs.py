import numpy as np
import pytest

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import TensorError


def test_prepare_scales_then_normalises_each_channel():
    spec = InputSpec((2, 1, 1), scale=0.5, mean=(1.0, 2.0), std=(2.0, 4.0))
    x = spec.prepare(np.array([[[[6]], [[20]]]], np.uint8))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, [[[[1.0]], [[2.0]]]])  # (3 - 1) / 2, (10 - 2) / 4


def test_single_channel_may_be_left_out_and_other_shapes_are_refused(digits):
    assert digits.manifest.input.prepare(np.zeros((5, 8, 8))).shape == (5, 1, 8, 8)
    with pytest.raises(TensorError, match=r"input is \(5, 64\), expected \(n, 1, 8, 8\)"):
        digits.manifest.input.prepare(np.zeros((5, 64)))


def test_prepare_leaves_the_raw_values_alone(digits):
    raw = np.full((1, 1, 8, 8), 16, np.float32)
    digits.manifest.input.prepare(raw)
    assert (raw == 16).all()
