"""The factors with which stage 2 of SLoRA begins."""

import numpy as np
import pytest

from device_runtime.models.errors import TensorError
from device_runtime.strategies.kinds.slora import factors, product


def rotation(size: int, seed: int) -> np.ndarray:
    """An orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def test_product_is_the_best_approximation_of_its_rank():
    """By Eckart and Young what is lost is made of the singular values left out: 0.5 and 0.25."""
    values = np.array([4, 2, 0.5, 0.25])
    change = ((rotation(6, 0)[:, :4] * values) @ rotation(4, 1)).astype(np.float32)
    a, b = factors(change, 2)
    assert a.shape == (2, 4) and b.shape == (6, 2) and a.dtype == b.dtype == np.float32
    assert np.linalg.norm(change - b @ a) == pytest.approx(np.hypot(0.5, 0.25), rel=1e-5)


def test_both_factors_have_the_same_share_of_the_change():
    """One singular value of 9 is 3 times 3."""
    change = 9 * np.outer([1, 0], [0, 0, 1]).astype(np.float32)
    a, b = factors(change, 1)
    assert np.linalg.norm(a) == pytest.approx(3)
    assert np.linalg.norm(b) == pytest.approx(3)


def test_rank_beyond_that_of_the_change_is_filled_with_zeros():
    change = np.arange(6, dtype=np.float32).reshape(2, 3)
    a, b = factors(change, 5)
    assert a.shape == (5, 3) and b.shape == (2, 5)
    assert not a[2:].any() and not b[:, 2:].any()
    np.testing.assert_allclose(b @ a, change, atol=1e-6)


def test_factors_of_a_convolution_have_the_shapes_of_two_convolutions():
    """A kernel of 3x3 with rank channels, then one of 1x1."""
    change = np.random.default_rng(2).normal(size=(4, 2, 3, 3)).astype(np.float32)
    a, b = factors(change, 4)
    assert a.shape == (4, 2, 3, 3) and b.shape == (4, 4, 1, 1)
    np.testing.assert_allclose(np.einsum("or,rihw->oihw", b[:, :, 0, 0], a), change, atol=1e-6)


def test_the_product_of_factors_has_the_shape_of_the_change():
    for shape in ((5, 3), (4, 2, 3, 3)):
        change = np.random.default_rng(4).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(product(*factors(change, 9)), change, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "rank", "message"),
    [
        (np.ones(3, np.float32), 1, r"shape \(3,\) has no factors"),
        (np.ones((2, 2), np.float32), 0, "rank is 0"),
        (np.full((2, 2), np.nan, np.float32), 1, "not finite"),
    ],
)
def test_what_has_no_factors_is_refused(change, rank, message):
    with pytest.raises(TensorError, match=message):
        factors(change, rank)
