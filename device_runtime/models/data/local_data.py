"""The samples that a model is trained or judged on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LocalData:
    """Prepared inputs float32 (n, *input), labels int64 (n,)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def class_counts(self, labels: int) -> tuple[int, ...]:
        """Samples of each class, shape (labels,)."""
        return tuple(int(n) for n in np.bincount(self.y, minlength=labels))
