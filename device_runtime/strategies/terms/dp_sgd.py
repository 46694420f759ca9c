"""Differential privacy of local training: what a task asks, and what was spent on the same samples.

DP-SGD in every local step, on the tuned parameters alone (paper 003, section IV-D; Abadi et al. 2016,
algorithm 1). What is protected is one sample of one device, against whoever sees what the device sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np

from device_runtime.models.training.clipping import Privacy
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.settings import MOST, Setting

from .accountant import Limit, PrivacyError, Spent, joined, least_noise, spent


class BudgetExceeded(PrivacyError):
    """Training would spend more of the samples' privacy than is allowed."""


@dataclass(frozen=True)
class DpSgd:
    """What a task asks of private training. `rounds` rounds of one device spend its epsilon at its delta.

    max_norm: of each sample's gradient. epsilon 5 and delta 1e-3 are paper 003's (section IV-D).
    Raises ValueError for what is no budget.
    """

    epsilon: Annotated[float, Setting("Privacy budget of `rounds` rounds.", example=3.0, more_than=0)] = 5.0
    delta: Annotated[
        float, Setting("The chance that the budget does not hold.", 1e-5, more_than=0, less_than=1)
    ] = 1e-3
    max_norm: Annotated[
        float, Setting("Largest norm of a sample's gradient.", 0.5, "Euclidean norm", more_than=0)
    ] = 1.0
    rounds: Annotated[
        int,
        Setting("Rounds of a device that spend the budget.", 100, "rounds", at_least=1, at_most=MOST),
    ] = 50

    def __post_init__(self) -> None:
        ranges.check(self)

    @property
    def limit(self) -> Limit:
        return Limit(self.epsilon, self.delta)

    def privacy(self, samples: int, batch: int, epochs: int, rng: np.random.Generator) -> Privacy:
        """What a plan of local training takes; `rng` is secret (`Run.noise`). Raises PrivacyUnavailable."""
        return Privacy(self.max_norm, noise_multiplier(self, samples, batch, epochs), rng)

    def round(self, samples: int, batch: int, epochs: int) -> Spent:
        """What one round of such training spends. Raises PrivacyUnavailable."""
        noise = noise_multiplier(self, samples, batch, epochs)
        return Spent(noise, sampling_rate(samples, batch), steps(samples, batch, epochs))


@runtime_checkable
class MayBePrivate(Protocol):
    """A kind of update that trains privately where `dp` is set, on all of the local samples."""

    @property
    def dp(self) -> DpSgd | None:
        """None for training without protection."""

    @property
    def batch(self) -> int:
        """Samples of a step, on average."""

    @property
    def epochs(self) -> int:
        """Of one round."""


def settings_of(strategy: object) -> DpSgd | None:
    """How this kind protects what it sends; None where it does not."""
    dp = getattr(strategy, "dp", None)  # asked of every device and kind: a protocol's isinstance takes 80 us
    return dp if isinstance(dp, DpSgd) else None


def round_of(strategy: object, samples: int) -> Spent | None:
    """What a round of this kind on so many samples spends; None for one that is not private.

    Raises PrivacyUnavailable.
    """
    if settings_of(strategy) is None or not isinstance(strategy, MayBePrivate) or strategy.dp is None:
        return None
    return strategy.dp.round(samples, strategy.batch, strategy.epochs)


def steps(samples: int, batch: int, epochs: int) -> int:
    """Of one round: ceil(samples / batch) an epoch."""
    return -(-samples // batch) * epochs


def sampling_rate(samples: int, batch: int) -> float:
    """The probability that a step takes any one sample: batch / samples, at most 1."""
    return min(1.0, batch / samples)


def noise_multiplier(dp: DpSgd, samples: int, batch: int, epochs: int) -> float:
    """The least noise with which `dp.rounds` rounds stay within its epsilon, rounded up.

    Raises PrivacyUnavailable, and ValueError where no noise would be enough.
    """
    return least_noise(dp.limit, sampling_rate(samples, batch), dp.rounds * steps(samples, batch, epochs))


@dataclass(frozen=True)
class PrivacyLedger:
    """What was spent on the same samples. Equal settings are joined, so that equal spendings are equal."""

    events: tuple[Spent, ...] = ()

    @property
    def rounds(self) -> int:
        return sum(event.rounds for event in self.events)

    def epsilon(self, delta: float) -> float:
        """See `spent`."""
        return spent(self.events, delta)

    def after(self, event: Spent) -> PrivacyLedger:
        """This and one more."""
        return PrivacyLedger(joined((*self.events, event)))

    def check(self, event: Spent, limit: Limit) -> None:
        """Raises BudgetExceeded where `event` would go beyond the limit, PrivacyUnavailable."""
        there = self.after(event).epsilon(limit.delta)
        if not there <= limit.epsilon:
            raise BudgetExceeded(
                f"epsilon would be {there:.4g} of {limit.epsilon:g} at delta {limit.delta:g} "
                f"after {self.rounds} {'round' if self.rounds == 1 else 'rounds'}"
            )
