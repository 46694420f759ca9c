"""Dividing a labelled data set among devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def dirichlet(
    y: NDArray[np.integer], devices: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Indices into `y` for each device: equally many, classes mixed by a draw of Dirichlet(alpha).

    As in Hsu et al. 2019 (arXiv:1909.06335), section 3.1: each device draws its own class mixture and then
    its samples without replacement; a class that has run out is left out of the mixture. The remainder of
    len(y) / devices stays unused.
    """
    pools = {label: list(rng.permutation(np.flatnonzero(y == label))) for label in np.unique(y)}
    labels = np.array(sorted(pools))
    parts = []
    for _ in range(devices):
        mixture = rng.dirichlet(np.full(len(labels), alpha)) + 1e-9  # a class may be drawn as a last resort
        part = []
        for _ in range(len(y) // devices):
            left = mixture * [bool(pools[label]) for label in labels]
            part.append(pools[rng.choice(labels, p=left / left.sum())].pop())
        parts.append(np.sort(np.array(part, np.int64)))
    return parts
