"""Picks representative samples: principal components, k-means, the sample nearest to each centroid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_ROUNDS = 300
"""The most k-means iterations; more occur only if rounding moves points to and fro."""
COLUMNS = 2048
"""Columns of a wide matrix that are in memory in float64 at once."""
TINY = 1e-12
"""Square distance below which two points differ by rounding alone, relative to the points' mean square."""


@dataclass(frozen=True)
class Clusters:
    """Centroids (k, d), and the index of the centroid of each point (n,). Every centroid has a point."""

    centroids: Points
    labels: Indices


def representatives(
    x: NDArray[np.float32], components: int, clusters: int, rng: np.random.Generator
) -> Indices:
    """Indices of the representative rows of x (n, d), in rising order (thesis 002, section 6.2).

    They are the rows nearest to the centroids of clusters of the principal components. With n <= clusters all
    rows are returned; if fewer rows than clusters are different, fewer are returned.
    """
    if len(x) <= clusters:
        return np.arange(len(x))
    points = principal(x, components)
    return np.sort(nearest(points, kmeans(points, clusters, rng)))


def principal(x: NDArray[np.float32], components: int) -> Points:
    """The principal components of x (n, d), centred: float64 (n, min(components, n, d)).

    The component of greatest variance comes first; the sign of each column is arbitrary (Jolliffe 2002). They
    come from eigenvectors of the smaller of the two products of x with itself; of a wide x only COLUMNS
    columns are in float64 at once.
    """
    n, d = x.shape
    if d < n:
        centred = x - x.mean(axis=0, dtype=np.float64)
        along: Points = centred @ np.linalg.eigh(centred.T @ centred)[1]
        return along[:, ::-1][:, :components]
    product = np.zeros((n, n))
    for block in _centred_blocks(x):
        product += block @ block.T
    values, vectors = np.linalg.eigh(product)
    along = vectors * np.sqrt(np.maximum(values, 0.0))
    return along[:, ::-1][:, :components]


def _centred_blocks(x: NDArray[np.float32]) -> Iterator[Points]:
    for start in range(0, x.shape[1], COLUMNS):
        block = x[:, start : start + COLUMNS].astype(np.float64)
        block -= block.mean(axis=0)
        yield block


def kmeans(x: Points, clusters: int, rng: np.random.Generator) -> Clusters:
    """Clusters of the points x (n, d), n > 0: k-means++ (Arthur and Vassilvitskii 2007), then Lloyd."""
    return lloyd(x, seeds(x, clusters, rng))


def seeds(x: Points, clusters: int, rng: np.random.Generator) -> Points:
    """Initial centroids by k-means++: points drawn in proportion to their square distance from earlier ones.

    For each, 2 + log(clusters) points are drawn, and the one that leaves the least distance is taken, as
    section 5 of the paper advises. Fewer than `clusters` are returned if no different points are left.
    """
    tries = 2 + int(np.log(clusters))
    chosen = [x[rng.integers(len(x))]]
    least = TINY * float(np.square(x).sum(axis=1).mean())
    apart = _squares(x, chosen[0])
    while len(chosen) < clusters and apart.max() > least:
        reach = np.cumsum(apart)
        drawn = np.searchsorted(reach, rng.random(tries) * reach[-1], side="right")
        drawn = np.minimum(drawn, len(x) - 1)
        left = [np.minimum(apart, _squares(x, x[place])) for place in drawn]
        best = int(np.argmin([distances.sum() for distances in left]))
        chosen.append(x[drawn[best]])
        apart = left[best]
    return np.stack(chosen)


def lloyd(x: Points, centroids: Points) -> Clusters:
    """Lloyd's algorithm: assign each point to its nearest centroid, average, until no point moves.

    Needs at least as many points as centroids. Of two equally near centroids the first is taken; a centroid
    without points takes the point that is farthest from its own centroid (thesis 002, 6.2.1).
    """
    centroids = centroids.copy()
    labels = np.full(len(x), -1)
    for _ in range(MOST_ROUNDS):
        apart = np.stack([_squares(x, centroid) for centroid in centroids], axis=1)
        now = apart.argmin(axis=1)
        _fill_empty(now, apart, len(centroids))
        if np.array_equal(now, labels):
            break
        labels = now
        for k in range(len(centroids)):
            centroids[k] = x[labels == k].mean(axis=0)
    return Clusters(centroids, labels)


def _fill_empty(labels: Indices, apart: Points, clusters: int) -> None:
    """Change labels in place so that every cluster has a point; needs at least as many points as clusters."""
    own = apart[np.arange(len(labels)), labels]
    for k in range(clusters):
        if not (labels == k).any():
            shared = np.bincount(labels, minlength=clusters)[labels] > 1
            farthest = int(np.where(shared, own, -1.0).argmax())
            labels[farthest], own[farthest] = k, 0.0


def nearest(x: Points, clusters: Clusters) -> Indices:
    """The index of the point nearest to each centroid (k,), among the points of its cluster."""
    indices = []
    for k, centroid in enumerate(clusters.centroids):
        members = np.flatnonzero(clusters.labels == k)
        indices.append(members[_squares(x[members], centroid).argmin()])
    return np.array(indices, np.int64)


def _squares(x: Points, point: Points) -> Points:
    """Square distances (n,) from `point`; from differences, so that equal points are at exactly 0."""
    difference = x - point
    squares: Points = np.einsum("ij,ij->i", difference, difference)
    return squares


def flops(n: int, d: int, components: int, clusters: int) -> float:
    """About how many flops `representatives` takes for n rows of d values, with 20 k-means iterations."""
    if n <= clusters:
        return 0.0
    small = min(n, d)
    width = min(components, small)
    eigen = 2.0 * n * d * small + 10.0 * small**3
    return eigen + 20 * 3.0 * n * width * clusters
