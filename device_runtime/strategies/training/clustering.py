"""The samples that stand for many: principal components, k-means, the sample nearest to each centroid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_ROUNDS = 300
"""Of assigning and averaging; more are seen only where rounding moves points to and fro."""
COLUMNS = 2048
"""Columns of a wide matrix that are held in float64 at once."""
TINY = 1e-12
"""Of the mean square of the points: what two that are nearer than that differ in is rounding."""


@dataclass(frozen=True)
class Clusters:
    """Centroids (k, d), and which of them each point belongs to (n,). None is without points."""

    centroids: Points
    labels: Indices


def representatives(
    x: NDArray[np.float32], components: int, clusters: int, rng: np.random.Generator
) -> Indices:
    """Indices of the rows of x (n, d) that stand for all, in rising order (thesis 002, section 6.2).

    Of each cluster of the principal components the one nearest to its centroid. All rows where there are no
    more than clusters, fewer than clusters where there are not so many different ones.
    """
    if len(x) <= clusters:
        return np.arange(len(x))
    points = principal(x, components)
    return np.sort(nearest(points, kmeans(points, clusters, rng)))


def principal(x: NDArray[np.float32], components: int) -> Points:
    """x (n, d), centred, along its `components` directions of greatest variance, the greatest first.

    Shape (n, min(components, n, d)); the sign of each column is arbitrary (Jolliffe 2002). By eigenvectors of
    the smaller of the two products of x with itself; of a wide x only COLUMNS are held in float64.
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
    """Points of x, each drawn with a chance in proportion to its square distance from those before.

    Of 2 + log(clusters) that are drawn, the one that leaves the least distance, as section 5 of the paper
    advises. Fewer than `clusters` where no other points are left.
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
    """Assign each point to its nearest centroid, average, until no point moves (thesis 002, 6.2.1).

    No more centroids than points. Of two as near the first is taken; one that has no points left takes the
    point that is farthest from its own.
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
    """In place, so that every cluster has a point; there are as many points as clusters, or more."""
    own = apart[np.arange(len(labels)), labels]
    for k in range(clusters):
        if not (labels == k).any():
            shared = np.bincount(labels, minlength=clusters)[labels] > 1
            farthest = int(np.where(shared, own, -1.0).argmax())
            labels[farthest], own[farthest] = k, 0.0


def nearest(x: Points, clusters: Clusters) -> Indices:
    """Of each cluster the index of its point that is nearest to the centroid, the first of several (k,)."""
    found = []
    for k, centroid in enumerate(clusters.centroids):
        members = np.flatnonzero(clusters.labels == k)
        found.append(members[_squares(x[members], centroid).argmin()])
    return np.array(found, np.int64)


def _squares(x: Points, point: Points) -> Points:
    """Square distances (n,). Differences first: equal points are at 0 exactly."""
    difference = x - point
    squares: Points = np.einsum("ij,ij->i", difference, difference)
    return squares


def flops(n: int, d: int, components: int, clusters: int) -> float:
    """About what `representatives` takes of n rows of d values; of Lloyd's rounds 20 are assumed."""
    if n <= clusters:
        return 0.0
    small = min(n, d)
    kept = min(components, small)
    eigen = 2.0 * n * d * small + 10.0 * small**3
    return eigen + 20 * 3.0 * n * kept * clusters
