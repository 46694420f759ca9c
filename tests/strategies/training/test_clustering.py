"""Principal components and k-means against scikit-learn, and what is asked of them at the edges."""

import numpy as np
import pytest

from device_runtime.strategies.training import clustering
from device_runtime.strategies.training.clustering import (
    kmeans,
    lloyd,
    nearest,
    principal,
    representatives,
    seeds,
)


@pytest.fixture
def rng():
    return np.random.default_rng(4)


@pytest.fixture
def blobs():
    from sklearn.datasets import make_blobs

    x, y = make_blobs(200, 12, centers=5, cluster_std=0.5, random_state=3)
    return x.astype(np.float32), y


@pytest.mark.parametrize("shape", [(60, 7), (20, 50), (12, 5000), (30, 30)])
@pytest.mark.parametrize("components", [3, 200])
def test_components_are_scikit_learn_s_but_for_their_signs(shape, components, rng):
    from sklearn.decomposition import PCA

    x = (rng.standard_normal(shape) * rng.uniform(0.5, 3, shape[1]) + 5).astype(np.float32)
    ours = principal(x, components)
    theirs = PCA(min(components, *shape), svd_solver="full").fit_transform(x.astype(np.float64))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-5)


def test_all_components_keep_all_distances(rng):
    x = rng.standard_normal((9, 40)).astype(np.float32)
    reduced = principal(x, 40)
    for a, b in ((0, 1), (3, 8)):
        assert np.linalg.norm(reduced[a] - reduced[b]) == pytest.approx(np.linalg.norm(x[a] - x[b]), rel=1e-5)


def test_from_the_same_seeds_lloyd_ends_where_scikit_learn_does(rng):
    from sklearn.cluster import KMeans

    x = rng.standard_normal((150, 6))
    start = x[:8]
    ours = lloyd(x, start)
    theirs = KMeans(8, init=start, n_init=1, tol=0, algorithm="lloyd").fit(x)
    np.testing.assert_array_equal(ours.labels, theirs.labels_)
    np.testing.assert_allclose(ours.centroids, theirs.cluster_centers_, atol=1e-9)


def test_blobs_far_apart_are_found(blobs, rng):
    x, y = blobs
    clusters = kmeans(principal(x, 3), 5, rng)
    for label in range(5):
        assert len(set(clusters.labels[y == label])) == 1
    assert len(set(clusters.labels)) == 5


def test_seeds_are_points_and_none_is_drawn_twice(rng):
    x = np.array([[0.0], [0.0], [0.0], [5.0], [9.0]])
    for _ in range(20):
        assert sorted(seeds(x, 5, rng)[:, 0].tolist()) == [0.0, 5.0, 9.0]
    assert len(seeds(x, 2, rng)) == 2


def test_far_points_are_drawn_as_often_as_their_square_distance_says():
    """From 0 the points at 1 and 2 are drawn with chances 1/5 and 4/5."""
    rng, drawn = np.random.default_rng(1), []
    x = np.array([[0.0], [1.0], [2.0]])
    while len(drawn) < 2000:
        first, second = seeds(x, 2, rng)[:, 0]
        if first == 0:
            drawn.append(second)
    assert np.mean(np.array(drawn) == 2) == pytest.approx(0.8, abs=0.03)


def test_lloyd_by_hand():
    """0, 1 | 10, 12 from the seeds 0 and 1: first {0} and {1, 10, 12}, then {0, 1} and {10, 12}."""
    clusters = lloyd(np.array([[0.0], [1.0], [10.0], [12.0]]), np.array([[0.0], [1.0]]))
    assert clusters.labels.tolist() == [0, 0, 1, 1]
    assert clusters.centroids.tolist() == [[0.5], [11.0]]
    assert nearest(np.array([[0.0], [1.0], [10.0], [12.0]]), clusters).tolist() == [0, 2]


def test_a_cluster_that_loses_its_points_takes_the_farthest():
    """Nothing is nearest to 100; 7 is farthest from its own, 2.5."""
    clusters = lloyd(np.array([[0.0], [1.0], [2.0], [7.0]]), np.array([[2.5], [100.0]]))
    assert clusters.labels.tolist() == [0, 0, 0, 1]
    assert clusters.centroids.tolist() == [[1.0], [7.0]]


def test_representatives_are_one_of_each_blob(blobs, rng):
    x, y = blobs
    chosen = representatives(x, 12, 5, rng)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert sorted(y[chosen].tolist()) == [0, 1, 2, 3, 4]
    for index in chosen:
        apart = np.linalg.norm(x - x[y == y[index]].mean(axis=0), axis=1)
        assert apart.argmin() == index


def test_the_same_generator_gives_the_same_representatives(blobs):
    x, _ = blobs
    first, second = (representatives(x, 4, 20, np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(first, second)
    assert len(first) == 20


@pytest.mark.parametrize("n", [0, 1, 5, 20])
def test_all_of_them_where_there_are_no_more_than_clusters(n, rng):
    x = rng.standard_normal((n, 6)).astype(np.float32)
    assert representatives(x, 200, 20, rng).tolist() == list(range(n))


@pytest.mark.parametrize("width", [3, 400])
def test_one_of_what_is_all_the_same_and_one_of_each_that_is_not(width, rng):
    same = np.full((30, width), 1.7, np.float32)
    assert len(representatives(same, 200, 20, rng)) == 1
    kinds = rng.standard_normal((4, width)).astype(np.float32)
    chosen = representatives(kinds[np.arange(30) % 4], 200, 20, rng)
    assert sorted(index % 4 for index in chosen.tolist()) == [0, 1, 2, 3]


def test_operations_grow_with_samples_and_there_are_none_where_all_are_taken():
    assert clustering.flops(20, 1000, 200, 20) == 0
    assert clustering.flops(400, 1000, 200, 20) > 4 * clustering.flops(100, 1000, 200, 20)
