"""Privacy accounting of DP-SGD, with Google's library dp-accounting.

Rényi divergences (Mironov 2017) of Gaussian noise on Poisson samples (Mironov, Talwar, Zhang 2019), of data
sets that differ in one sample. The library is in the extra `privacy`, and is imported when it is first
needed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isfinite
from typing import Any

from device_runtime.extras import extra_needed

ORDERS = (*(1.5 + i / 4 for i in range(10)), *range(4, 64), 80, 128, 256, 512, 1024, 2048, 4096)
"""Orders of Rényi divergence: quarters around the best one at epsilon 5, high ones for a small epsilon."""

FINENESS = 10_000
"""Noise multipliers are rounded up to multiples of 1 / FINENESS, so that the recorded value is exact."""


class PrivacyError(Exception):
    """Raised before training begins if it cannot be private; the message says why."""


class PrivacyUnavailable(PrivacyError):
    """Raised if the accounting library is not installed."""


@dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) that all uses of a sample together must not exceed."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclass(frozen=True)
class PrivacySpending:
    """Steps of DP-SGD in `rounds` rounds, with one noise multiplier and one sampling rate in (0, 1]."""

    noise: float
    sampling_rate: float
    steps: int
    rounds: int = 1

    def __post_init__(self) -> None:
        _check_positive(noise=self.noise, sampling_rate=self.sampling_rate)
        if self.steps < 1 or self.rounds < 1:
            raise ValueError(f"{self.steps} steps in {self.rounds} rounds, expected 1 or more of each")
        if self.sampling_rate > 1:
            raise ValueError(f"sampling_rate is {self.sampling_rate}, expected at most 1")


def check_budget(epsilon: float, delta: float) -> None:
    """Raises ValueError unless epsilon > 0 and 0 < delta < 1."""
    _check_positive(epsilon=epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(f"delta is {delta}, expected less than 1")


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():  # without a `Setting`, which takes an idle device 80 kB
        if not (isfinite(number) and number > 0):
            raise ValueError(f"{name} is {number}, expected more than 0")


def total_epsilon(events: Iterable[PrivacySpending], delta: float) -> float:
    """The epsilon at `delta` of all events together, 0.0 without any. Raises PrivacyUnavailable."""
    return _epsilon(join_events(events), delta)


def join_events(events: Iterable[PrivacySpending]) -> tuple[PrivacySpending, ...]:
    """One event for each noise and sampling rate, in order, so that equal totals compare equal."""
    counts: Counter[tuple[float, float]] = Counter()
    rounds: Counter[tuple[float, float]] = Counter()
    for event in events:
        setting = (event.noise, event.sampling_rate)
        counts[setting] += event.steps
        rounds[setting] += event.rounds
    return tuple(PrivacySpending(*setting, counts[setting], rounds[setting]) for setting in sorted(counts))


@lru_cache(maxsize=1024)
def least_noise(limit: PrivacyBudget, rate: float, count: int) -> float:
    """The least noise multiplier with which `count` steps at this sampling rate stay within the limit.

    Rounded up. Raises PrivacyUnavailable, and ValueError if no noise is enough.
    """
    accounting = _accounting()

    def event(noise: float) -> Any:
        return _event(accounting, noise, rate, count)

    try:
        least = accounting.calibrate_dp_mechanism(
            lambda: accounting.rdp.RdpAccountant(ORDERS), event, limit.epsilon, limit.delta, tol=1e-5
        )
    except accounting.mechanism_calibration.NoBracketIntervalFoundError:
        raise ValueError(f"no noise keeps {count} steps at rate {rate:g} within {limit}") from None
    return ceil(float(least) * FINENESS) / FINENESS


@lru_cache(maxsize=1024)
def _epsilon(events: tuple[PrivacySpending, ...], delta: float) -> float:
    if not events:
        return 0.0
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant(ORDERS)
    for event in events:
        accountant.compose(_event(accounting, event.noise, event.sampling_rate, event.steps))
    return float(accountant.get_epsilon(delta))


def _event(accounting: Any, noise: float, rate: float, count: int) -> Any:
    gaussian = accounting.GaussianDpEvent(noise)
    step = gaussian if rate == 1 else accounting.PoissonSampledDpEvent(rate, gaussian)
    return accounting.SelfComposedDpEvent(step, count)


def _accounting() -> Any:
    """The accounting library. Raises PrivacyUnavailable."""
    try:
        import dp_accounting  # takes seconds and 80 MB of memory: only private training imports it
    except ImportError as error:
        raise PrivacyUnavailable(extra_needed("private training", "privacy", error.name)) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # otherwise it warns of each order that it leaves out
    return dp_accounting
