"""Linear heads in closed form for targets in columns: ridge regression of values, discriminants of flags.

Statistics are of z = (f, y): features and the targets that outputs are compared with, by stratum
(`TargetSpec.strata`) in place of class. N_s and mu_s are the pooled counts and means of stratum s, mu the
mean of all N samples, S0 the covariance within strata (`covariance`; C strata, f degrees of freedom):

    S       = ((N - C) S0 + sum_s N_s (mu_s - mu) (mu_s - mu)^T) / N

If all devices send second moments, S is the covariance of all samples, however they are divided. If some send
means alone, their share of the first part is that of the others. Values, with S_ff = V diag(s) V^T:

    W(k)    = S_yf V diag(1 / (s + k)) V^T;   b = mu_y - W mu_f
    GCV(k)  = sum (S_yy - sum_j c_j^2 (s_j + 2 k) / (s_j + k)^2) / (1 - (1 + sum_j s_j / (s_j + k)) / n)^2

c = V^T S_fy; GCV is summed over columns, and k is the candidate with the smallest. n = f + C samples tell how
features vary within strata. k is no smaller than what rounding on the wire can do to an eigenvalue
(ROUNDING), and S has no eigenvalues below 0, which rounding makes too.

Flags, each with share p, P = p (1 - p), and means m1, m0 of f with and without the flag:

    Sigma   = S_ff - P (m1 - m0) (m1 - m0)^T, shrunk to a multiple of the identity
    w       = Sigma^-1 (m1 - m0);   b = log(p / (1 - p)) - w (m1 + m0) / 2;   w, b <- w / T, b / T

T: as for classes, from the logits at m1 and m0. p counts half a sample with and half a sample without the
flag besides, so that a flag that nobody has gets a low logit everywhere.

Generalised cross-validation: Golub, Heath and Wahba 1979. Linear discriminant analysis: Hastie et al., 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .centres import SHRINKAGE, class_means, without_negative
from .class_statistics import Statistics
from .covariance import MeanScatter, identity_weight, pooled_scatter

RIDGES = np.logspace(-9, 2, 89)
"""Candidates of k, in multiples of the mean eigenvalue."""
ROUNDING = 2e-4
"""The least k, in multiples of the mean square of the features and the square root of their number.

Entries of a second moment, as float16, are off by 1.6e-4 of themselves (standard deviation). The largest
eigenvalue of d x d such errors is 2 sqrt(d) times that (Wigner 1955), and less over several devices.
"""

Head = tuple[NDArray[np.float64], NDArray[np.float64]]
"""W (columns, width) and b (columns,)."""


@dataclass(frozen=True)
class JointMoments:
    """The mean (width + columns,) and the covariance of features and targets, of `samples` samples.

    weight: that of the scaled identity in a covariance of features, of so few degrees of freedom. seen: n.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    samples: float
    seen: float
    weight: float

    @classmethod
    def of(cls, statistics: Statistics, of_means: MeanScatter | None, columns: int) -> JointMoments:
        """Raises ValueError if nothing is known of how features vary."""
        width = len(statistics.moments) - columns
        scatter, free = pooled_scatter(statistics, of_means, width)
        if not (free > 0 and np.trace(scatter[:width, :width]) > 0):
            raise ValueError("devices have sent nothing yet that tells how features vary")
        counts, present = statistics.sums.counts, statistics.sums.present
        samples, means = float(counts.sum()), class_means(statistics.sums)
        mean = counts @ means / samples
        apart = means[present] - mean
        between = (apart * counts[present, None]).T @ apart
        weight = identity_weight(width, free)
        within = scatter * (max(0.0, samples - len(present)) / free)
        if weight > SHRINKAGE:
            identity = np.trace(within[:width, :width]) / width * np.eye(width)
            within *= 1 - weight
            within[:width, :width] += weight * identity
            within[width:, width:] /= 1 - weight
        covariance = without_negative((within + between) / samples)
        return cls(mean, covariance, samples, free + len(present), weight)


def ridge(moments: JointMoments, columns: int) -> Head:
    """Ridge regression of each column on the features; the ridge is the same for all."""
    width = len(moments.mean) - columns
    covariance = moments.covariance
    s, axes = np.linalg.eigh(covariance[:width, :width])
    s, c = s.clip(0), axes.T @ covariance[:width, width:]  # (width,), (width, columns)
    squares, total = np.square(c).sum(axis=1), float(np.trace(covariance[width:, width:]))
    middle = moments.mean[:width]
    floor = ROUNDING * width**0.5 * float(s.mean() + middle @ middle / width)
    best, least = float(RIDGES[-1] * s.mean()), np.inf
    for k in np.maximum(floor, RIDGES * float(s.mean())):
        left = total - float(squares @ ((s + 2 * k) / (s + k) ** 2))
        share = (1 + float((s / (s + k)).sum())) / moments.seen
        if share < 1 and (score := max(0.0, left) / (1 - share) ** 2) < least:
            best, least = k, score
    weights = (c / (s + best)[:, None]).T @ axes.T
    return weights, moments.mean[width:] - weights @ middle


def discriminants(moments: JointMoments, columns: int) -> Head:
    """The logits of each flag by its linear discriminant analysis."""
    width, samples = len(moments.mean) - columns, moments.samples
    middle, total = moments.mean[:width], moments.covariance[:width, :width]
    weights, bias, margins = np.zeros((columns, width)), np.zeros(columns), []
    for column in range(columns):
        share = min(1.0, max(0.0, float(moments.mean[width + column])))
        prior = np.log((share * samples + 0.5) / ((1 - share) * samples + 0.5))
        bias[column], spread = prior, share * (1 - share)
        if spread * samples < 1e-6:
            continue
        apart = moments.covariance[:width, width + column] / spread  # m1 - m0
        within = total - spread * np.outer(apart, apart)
        weight = max(SHRINKAGE, moments.weight)
        scale = max(float(np.trace(within)), 1e-9 * float(np.trace(total))) / width
        shrunk = (1 - weight) * within + weight * scale * np.eye(width)
        w = np.linalg.solve(shrunk, apart)
        weights[column], half = w, float(w @ apart) / 2
        bias[column] = prior - float(w @ (middle + (0.5 - share) * apart))
        margins += [half + prior, half - prior]
    temperature = temperature_of(np.array(margins), samples)
    return weights / temperature, bias / temperature


def temperature_of(margins: NDArray[np.float64], samples: float) -> float:
    """The temperature T of a head (`closed_form`) from its margins at the means; 1 without margins."""
    return max(1.0, float(np.mean(margins)) / np.log(max(2.0, samples))) if len(margins) else 1.0
