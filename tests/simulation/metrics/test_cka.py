"""Linear CKA on matrices worked by hand, and its invariances."""

import numpy as np
import pytest

from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.metrics.probes import gram, linear_cka, mean_over_pairs, pairwise_cka

X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # centred already
Y = np.array([[1.0], [-1.0], [0.0], [0.0]])


def test_two_matrices_worked_by_hand():
    # y'x = (2, 0), x'x = diag(2, 2), y'y = 2: 4 / (sqrt(8) * 2)
    assert linear_cka(X, Y) == pytest.approx(4 / (8**0.5 * 2))


def test_wide_features_give_the_same_in_the_space_of_samples():
    wide = np.concatenate([Y, np.zeros((4, 9))], axis=1)  # ten features, four samples: as Y alone
    assert linear_cka(X, wide) == pytest.approx(linear_cka(X, Y))


def test_rotation_scale_and_shift_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5))
    rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    assert linear_cka(x, 3 * x @ rotation + 7) == pytest.approx(1)


def test_features_that_share_nothing_have_0():
    assert linear_cka(X[:, :1], X[:, 1:]) == 0


def test_constant_features_have_none():
    assert np.isnan(linear_cka(np.ones((4, 3)), X))


def test_feature_maps_of_any_shape_count_as_rows():
    maps = np.random.default_rng(1).normal(size=(6, 3, 2, 2))
    assert linear_cka(maps, maps.reshape(6, 12)) == pytest.approx(1)


def test_different_numbers_of_samples_are_refused_with_both():
    with pytest.raises(SimulationError, match="4 rows and 3"):
        linear_cka(X, Y[:3])


def test_every_pair_is_compared_once_and_the_mean_leaves_out_the_diagonal():
    similarity = pairwise_cka([gram(features) for features in (X, Y, X)])
    alike = linear_cka(X, Y)
    assert similarity == pytest.approx(np.array([[1, alike, 1], [alike, 1, alike], [1, alike, 1]]))
    assert mean_over_pairs(similarity) == pytest.approx((2 * alike + 1) / 3)


def test_one_model_has_no_pairs():
    assert np.isnan(mean_over_pairs(pairwise_cka([gram(X)])))
