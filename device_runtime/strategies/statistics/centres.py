"""Where the class means of a round's devices usually lie, and how far from it each device's means are.

n_ic and mu_ic are the counts and class means of device i. The centre m_c of a class is the weighted median of
each coordinate. The weight of mu_ic is sqrt(n_ic), which has the least noise, and at most the second largest
one, so that no device outweighs two others. Distances are measured in the scatter R of all other devices and
the pool (Mahalanobis), where noise has the same size in all directions. Their mean square is

    tau^2 + e (1 / n_ic + 1 / PRECISE + pi / 2 N_c),    N_c: the sum of the others' squared weights

e: the mean square of the distance of one sample from its class mean. tau: the spread between devices beyond
this noise, by the method of moments (DerSimonian and Laird 1986); the median over devices, so that no single
one chooses it. pi / 2: the noise of a median, relative to a mean's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from .class_statistics import Statistics, StatisticsFile
from .class_sums import ClassSums

LEAST = 3
"""The fewest devices, or voices on a class, that are compared with each other."""
VOICES = 32
"""The most devices whose means make a centre; of more, evenly many are left out."""
SHRINKAGE = 0.1
"""The least weight of the scaled identity in R, and in the covariance that a head is made of."""
PRECISE = 400
"""Samples from which on a mean is no more exact: it is rounded, and not all devices are quite alike."""


@dataclass(frozen=True)
class Centres:
    """The centre of each class, float64 (classes, width), and how well it is known.

    voices: how many devices' means, and the pool's, were compared; 0: the class has none.
    samples: N_c, with the weight of every device. most: the largest squared weight.
    of_pool: whether the centre is the pool's mean alone.
    middle, radius: the middle of all class means, and their usual distance from it.
    """

    means: NDArray[np.float64]
    voices: NDArray[np.int64]
    samples: NDArray[np.float64]
    most: NDArray[np.float64]
    of_pool: NDArray[np.bool_]
    middle: NDArray[np.float64]
    radius: float

    def noise(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean square of the distances of a device's means if e is 1, (classes,)."""
        own = np.where(self.of_pool | (self.voices > VOICES), 0, np.minimum(counts, self.most))
        centre = np.where(self.of_pool, 1, pi / 2) / np.maximum(1e-9, self.samples - own)
        noise: NDArray[np.float64] = 1 / np.maximum(1e-9, counts) + 1 / PRECISE + centre
        return noise


@dataclass(frozen=True)
class Metric:
    """Distances in which noise has the same size in all directions.

    whitening: (width, width). noise: the mean square of a sample's distance from its class mean.
    """

    whitening: NDArray[np.float64]
    noise: float

    @classmethod
    def of(cls, scatter: NDArray[np.float64], samples: float) -> Metric | None:
        """By a sum of scatter (width, width) of so many samples; None if it gives none."""
        if samples < 1 or not np.trace(scatter) > 0:
            return None
        mean = without_negative(scatter / samples)
        whitening = np.linalg.inv(np.linalg.cholesky(shrunk(mean, samples)))
        return cls(whitening, float(((whitening @ mean) * whitening).sum()))

    def squares(self, apart: NDArray[np.float64]) -> NDArray[np.float64]:
        """The squared lengths of rows (n, width)."""
        lengths: NDArray[np.float64] = np.square(apart @ self.whitening.T).sum(axis=1)
        return lengths


@dataclass(frozen=True)
class Distances:
    """How far the class means of a device are from their centres.

    labels: its classes whose centre has other voices, (n,); judged: which of them have LEAST voices, (n,).
    squares: the squared distances, (n,); noise: what they are in the mean, without a spread and if e is 1.
    sample: e; inf: not known. drift: the usual distance from the pool's means; inf: not known.
    """

    labels: NDArray[np.int64]
    judged: NDArray[np.bool_]
    squares: NDArray[np.float64]
    noise: NDArray[np.float64]
    sample: float
    drift: float

    @property
    def spread(self) -> float:
        """The square root of the mean square beyond the noise, of the classes that are judged."""
        parts = 1 / self.noise[self.judged]
        beyond = float(self.squares[self.judged] @ parts) - self.sample * len(parts)
        return sqrt(max(0.0, beyond / float(parts.sum())))


class _Voices:
    """The means of a class that are compared, the samples of each, and the classes that its device shares."""

    def __init__(self) -> None:
        self.rows: list[NDArray[np.float32]] = []
        self.counts: list[float] = []
        self.shared: list[int] = []

    def add(self, mean: NDArray[np.float64], count: float, shared: int) -> None:
        self.rows.append(mean.astype(np.float32))
        self.counts.append(count)
        self.shared.append(shared)


def centres_of(sent: StatisticsFile, pool: Statistics) -> Centres:
    """The centres, from at most VOICES devices a class."""
    pooled, in_pool = class_means(pool.sums), pool.sums.counts > 0
    holders = np.zeros(sent.labels, np.int64)
    for device in sent:
        holders += device.sums.counts > 0
    classes, middles = [_Voices() for _ in range(sent.labels)], []
    visits = np.zeros(sent.labels, np.int64)
    for source, device in zip(sent.sources, sent, strict=True):
        means, present = class_means(device.sums), device.sums.present
        middles.append(means[present].mean(axis=0))
        shared = int((holders[present] >= LEAST).sum())
        for label in present:
            if visits[label] * VOICES >= len(classes[label].rows) * holders[label]:
                classes[label].add(means[label], device.sums.counts[label] / source.stands_for, shared)
            visits[label] += 1
    if in_pool.any():
        middles.append(pooled[in_pool].mean(axis=0))
    middle = np.median(np.stack(middles), axis=0)
    sets = [class_means(device.sums)[device.sums.present] for device in sent]
    sets += [pooled[in_pool]] if in_pool.any() else []
    radii = [float(np.median(np.linalg.norm(means - middle, axis=1))) for means in sets]
    centres = Centres(
        np.zeros_like(pooled),
        np.zeros(sent.labels, np.int64),
        np.zeros(sent.labels),
        np.zeros(sent.labels),
        np.array([own and len(voices.rows) == 1 for own, voices in zip(in_pool, classes, strict=True)]),
        middle,
        median_of_devices(radii),
    )
    for label, voices in enumerate(classes):
        if in_pool[label] and 0 < len(voices.rows) < LEAST:
            voices.add(pooled[label], float(pool.sums.counts[label]), 0)
        if voices.rows:
            _set_centre(centres, label, voices)
    return centres


def _set_centre(centres: Centres, label: int, voices: _Voices) -> None:
    """Write a class's centre into `centres`: the pool's, of two the more credible one, or the median."""
    rows, counts = np.stack(voices.rows).astype(np.float64), np.array(voices.counts)
    centres.voices[label] = len(rows)
    if centres.of_pool[label]:
        centres.means[label], centres.samples[label] = rows[-1], counts[-1]
        return
    if len(rows) == 2:  # that of the device which shares more classes with others, or is less odd
        odd = np.linalg.norm(rows - centres.middle, axis=1)
        weights = np.arange(2) == min(range(2), key=lambda i: (-voices.shared[i], odd[i]))
        most = counts.max()
    else:
        most = np.sort(counts)[-2:][0]
        weights = np.sqrt(np.minimum(counts, most))
    centres.means[label] = weighted_median(rows, weights.astype(np.float64))
    centres.samples[label], centres.most[label] = np.minimum(counts, most).sum(), most


def distances_to(
    centres: Centres, sent: StatisticsFile, pool: Statistics, metrics: Iterator[Metric]
) -> list[Distances]:
    """The distances of each device's means by its own metric."""
    distances, pooled, in_pool = [], class_means(pool.sums), pool.sums.counts > 0
    for source, device, metric in zip(sent.sources, sent, metrics, strict=True):
        means, has = class_means(device.sums), device.sums.counts > 0
        labels, drift = np.flatnonzero(has & (centres.voices > 1)), inf
        if (compared := has & in_pool).any() and not source.late:
            drift = sqrt(float(np.median(metric.squares((means - pooled)[compared]))))
        noise = centres.noise(device.sums.counts / source.stands_for)[labels]
        squares = metric.squares(means[labels] - centres.means[labels])
        judged = centres.voices[labels] >= LEAST
        distances.append(Distances(labels, judged, squares, noise, metric.noise, drift))
    return distances


def sample_noise(distances: Sequence[Distances]) -> float:
    """e, by the distances alone; inf if too few can be compared."""
    judged = (device for device in distances if device.judged.any())
    return median_of_devices(
        [float((device.squares / device.noise)[device.judged].mean()) for device in judged]
    )


def shrunk(scatter: NDArray[np.float64], samples: float) -> NDArray[np.float64]:
    """R: the mean scatter (width, width) of so many samples, shrunk to a multiple of the identity."""
    width = len(scatter)
    weight = max(SHRINKAGE, width / (width + samples))
    r: NDArray[np.float64] = (1 - weight) * scatter + weight * np.trace(scatter) / width * np.eye(width)
    return r


def without_negative(scatter: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scatter (width, width) with the sizes of its negative eigenvalues in their place.

    Numbers are rounded on the wire, and an eigenvalue below 0 tells by how much. At 0 its direction, of which
    nothing is known, would count for most in an inverse. Those of float64's own rounding stay.
    """
    if is_positive(scatter + 1e-9 * np.trace(scatter) * np.eye(len(scatter))):
        return scatter
    values, vectors = np.linalg.eigh(scatter)
    possible: NDArray[np.float64] = (vectors * abs(values)) @ vectors.T
    return possible


def is_positive(matrix: NDArray[np.float64]) -> bool:
    """Whether a symmetric matrix is positive definite."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def class_means(sums: ClassSums) -> NDArray[np.float64]:
    """The mean of each class, float64 (classes, width); 0 for a class without samples."""
    means: NDArray[np.float64] = sums.sums / np.where(sums.counts > 0, sums.counts, 1)[:, None]
    return means


def median_of_devices(values: Sequence[float]) -> float:
    """The median over devices; inf for fewer than LEAST."""
    return float(np.median(values)) if len(values) >= LEAST else inf


def upper_quartile(values: Sequence[float], lower: bool = False) -> float:
    """The upper quartile, as `np.quantile` has it; lower: the value below it where it lies between two."""
    ordered = sorted(values)
    place, part = divmod(0.75 * (len(ordered) - 1), 1)
    below, above = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    if lower or part == 0:
        return float(below)
    return float(below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part))


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted median of each column of values (n, width)."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    reached = np.cumsum(weights[order], axis=0) / weights.sum() - 0.5
    low, high = (reached >= -1e-12).argmax(axis=0), (reached > 1e-12).argmax(axis=0)
    columns = np.arange(values.shape[1])
    median: NDArray[np.float64] = (ordered[low, columns] + ordered[high, columns]) / 2
    return median
