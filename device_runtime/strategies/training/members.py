"""Shared by kinds whose devices train a smaller model of the task's family and send feature maps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import GraphPass, Work, Workload
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.aggregator_half import RoundModel, ServerTools
from device_runtime.strategies.interface.capabilities import Comparable, TakesCodec
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.interface.kind import Strategy
from device_runtime.strategies.settings import (
    BatchSize,
    LearningRate,
    LocalEpochs,
    Members,
    Momentum,
    WeightDecay,
)

from .workload import Training, upload_bytes, work_of_training

K = TypeVar("K", bound="FamilyUpdate")


@dataclass(frozen=True)
class FamilyUpdate(TakesCodec, Comparable, Strategy[Any]):
    """Base of kinds with a variant for each of `members`, names of smaller models, the richest first.

    Without members there is one variant, for the main model. Every parameter is trained for `epochs` epochs.
    """

    members: Members = ()
    epochs: LocalEpochs = 10
    lr: LearningRate = 0.1
    momentum: Momentum = 0.5
    weight_decay: WeightDecay = 1e-5
    batch: BatchSize = 64

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members) or not all(self.members):
            raise ValueError(f"members are {', '.join(self.members)}: one is empty or named twice")
        ranges.check(self)

    @property
    def variant(self) -> str:
        return self.member

    @property
    def member(self) -> str:
        return self.members[0] if self.members else ""

    def variants(self: K) -> tuple[K, ...]:
        return tuple(replace(self, members=(member,)) for member in self.members) or (self,)

    @property
    def sgd(self) -> Sgd:
        """The optimiser of local training."""
        return Sgd(self.lr, self.momentum, self.weight_decay)


def work(load: Workload, kind: FamilyUpdate, level: str, mapped: int, maps: int) -> Work:
    """The work of local training, then of feature maps at a level for `mapped` samples.

    `maps` of them are held and sent, with a count for each class.
    """
    trained = work_of_training(load, Training("all", load.samples * kind.epochs, batch=kind.batch))
    values = maps * load.map_values(level)
    graph = f"features.{level}"
    return Work(
        passes=(*trained.passes, GraphPass(graph, mapped, load.graph(graph).flops)),
        peak_bytes=trained.peak_bytes + activation_bytes(load, graph) + 4 * values,
        bytes_up=upload_bytes(
            load.values("all"), load.tensors["all"] + 2, kind.codec, exact=values + load.labels
        ),
        bytes_down=trained.bytes_down,
    )


@contextmanager
def with_tensors(model: DeviceModel, tensors: Tensors) -> Iterator[None]:
    """Load tensors into the model for the duration of a `with` block."""
    before = {name: model.weights[name] for name in tensors}
    model.load(tensors)
    try:
        yield
    finally:
        model.load(before)


def trained_specs(manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The tensors that training every parameter changes, normalisation statistics included."""
    return (*manifest.specs("all"), *manifest.statistics("all"))


def base_of(model: RoundModel, member: str) -> Tensors:
    """The weights that were distributed for a member; for the main model by ""."""
    return model.family[member] if member else model.weights


def tools_of(model: RoundModel, kind: str) -> tuple[ServerTools, LocalData]:
    """The aggregator's tools and its generic set. Raises ValueError if there is none."""
    tools = model.tools
    if tools is None or tools.generic is None or not len(tools.generic):
        raise ValueError(f"{kind} needs a generic data set on the aggregator")
    return tools, tools.generic
