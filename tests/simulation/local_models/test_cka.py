"""Linear CKA on matrices worked by hand, and its invariances."""

import numpy as np
import pytest

from benchmarks.local_models.probes import gram, mean_over_pairs, pairwise_cka
from device_runtime.simulation.errors import SimulationError

X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
Y = np.array([[1.0], [-1.0], [0.0], [0.0], [0.0]])


def linear_cka(x, y):
    return pairwise_cka([gram(x), gram(y)])[0, 1]


def test_two_matrices_worked_by_hand():
    """Song et al. 2012, equation 5, without its factor, for K and L whose diagonals are set to 0.

    That is tr(KL) + 1'K1 1'L1 / ((n - 1) (n - 2)) - 2 / (n - 2) 1'KL1.
    Here n = 5; k_12 = k_34 = -1 and l_12 = -1, so that rows of K sum to -1, -1, -1, -1, 0 and of L to
    -1, -1, 0, 0, 0.
    """
    both = 2 + 4 * 2 / 12 - 2 / 3 * 2
    of_x = 4 + 4 * 4 / 12 - 2 / 3 * 4
    of_y = 2 + 2 * 2 / 12 - 2 / 3 * 2
    assert (both, of_x, of_y) == pytest.approx((4 / 3, 8 / 3, 1))
    assert linear_cka(X, Y) == pytest.approx(both / (of_x * of_y) ** 0.5)
    assert np.vdot(gram(X), gram(Y)) == pytest.approx(both)


def test_unrelated_features_that_are_many_more_than_samples_are_near_0():
    """The usual, biased estimate of these is above 0.9: centred Gram matrices are all nearly the identity."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 32, 2048))
    assert abs(linear_cka(x, y)) < 0.1
    k, m = (each @ each.T for each in (x - x.mean(0), y - y.mean(0)))
    assert np.vdot(k, m) / (np.vdot(k, k) * np.vdot(m, m)) ** 0.5 > 0.9


def test_features_of_0_change_nothing():
    wide = np.concatenate([Y, np.zeros((5, 9))], axis=1)
    assert linear_cka(X, wide) == pytest.approx(linear_cka(X, Y))


def test_rotation_scale_and_shift_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5))
    rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    assert linear_cka(x, 3 * x @ rotation + 7) == pytest.approx(1)


def test_constant_features_have_none():
    assert np.isnan(linear_cka(np.ones((5, 3)), X))


def test_feature_maps_of_any_shape_count_as_rows():
    maps = np.random.default_rng(1).normal(size=(6, 3, 2, 2))
    assert linear_cka(maps, maps.reshape(6, 12)) == pytest.approx(1)


def test_fewer_than_four_samples_are_refused():
    with pytest.raises(SimulationError, match="CKA needs 4 samples or more, here are 3"):
        linear_cka(X[:3], Y[:3])


def test_every_pair_is_compared_once_and_the_mean_leaves_out_the_diagonal():
    similarity = pairwise_cka([gram(features) for features in (X, Y, X)])
    alike = linear_cka(X, Y)
    assert similarity == pytest.approx(np.array([[1, alike, 1], [alike, 1, alike], [1, alike, 1]]))
    assert mean_over_pairs(similarity) == pytest.approx((2 * alike + 1) / 3)


def test_one_model_has_no_pairs():
    assert np.isnan(mean_over_pairs(pairwise_cka([gram(X)])))
