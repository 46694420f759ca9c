"""What a model says of each class: accuracy by class, and the heat maps of thesis 002, figure 4.4."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]


def accuracy_by_class(logits: Matrix, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(classes,): the share of each class that is recognised; nan for a class without samples.

    logits (n, classes), y (n,). Ties go to the lower class.
    """
    classes = logits.shape[1]
    right = np.bincount(y[logits.argmax(axis=1) == y], minlength=classes)
    return _shares(right.astype(np.float64), np.bincount(y, minlength=classes))


def mean_logits(logits: Matrix, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(classes, classes): row = true class, column = the mean logit that it is given for each class.

    nan for a class without samples. A model biased to its own classes shows stripes, one that is not a
    diagonal (figure 4.4).
    """
    classes = logits.shape[1]
    sums = np.zeros((classes, classes))
    np.add.at(sums, y, logits)
    return _shares(sums, np.bincount(y, minlength=classes)[:, None])


def predicted_shares(logits: Matrix, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(classes, classes): row = true class, column = the share of it that is taken for each class."""
    classes = logits.shape[1]
    counts = np.zeros((classes, classes))
    np.add.at(counts, (y, logits.argmax(axis=1)), 1.0)
    return _shares(counts, np.bincount(y, minlength=classes)[:, None])


def _shares(parts: NDArray[np.float64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.divide(parts, whole, out=np.full_like(parts, np.nan), where=whole > 0)
