"""Wide features projected onto fewer, the same everywhere."""

import numpy as np
import pytest

from device_runtime.strategies.directions.directions import Projection


def matrix(projection: Projection):
    return projection.project(np.eye(projection.width))


def test_every_feature_is_added_to_one_sum_with_a_sign_and_sums_have_as_many():
    r = matrix(Projection(1280, 512, 0))
    assert r.shape == (1280, 512)
    assert set(np.unique(r)) == {-1, 0, 1}
    assert (np.abs(r).sum(axis=1) == 1).all()
    assert set(np.abs(r).sum(axis=0)) == {2, 3}
    assert 560 < (r > 0).sum() < 720


def test_it_is_linear_in_the_type_of_its_input_and_back_is_its_transpose():
    projection, rng = Projection(600, 512, 7), np.random.default_rng(0)
    r, f, w = matrix(projection), rng.normal(size=(9, 600)), rng.normal(size=(4, 512))
    np.testing.assert_allclose(projection.project(f), f @ r, atol=1e-12)
    np.testing.assert_allclose(projection.back(w), w @ r.T, atol=1e-12)
    np.testing.assert_allclose(f @ projection.back(w).T, projection.project(f) @ w.T, atol=1e-10)
    assert projection.project(f.astype(np.float32)).dtype == np.float32


def test_what_is_no_wider_stays_as_it_is():
    projection, f = Projection(512, 512, 7), np.ones((2, 512))
    assert projection.project(f) is f
    assert projection.back(f) is f
    assert projection.size == 512


@pytest.mark.parametrize(
    ("seed", "columns"),
    [
        (0, [-1, 3, 2, -2, 1, 4, 3, -4]),
        (7, [4, -2, 1, 4, 1, -3, -3, -2]),
    ],
)
def test_golden_vectors(seed, columns):
    """Sum of each feature and its sign, written as sign * (sum + 1): whoever makes them anew has the same."""
    sums = np.abs(matrix(Projection(8, 4, seed))).argmax(axis=1)
    signs = matrix(Projection(8, 4, seed)).sum(axis=1)
    assert (signs * (sums + 1)).tolist() == columns
