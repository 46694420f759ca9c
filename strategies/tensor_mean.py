"""The running weighted mean of named tensors, each over those who trained it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.tensors import Tensors


@dataclass(frozen=True)
class TensorMean:
    """Weighted sums in float64 and the weight of each tensor. Each `add` returns the state to go on with."""

    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, tensors: Tensors, weight: float) -> TensorMean:
        """The mean with one more member; the sums are updated in place. Raises ValueError for weight <= 0."""
        if not weight > 0:
            raise ValueError(f"a weight must be positive, not {weight}")
        for name, value in tensors.items():
            self._accumulate(name, np.multiply(value, weight, dtype=np.float64), weight)
        return self

    def join(self, other: TensorMean) -> TensorMean:
        """The mean over the members of both."""
        joined = TensorMean({name: total.copy() for name, total in self.sums.items()}, dict(self.weights))
        for name, total in other.sums.items():
            joined._accumulate(name, total, other.weights[name])
        return joined

    def mean(self) -> dict[str, NDArray[Any]]:
        """The means, float32."""
        return {name: (total / self.weights[name]).astype(np.float32) for name, total in self.sums.items()}

    def _accumulate(self, name: str, total: NDArray[np.float64], weight: float) -> None:
        if name in self.sums:
            self.sums[name] += total
            self.weights[name] += weight
        else:
            self.sums[name] = total.copy()
            self.weights[name] = weight
