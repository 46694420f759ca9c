"""What an aggregator's half of an update is given, and what it does to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.strategies.training.device_half import NOTHING, LocalData

from .tensor_mean import TensorMean

ALONE: Mapping[str, Tensors] = MappingProxyType({})


class ServerTools(Protocol):
    """What only an aggregator has: the models of the task, on an engine, and its generic data."""

    @property
    def generic(self) -> LocalData | None:
        """Prepared samples that are nobody's own (thesis 002, 5.3 and 5.5); None where there are none."""

    def model(self, member: str = "") -> DeviceModel:
        """The main model, or that member of the family, opened once: load weights before each use.

        Raises ModelError.
        """

    def manifest(self, member: str = "") -> Manifest:
        """Of the same. Raises KeyError for a member that the task does not have."""


@dataclass(frozen=True)
class RoundModel:
    """On the aggregator: the model that was distributed in a round, and the round's seed.

    `family` has the weights of the smaller models that were distributed beside it, by their names; `memory`
    what this kind kept here after an earlier round.
    """

    manifest: Manifest
    weights: Tensors
    round: int
    seed: int
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    memory: Tensors = field(default_factory=lambda: NOTHING)
    tools: ServerTools | None = None


@dataclass(frozen=True)
class Effect:
    """What one kind's contributions of a round do to the model; `merge` joins the effects of all kinds.

    `mean` is averaged per tensor with the other kinds' by weight, and what the server optimiser then steps
    towards. `steps` are taken along known directions, beside it. `assigned` is put into the base as it is.
    `refine` is called with the base that all of this made, and gives the tensors to put in their place.
    `served` replaces tensors of the *distributed* model to give the served one; so does `served_mean`, joined
    over all kinds that have one. `family` has what becomes of smaller models, `teach` makes that of the next
    base, when nothing changes it any more. `memory` is kept here for the kind's next round, `aside` sent to
    its devices beside the next base; None: what was there stays.
    """

    mean: TensorMean | None = None
    steps: tuple[Step, ...] = ()
    served: Tensors | None = None
    served_mean: TensorMean | None = None
    num_examples: float = 0.0
    assigned: Tensors | None = None
    refine: Callable[[Tensors], Tensors] | None = None
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    teach: Callable[[Tensors], Mapping[str, Tensors]] | None = None
    memory: Tensors | None = None
    aside: Tensors | None = None


@dataclass(frozen=True)
class Carried:
    """What a round hands to the next beside the base model.

    `family` has the base of each smaller model, `memory` what each kind keeps on the aggregator (and the
    server optimiser, under its own name), `aside` what devices are sent beside the base.
    """

    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    memory: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    aside: Tensors = field(default_factory=lambda: NOTHING)

    def all(self) -> Iterator[Tensors]:
        """Every set of tensors in it."""
        yield from (*self.family.values(), *self.memory.values(), self.aside)
