"""The interface of a local term: what FedProx, MOON or DP-SGD add to the local training of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Workload
from device_runtime.strategies.interface.capabilities import Traits
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.plugins import Plugin
from device_runtime.strategies.training.local_training import TrainingPlan
from device_runtime.strategies.training.workload import Training


class LocalTerm(Plugin, ABC):
    """A term of the local objective; a frozen dataclass whose fields are its settings.

    `name` is its key in the table `terms` of a kind's settings.

    A kind applies its terms in order, each to the plan that the one before it made.
    """

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[str] = "own term"
    """What it does and its source, in a few words."""
    keeps_model: ClassVar[bool] = False
    """Whether the device keeps what it trained, as `Run.memory` of its next round."""

    @abstractmethod
    def apply(self, plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        """The plan of local training with this term; `model` holds the base."""

    def work(self, training: Training, load: Workload, samples: int) -> Training:
        """The training that the cost model prices, with this term, on `samples` samples."""
        return training

    def refusal(self, trained: str, others: Iterable[LocalTerm]) -> str:
        """Why it cannot be used for this tunable set beside these terms; empty if it can."""
        return ""


def applied(
    terms: Iterable[LocalTerm], plan: TrainingPlan, model: DeviceModel, data: LocalData, run: Run
) -> TrainingPlan:
    """The plan with all terms."""
    for term in terms:
        plan = term.apply(plan, model, data, run)
    return plan


def priced(terms: Iterable[LocalTerm], training: Training, load: Workload, samples: int) -> Training:
    """The training that the cost model prices, with all terms."""
    for term in terms:
        training = term.work(training, load, samples)
    return training


class HasTerms(Protocol):
    """A kind whose local training takes terms."""

    name: ClassVar[str]
    traits: ClassVar[Traits]

    @property
    def terms(self) -> tuple[LocalTerm, ...]:
        """The terms of its local objective, in the order in which they are applied."""

    @property
    def trained(self) -> str:
        """The tunable set that is trained."""


def check_terms(kind: HasTerms) -> None:
    """Raises ValueError for a term that is named twice, or cannot be used in this kind beside the others."""
    names = [term.name for term in kind.terms]
    for term in kind.terms:
        if names.count(term.name) > 1:
            raise ValueError(f"term {term.name} is named twice")
        if f"terms.{term.name}" in kind.traits.refused:
            raise ValueError(f"{kind.name} does not take the term {term.name}")
        if why := term.refusal(kind.trained, [other for other in kind.terms if other is not term]):
            raise ValueError(f"term {term.name}: {why}")
