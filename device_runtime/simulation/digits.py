"""Handwritten digits of scikit-learn: 1,797 real images of 8x8 pixels (UCI, Alpaydin and Kaynak)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Labelled:
    """Raw images uint8 (n, 1, 8, 8) with values 0 to 16, and their digits int64 (n,)."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]

    def at(self, indices: NDArray[np.int64]) -> Labelled:
        return Labelled(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class Split:
    """Images for training and for evaluation."""

    train: Labelled
    test: Labelled


def load(rng: np.random.Generator, test: int = 360) -> Split:
    """Loads all images in random order; the last `test` of them are for evaluation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = rng.permutation(len(digits.target))
    every = Labelled(digits.images[:, None].astype(np.uint8), digits.target.astype(np.int64)).at(order)
    train = np.arange(len(order) - test)
    return Split(every.at(train), every.at(np.arange(len(order) - test, len(order))))
