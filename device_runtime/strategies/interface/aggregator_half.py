"""Inputs and outputs of the aggregator's half of a kind of update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel

from .device_half import NO_TENSORS, LocalData
from .tensor_mean import TensorMean

NO_FAMILY: Mapping[str, Tensors] = MappingProxyType({})


class ServerTools(Protocol):
    """What a kind may use on the aggregator to train there: the task's models, and its generic set."""

    @property
    def generic(self) -> LocalData | None:
        """Prepared samples that belong to no device (thesis 002, 5.3 and 5.5); None if there are none."""

    def model(self, member: str = "") -> DeviceModel:
        """The main model, or a member of the family, on an engine. Raises ModelError.

        It is opened once and shared: load weights before each use.
        """

    def manifest(self, member: str = "") -> Manifest:
        """The manifest of that model. Raises KeyError for a member that the task does not have."""


@dataclass(frozen=True)
class RoundModel:
    """The model that was distributed in a round, and the round's number and seed.

    family: the weights of the smaller models that were distributed with it, by name.
    memory: what this kind kept on the aggregator after an earlier round.
    tools: None where the aggregator has no engine.
    """

    manifest: Manifest
    weights: Tensors
    round: int
    seed: int
    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    memory: Tensors = field(default_factory=lambda: NO_TENSORS)
    tools: ServerTools | None = None


@dataclass(frozen=True)
class KindResult:
    """The result of one kind's contributions in a round; `merge` joins the results of all kinds.

    mean: averaged with the other kinds' by tensor and weight; the server optimiser steps towards the result.
    steps: zeroth-order steps, taken after that.
    served: replaces tensors of the *distributed* model to give the served one.
    served_mean: as `served`, averaged over all kinds that have one.
    num_examples: samples behind the result.
    assigned: tensors that are put into the base as they are.
    refine: called with the base that all of the above made; gives tensors to replace in it.
    family: the next bases of smaller models.
    teach: as `family`, made from the next base once it is final.
    memory: kept on the aggregator for the kind's next round; None: what was kept stays.
    aside: sent to the kind's devices with the next base; None: what was sent stays.
    """

    mean: TensorMean | None = None
    steps: tuple[Step, ...] = ()
    served: Tensors | None = None
    served_mean: TensorMean | None = None
    num_examples: float = 0.0
    assigned: Tensors | None = None
    refine: Callable[[Tensors], Tensors] | None = None
    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    teach: Callable[[Tensors], Mapping[str, Tensors]] | None = None
    memory: Tensors | None = None
    aside: Tensors | None = None


@dataclass(frozen=True)
class CarriedState:
    """The state that a round hands to the next in addition to the base model.

    family: the base of each smaller model.
    memory: what each kind keeps on the aggregator, by name; the server optimiser and other parts of merging
    have other names.
    aside: tensors sent to devices with the base.
    """

    family: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    memory: Mapping[str, Tensors] = field(default_factory=lambda: NO_FAMILY)
    aside: Tensors = field(default_factory=lambda: NO_TENSORS)

    def all(self) -> Iterator[Tensors]:
        """Every set of tensors in it."""
        yield from (*self.family.values(), *self.memory.values(), self.aside)
