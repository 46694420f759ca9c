"""The running weighted mean of named tensors, each over those who trained it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.blocks import BLOCK, blocks
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
            if name in self.sums:
                _add_scaled(self.sums[name], value, weight)
                self.weights[name] += weight
            else:
                self.sums[name] = np.multiply(value, weight, out=np.empty(value.shape), dtype=np.float64)
                self.weights[name] = weight
        return self

    def join(self, other: TensorMean) -> TensorMean:
        """The mean over the members of both."""
        joined = TensorMean({name: total.copy() for name, total in self.sums.items()}, dict(self.weights))
        for name, total in other.sums.items():
            if name in joined.sums:
                joined.sums[name] += total
                joined.weights[name] += other.weights[name]
            else:
                joined.sums[name] = total.copy()
                joined.weights[name] = other.weights[name]
        return joined

    def mean(self) -> dict[str, NDArray[Any]]:
        """The means, float32."""
        return {
            name: np.divide(
                total, self.weights[name], out=np.empty(total.shape, np.float32), casting="same_kind"
            )
            for name, total in self.sums.items()
        }


def _add_scaled(total: NDArray[np.float64], value: NDArray[Any], weight: float) -> None:
    """total += weight * value, each product and sum rounded in float64; total: contiguous, made here."""
    if value.shape != total.shape:
        raise ValueError(f"a tensor is {value.shape}, the ones before it were {total.shape}")
    if value.size <= BLOCK:
        total += np.multiply(value, weight, dtype=np.float64)
        return
    scratch = np.empty(min(value.size, BLOCK))
    for sums, values in blocks(total.reshape(-1), value.reshape(-1)):
        product = scratch[: values.size]
        product[...] = values
        product *= weight
        np.add(sums, product, out=sums)
