"""Linear CKA: how alike two models see the same samples (Kornblith et al. 2019, arXiv:1905.00414)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import SimulationError

Features = NDArray[np.floating[Any]]  # (n, ...): one row for each sample, in the same order in every model


def linear_cka(x: Features, y: Features) -> float:
    """From 0 (nothing in common) to 1 (equal but for rotation, scale and shift); nan for constant features.

    x (n, ...), y (n, ...): the same n samples, any widths. Section 3, equation 5; in the space of features
    where these are fewer than samples, in that of samples where they are wider. Raises SimulationError.
    """
    x, y = _centred(x), _centred(y)
    if len(x) != len(y):
        raise SimulationError(f"CKA compares the same samples: {len(x)} rows and {len(y)}")
    if max(x.shape[1], y.shape[1]) <= len(x):
        return _ratio(_square(y.T @ x), _square(x.T @ x), _square(y.T @ y))
    return _alike(gram(x), gram(y))


def gram(features: Features) -> NDArray[np.float64]:
    """All that CKA needs of one model, however wide its features are: (n, n), centred."""
    centred = _centred(features)
    result: NDArray[np.float64] = centred @ centred.T
    return result


def pairwise_cka(grams: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Of every two models, (models, models), 1 on the diagonal: thesis 002, figures 6.7 and 6.8."""
    result = np.eye(len(grams))
    for i, j in combinations(range(len(grams)), 2):
        result[i, j] = result[j, i] = _alike(grams[i], grams[j])
    return result


def mean_over_pairs(similarity: NDArray[np.float64]) -> float:
    """Of a symmetric (models, models) matrix without its diagonal: figure 6.9. nan for fewer than two."""
    above = similarity[np.triu_indices(len(similarity), 1)]
    return float(above.mean()) if above.size else float("nan")


def _centred(features: Features) -> NDArray[np.float64]:
    flat = features.reshape(len(features), -1).astype(np.float64)
    result: NDArray[np.float64] = flat - flat.mean(axis=0)
    return result


def _alike(k: NDArray[np.float64], m: NDArray[np.float64]) -> float:
    return _ratio(float(np.vdot(k, m)), _square(k), _square(m))


def _square(matrix: NDArray[np.float64]) -> float:
    return float(np.vdot(matrix, matrix))


def _ratio(both: float, left: float, right: float) -> float:
    return both / (left * right) ** 0.5 if left and right else float("nan")
