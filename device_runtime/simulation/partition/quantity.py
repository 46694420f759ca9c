"""How many samples each device gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """What is asked for: equal sizes, or skewed ones.

    `each`: samples of a device (its mean, if skewed); None divides all samples. `sigma`: sizes are
    log-normal with this standard deviation of their logarithm. `alpha`: sizes are a draw of Dirichlet(alpha)
    over the devices (Li et al. 2022, "NIID-Bench", arXiv:2102.02079, section IV-D). 0 is no skew. `least`:
    what every device has at least. `reuse`: one sample may be with several devices.
    """

    each: int | None = None
    sigma: float = 0.0
    alpha: float = 0.0
    least: int = 1
    reuse: bool = False

    def draw(self, samples: int, devices: int, rng: np.random.Generator) -> Ints:
        """The size of each device, (devices,). Equal sizes leave the remainder of a division unused.

        Raises DataSetError when there are too few samples.
        """
        total = samples if self.each is None else self.each * devices
        if total > samples and not self.reuse:
            raise DataSetError(
                f"{devices} devices of {self.each} samples need {total}, the data has {samples}: "
                "fewer devices or samples_per_client, or reuse = true"
            )
        if total < devices * self.least:
            raise DataSetError(
                f"{total} samples do not give each of {devices} devices {self.least} or more: fewer devices"
            )
        if self.sigma > 0:
            weights = np.exp(self.sigma * rng.standard_normal(devices))
        elif self.alpha > 0:
            weights = rng.dirichlet(np.full(devices, self.alpha))
        elif total // devices > samples:
            raise DataSetError(
                f"samples_per_client is {self.each}, the data has {samples}: no device has a sample twice"
            )
        else:
            return np.full(devices, total // devices, np.int64)
        # what one device can hold at most is all samples, which only a reuse could exceed
        return np.minimum(apportioned(weights, total, self.least), samples)


EQUAL = Sizes()


def apportioned(weights: NDArray[np.float64], total: int, least: int = 0) -> Ints:
    """Whole numbers that sum to `total`: `least` each, the rest by weight (largest remainders)."""
    exact = weights / weights.sum() * (total - least * len(weights))
    whole: Ints = np.floor(exact).astype(np.int64)
    missing = total - least * len(weights) - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    whole += least
    return whole
