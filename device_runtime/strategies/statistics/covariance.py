"""The covariance of features within classes, from second moments or from the class means of devices alone.

Device i sends the mean mu_ic of the n_ic samples of class c that it measured. Means of samples
that are divided at random scatter with the covariance of a sample, Sigma / n_ic, so that

    Sigma0 = sum_ic n_ic (mu_ic - mu_c) (mu_ic - mu_c)^T / sum_c (K_c - 1),   mu_c: their weighted mean

estimates Sigma without bias; K_c is the number of means of class c. mu_c and K_c are those of a round, so
that what training changes from round to round is no scatter. A sum over devices (of a site, or behind masks)
is one mean. Sigma0 is shrunk to a multiple of the identity, whose weight is d / (d + 2 f) for d features and
f degrees of freedom, and SHRINKAGE at least: with few means the head tends to that of the nearest class mean.
Second moments alone give Sigma0 where they need no more than SHRINKAGE. Else the scatter of means is added.

FedCOF: Dinh et al. 2024 (arXiv 2412.14326), pooled over classes. Ours: the weight of the identity
(benchmarks/ncm_cifar10.py), and that scatter and degrees of freedom are those of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .centres import SHRINKAGE, class_means, without_negative
from .class_statistics import Statistics
from .class_sums import ClassSums


@dataclass(frozen=True)
class MeanScatter:
    """The scatter of devices' class means, each times its samples, about the class means of their rounds.

    squares: the sum of n_ic (mu_ic - mu_c) (mu_ic - mu_c)^T, float64 (width, width). free: the degrees of
    freedom, sum_c (K_c - 1); a fraction if rounds decay.
    """

    squares: NDArray[np.float64]
    free: float = 0.0

    @classmethod
    def none(cls, width: int) -> MeanScatter:
        return cls(np.zeros((width, width)))

    def decayed(self, gamma: float) -> MeanScatter:
        return MeanScatter(gamma * self.squares, gamma * self.free)

    def add(self, other: MeanScatter) -> MeanScatter:
        return MeanScatter(self.squares + other.squares, self.free + other.free)


class RoundMeans:
    """Adds up the class means of a round's devices, and gives their scatter."""

    def __init__(self, labels: int, width: int) -> None:
        self._total = Statistics.none(labels, width).sums
        self._holders = np.zeros(labels)
        self._squares = np.zeros((width, width))

    def add(self, sums: ClassSums) -> None:
        """Add the means of a device; counts are of the samples that it measured."""
        self._squares += _outer(sums)
        self._total = self._total + sums
        self._holders += sums.counts > 0

    def scatter(self) -> MeanScatter:
        """The scatter about the weighted means of the classes."""
        return MeanScatter(self._squares - _outer(self._total), float(np.maximum(0, self._holders - 1).sum()))


def pooled_scatter(
    statistics: Statistics, of_means: MeanScatter | None, width: int
) -> tuple[NDArray[np.float64], float]:
    """The scatter within classes, and its degrees of freedom: 0 if there is none.

    `width`: how many features a covariance is needed of.
    """
    sums = statistics.moment_sums
    scatter, free = statistics.moments - _outer(sums), float(sums.counts.sum()) - len(sums.present)
    if free <= 0:
        scatter, free = np.zeros_like(scatter), 0.0
    if identity_weight(width, free) > SHRINKAGE and of_means is not None:
        scatter, free = scatter + of_means.squares, free + of_means.free
    return scatter, free


def within_classes(
    statistics: Statistics, of_means: MeanScatter | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sigma0 (width, width), and Sigma, which is shrunk. Raises ValueError.

    Without any scatter, Sigma0 is a multiple of the identity, so small that the nearest class mean decides.
    """
    width = len(statistics.moments)
    scatter, free = pooled_scatter(statistics, of_means, width)
    weight = identity_weight(width, free)
    if not free:
        means = class_means(statistics.sums)[statistics.sums.present]
        if len(means) < 2:
            raise ValueError(f"devices have sent means of {len(means)} classes and no spread of a class yet")
        spread = np.square(means - means.mean(axis=0)).sum()
        scatter, free = np.eye(width) * spread / width, float(statistics.sums.counts.sum())
    if not np.trace(scatter) > 0:
        raise ValueError("the features of each class are all the same")
    covariance = without_negative(scatter / free)
    return covariance, (1 - weight) * covariance + weight * np.trace(covariance) / width * np.eye(width)


def identity_weight(width: int, free: float) -> float:
    """The weight of the scaled identity beside a covariance of `free` degrees of freedom, SHRINKAGE to 1."""
    return max(SHRINKAGE, width / (width + 2 * free))


def _outer(sums: ClassSums) -> NDArray[np.float64]:
    """The sum over classes of n_c mu_c mu_c^T, (width, width)."""
    present = sums.present
    means = sums.sums[present] / sums.counts[present, None]
    outer: NDArray[np.float64] = (means * sums.counts[present, None]).T @ means
    return outer
