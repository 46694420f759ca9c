"""DP-SGD: settings of private local training, and a ledger of the privacy that samples have spent.

Every local step is private, on the tuned parameters alone (paper 003, section IV-D; Abadi et al. 2016,
algorithm 1). It protects one sample of one device against anyone who sees what the device sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np

from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Privacy
from device_runtime.profiles import Workload
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.settings import MOST, Setting
from device_runtime.strategies.training.local_training import TrainingPlan
from device_runtime.strategies.training.workload import Training

from .accountant import PrivacyBudget, PrivacyError, PrivacySpending, join_events, least_noise, total_epsilon
from .local_term import LocalTerm

ACCOUNTANT_BYTES = 75_000_000
"""Memory that the library for privacy accounting adds to a process (measured)."""


class BudgetExceeded(PrivacyError):
    """Raised if training would spend more of the samples' privacy than is allowed."""


@dataclass(frozen=True)
class DpSgd(LocalTerm):
    """Private training: `rounds` rounds of one device spend epsilon at delta. The loss is not sent.

    max_norm: largest norm of each sample's gradient; a kind's `clip_norm` is then ignored. epsilon 5 and
    delta 1e-3 are paper 003's (section IV-D). Raises ValueError for values outside the limits.
    """

    name: ClassVar[str] = "dp-sgd"
    about: ClassVar[str] = "makes each step differentially private (DP-SGD: Abadi et al. 2016)"
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

    def apply(self, plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        privacy = self.privacy(len(plan.indices), plan.batch, plan.epochs, run.noise())
        return replace(plan, privacy=privacy, clip_norm=0.0)

    def work(self, training: Training, load: Workload, samples: int) -> Training:
        """Samples one by one, another vector of the set's size, and the accountant."""
        more = training.more_bytes + ACCOUNTANT_BYTES
        return replace(training, copies=training.copies + 1, singly=True, more_bytes=more)

    @property
    def limit(self) -> PrivacyBudget:
        return PrivacyBudget(self.epsilon, self.delta)

    def privacy(self, samples: int, batch: int, epochs: int, rng: np.random.Generator) -> Privacy:
        """The privacy of a local training plan; `rng` is secret (`Run.noise`). Raises PrivacyUnavailable."""
        return Privacy(self.max_norm, noise_multiplier(self, samples, batch, epochs), rng)

    def round(self, samples: int, batch: int, epochs: int) -> PrivacySpending:
        """The privacy that one round of such training spends. Raises PrivacyUnavailable."""
        noise = noise_multiplier(self, samples, batch, epochs)
        return PrivacySpending(noise, sampling_rate(samples, batch), steps(samples, batch, epochs))


@runtime_checkable
class TrainsInEpochs(Protocol):
    """A kind of update that trains with terms, on all local samples."""

    @property
    def terms(self) -> Iterable[LocalTerm]:
        """The terms of its local objective."""

    @property
    def batch(self) -> int:
        """Samples of a step, on average."""

    @property
    def epochs(self) -> int:
        """Local epochs of one round."""


def dp_settings(strategy: object) -> DpSgd | None:
    """The kind's settings of private training; None if it is not private."""
    terms = getattr(strategy, "terms", ())  # not isinstance: 80 us, for every device and kind
    return next((term for term in terms if isinstance(term, DpSgd)), None)


def spent_in_round(strategy: object, samples: int) -> PrivacySpending | None:
    """The privacy that a round of this kind on `samples` samples spends; None if it is not private.

    Raises PrivacyUnavailable.
    """
    dp = dp_settings(strategy)
    if dp is None or not isinstance(strategy, TrainsInEpochs):
        return None
    return dp.round(samples, strategy.batch, strategy.epochs)


def steps(samples: int, batch: int, epochs: int) -> int:
    """Steps of one round: ceil(samples / batch) an epoch."""
    return -(-samples // batch) * epochs


def sampling_rate(samples: int, batch: int) -> float:
    """The probability that a step takes any one sample: batch / samples, at most 1."""
    return min(1.0, batch / samples)


def noise_multiplier(dp: DpSgd, samples: int, batch: int, epochs: int) -> float:
    """The least noise multiplier with which `dp.rounds` rounds stay within epsilon, rounded up.

    Raises PrivacyUnavailable, and ValueError if no noise is enough.
    """
    return least_noise(dp.limit, sampling_rate(samples, batch), dp.rounds * steps(samples, batch, epochs))


@dataclass(frozen=True)
class PrivacyLedger:
    """The privacy spent on the same samples; equal settings are joined: equal totals compare equal."""

    events: tuple[PrivacySpending, ...] = ()

    @property
    def rounds(self) -> int:
        return sum(event.rounds for event in self.events)

    def epsilon(self, delta: float) -> float:
        """The epsilon spent at `delta`. Raises PrivacyUnavailable."""
        return total_epsilon(self.events, delta)

    def after(self, event: PrivacySpending) -> PrivacyLedger:
        """The ledger with one more event."""
        return PrivacyLedger(join_events((*self.events, event)))

    def check(self, event: PrivacySpending, limit: PrivacyBudget) -> None:
        """Raises BudgetExceeded if `event` would exceed the limit, and PrivacyUnavailable."""
        epsilon = self.after(event).epsilon(limit.delta)
        if not epsilon <= limit.epsilon:
            raise BudgetExceeded(
                f"epsilon would be {epsilon:.4g} of {limit.epsilon:g} at delta {limit.delta:g} "
                f"after {self.rounds} {'round' if self.rounds == 1 else 'rounds'}"
            )
