"""Differential privacy of local training: the noise that a budget takes, and what of it was spent.

DP-SGD in every local step, on the tuned parameters alone (paper 003, section IV-D; Abadi et al. 2016,
algorithm 1). What is protected is one sample of one device, against whoever sees what the device sends.
The accounting is Google's dp-accounting: Rényi divergences (Mironov 2017) of Gaussian noise on Poisson
samples (Mironov, Talwar, Zhang 2019). It is the extra `privacy`, imported when it is first needed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Protocol, runtime_checkable

import numpy as np

from models.clipping import Privacy

from . import ranges

ORDERS = (*(1.5 + i / 4 for i in range(10)), *range(4, 64), 80, 128, 256, 512, 1024, 2048, 4096)
"""Of the Rényi divergences: quarters where the best one lies at epsilon 5, high ones for a small epsilon."""

DECIMALS = 4
"""Noise multipliers are rounded up to so many, so that what is written down is what was drawn."""


class PrivacyUnavailable(Exception):
    """The accountant is not installed, and nothing private is done without it."""


class BudgetExceeded(Exception):
    """Training would spend more of the samples' privacy than is allowed; it has not begun."""


@dataclass(frozen=True)
class Limit:
    """(epsilon, delta) that must not be exceeded: both at most, whatever a sample is used for."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclass(frozen=True)
class Spent:
    """Steps of DP-SGD with one noise multiplier and one sampling rate in (0, 1], made in `rounds` rounds."""

    noise: float
    sampling_rate: float
    steps: int
    rounds: int = 1

    def __post_init__(self) -> None:
        ranges.positive(noise=self.noise, sampling_rate=self.sampling_rate)
        if self.steps < 1 or self.rounds < 1:
            raise ValueError(f"{self.steps} steps in {self.rounds} rounds, expected 1 or more of each")
        if self.sampling_rate > 1:
            raise ValueError(f"sampling_rate is {self.sampling_rate}, expected at most 1")


@dataclass(frozen=True)
class DpSgd:
    """What a task asks of private training. `rounds` rounds of one device spend its epsilon at its delta.

    max_norm: of each sample's gradient. epsilon 5 and delta 1e-3 are paper 003's (section IV-D).
    Raises ValueError for what is no budget.
    """

    epsilon: float = 5.0
    delta: float = 1e-3
    max_norm: float = 1.0
    rounds: int = 50

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta)
        ranges.positive(max_norm=self.max_norm)
        ranges.counts(rounds=self.rounds)

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
    return strategy.dp if isinstance(strategy, MayBePrivate) else None


def round_of(strategy: object, samples: int) -> Spent | None:
    """What a round of this kind on so many samples spends; None for one that is not private.

    Raises PrivacyUnavailable.
    """
    if not isinstance(strategy, MayBePrivate) or strategy.dp is None:
        return None
    return strategy.dp.round(samples, strategy.batch, strategy.epochs)


def steps(samples: int, batch: int, epochs: int) -> int:
    """Of one round: ceil(samples / batch) an epoch."""
    return -(-samples // batch) * epochs


def sampling_rate(samples: int, batch: int) -> float:
    """The probability that a step takes any one sample: batch / samples, at most 1."""
    return min(1.0, batch / samples)


def noise_multiplier(dp: DpSgd, samples: int, batch: int, epochs: int) -> float:
    """The least noise with which `dp.rounds` rounds stay within its epsilon, rounded up to DECIMALS.

    Raises PrivacyUnavailable, and ValueError where no noise would be enough.
    """
    return _noise(dp.limit, sampling_rate(samples, batch), dp.rounds * steps(samples, batch, epochs))


def spent(events: Iterable[Spent], delta: float) -> float:
    """Epsilon at `delta` of all of these together, 0.0 of none. Raises PrivacyUnavailable."""
    return _epsilon(_joined(events), delta)


@dataclass(frozen=True)
class Ledger:
    """What was spent on the same samples. Equal settings are joined, so that equal spendings are equal."""

    events: tuple[Spent, ...] = ()

    @property
    def rounds(self) -> int:
        return sum(event.rounds for event in self.events)

    def epsilon(self, delta: float) -> float:
        """See `spent`."""
        return spent(self.events, delta)

    def after(self, event: Spent) -> Ledger:
        """This and one more."""
        return Ledger(_joined((*self.events, event)))

    def check(self, event: Spent, limit: Limit) -> None:
        """Raises BudgetExceeded where `event` would go beyond the limit, PrivacyUnavailable."""
        there = self.after(event).epsilon(limit.delta)
        if not there <= limit.epsilon:
            raise BudgetExceeded(
                f"epsilon would be {there:.4g} of {limit.epsilon:g} at delta {limit.delta:g} "
                f"after {self.rounds} {'round' if self.rounds == 1 else 'rounds'}"
            )


def _check(epsilon: float, delta: float) -> None:
    ranges.positive(epsilon=epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(f"delta is {delta}, expected less than 1")


def _joined(events: Iterable[Spent]) -> tuple[Spent, ...]:
    counts: Counter[tuple[float, float]] = Counter()
    rounds: Counter[tuple[float, float]] = Counter()
    for event in events:
        setting = (event.noise, event.sampling_rate)
        counts[setting] += event.steps
        rounds[setting] += event.rounds
    return tuple(Spent(*setting, counts[setting], rounds[setting]) for setting in sorted(counts))


@lru_cache(maxsize=1024)
def _noise(limit: Limit, rate: float, count: int) -> float:
    accounting = _accounting()

    def event(noise: float) -> Any:
        return _event(accounting, noise, rate, count)

    try:
        least: float = accounting.calibrate_dp_mechanism(
            lambda: accounting.rdp.RdpAccountant(ORDERS), event, limit.epsilon, limit.delta, tol=1e-5
        )
    except accounting.mechanism_calibration.NoBracketIntervalFoundError:
        raise ValueError(f"no noise keeps {count} steps at rate {rate:g} within {limit}") from None
    return ceil(least * 10**DECIMALS) / 10**DECIMALS


@lru_cache(maxsize=1024)
def _epsilon(events: tuple[Spent, ...], delta: float) -> float:
    if not events:
        return 0.0
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant(ORDERS)
    for event in events:
        accountant.compose(_event(accounting, event.noise, event.sampling_rate, event.steps))
    return float(accountant.get_epsilon(delta))


def _event(accounting: Any, noise: float, rate: float, count: int) -> Any:
    gaussian = accounting.GaussianDpEvent(noise)
    one = gaussian if rate == 1 else accounting.PoissonSampledDpEvent(rate, gaussian)
    return accounting.SelfComposedDpEvent(one, count)


def _accounting() -> Any:
    """The library. Raises PrivacyUnavailable."""
    try:
        import dp_accounting  # seconds, and 80 MB of memory: only for those who train privately
    except ImportError as error:
        raise PrivacyUnavailable(
            f"private training needs an accountant ({error}): pip install 'device-runtime[privacy]'"
        ) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # else it warns of each order that it leaves out
    return dp_accounting
