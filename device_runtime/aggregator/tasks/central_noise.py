"""Central differential privacy: the noise of a task's sums, and the budget that rounds spend.

A sum's noise has the deviation noise * clip_norm in each value, where a device's changes, weighed by at most
1, are no longer than clip_norm. That protects all that one device sent (not single samples), from everybody
who sees sums or models: the aggregator too, as long as no helper works together with it. Each round spends
from the budget, for devices that take part in it. There is no discount for rounds that ask some devices only:
the aggregator knows which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.broker.wire.messages import Masks
from device_runtime.strategies.masking import noise
from device_runtime.strategies.masking.layout import SumLayout
from device_runtime.strategies.terms.accountant import (
    PrivacyBudget,
    PrivacyError,
    PrivacySpending,
    least_noise,
    total_epsilon,
)

from .mask_settings import MaskSettings

ROUNDING = 0.01
"""Rounding may lengthen a device's changes by this share of clip_norm, and noise is larger by it."""
EVERY_ROUND = 1.0
"""The sampling rate: every device may take part in every round."""


@dataclass(frozen=True)
class CentralNoise:
    """The noise with which `rounds` rounds stay within a budget.

    The discrete Gaussian is accounted for as a Gaussian, whose privacy it has or better (Canonne, Kamath,
    Steinke 2020, theorem 7).
    """

    budget: PrivacyBudget
    clip_norm: float
    rounds: int

    @classmethod
    def of(cls, masks: MaskSettings, rounds: int) -> CentralNoise | None:
        """The noise of a task with so many rounds; None without.

        Raises TaskError where no noise is enough, or dp-accounting is missing.
        """
        if masks.epsilon is None or masks.delta is None or masks.clip_norm is None:
            return None
        central = cls(PrivacyBudget(masks.epsilon, masks.delta), masks.clip_norm, rounds)
        try:
            _ = central.noise_milli
        except (ValueError, PrivacyError) as error:
            raise TaskError(f"masks.epsilon: {error}") from None
        return central

    @cached_property
    def noise_milli(self) -> int:
        """Noise multiplier in thousandths, rounded up. Raises PrivacyUnavailable, ValueError."""
        least = least_noise(self.budget, EVERY_ROUND, self.rounds)
        return ceil(1000 * least * (1 + ROUNDING))

    @property
    def clip_milli(self) -> int:
        """The clipping norm in thousandths, rounded down."""
        return int(1000 * self.clip_norm + 1e-6)

    @property
    def deviation(self) -> float:
        """Deviation of the noise in a sum, in the units of a weight's change (see `noise.add_noise`)."""
        return noise.deviation_of(self.noise_milli, self.clip_milli)

    def added_to(self, masks: Masks) -> Masks:
        """The masks of an offer, with this noise."""
        return msgspec.structs.replace(masks, noise_milli=self.noise_milli, clip_milli=self.clip_milli)

    def spent(self, rounds: Iterable[int]) -> float:
        """Epsilon that rounds with these noise multipliers (in thousandths) spend, at the budget's delta.

        Raises PrivacyUnavailable.
        """
        counts = Counter(rounds)
        return total_epsilon(
            [
                PrivacySpending(noise_milli / 1000 / (1 + ROUNDING), EVERY_ROUND, count, count)
                for noise_milli, count in counts.items()
            ],
            self.budget.delta,
        )

    def refusal(self, rounds: Sequence[int]) -> str:
        """Why one round more, after these, would be too many; empty if it is within the budget.

        Raises PrivacyUnavailable.
        """
        spent = self.spent((*rounds, self.noise_milli))
        if spent <= self.budget.epsilon:
            return ""
        return (
            f"one more round would spend epsilon {spent:.4g} after {len(rounds)} with noise, and the budget "
            f"is {self.budget}"
        )

    def misfit(self, layout: SumLayout) -> str:
        """Why the fixed point of updates has no room for the noise, or is too coarse; empty if it fits."""
        exponents = [exponent for _, exponent in layout.exponents]
        clip_norm = self.clip_milli / 1000
        rounding = 0.5 * sqrt(sum(count * 4.0**-exponent for count, exponent in layout.exponents))
        if rounding > ROUNDING * clip_norm:
            return (
                f"rounding changes an update by up to {rounding:.2g}, more than {ROUNDING:.0%} of "
                f"masks.clip_norm = {clip_norm:g}: give a larger clip_norm"
            )
        most = noise.MOST * 2.0 ** -max(exponents, default=0)
        if self.deviation > most:
            return (
                f"noise of {self.deviation:.4g} in a sum is more than the fixed point has room for "
                f"({most:.4g}): give a smaller masks.clip_norm, or a larger masks.epsilon"
            )
        return ""
