"""Trains models on the aggregator, with a teacher, and for kinds whose devices train a smaller model.

Several kinds share this. A smaller model is of the task's family, and its device sends feature maps.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.bundles.weights import generator_of
from device_runtime.models.engines.base import NO_EXTRAS, DeviceModel
from device_runtime.models.errors import BundleError
from device_runtime.models.training.optimizer import Optimizer, Sgd
from device_runtime.profiles import GraphPass, Work, Workload
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.aggregator_half import RoundModel, ServerTools
from device_runtime.strategies.interface.capabilities import Comparable, TakesCodec
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import Strategy
from device_runtime.strategies.settings import (
    BatchSize,
    LearningRate,
    LocalEpochs,
    Members,
    Momentum,
    WeightDecay,
)

from .local_training import TrainingPlan, TrainingResult, follows_plan, train_by_plan
from .workload import Training, upload_bytes, work_of_training

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
Rows = Mapping[str, NDArray[np.float32]]

PLACES = 32 * 32
"""Places in the largest feature map of the networks and images that the papers' beta is for."""
BLOCK = 256
"""Samples whose feature maps are in memory at once."""


class Diverged(Exception):
    """Raised when training ends with parameters that are not finite."""


@dataclass(frozen=True)
class ServerTraining:
    """Settings of training on the aggregator: `epochs` epochs, reshuffled in each, in batches of `batch`.

    extras: gives the objective's inputs for the samples at these indices, in addition to x and y.
    constants: names of parameters that stay as they are.
    """

    optimizer: Optimizer
    epochs: int
    batch: int
    tunable: str = "all"
    objective: str = "train"
    extras: Callable[[Indices], Tensors] = lambda _: NO_EXTRAS
    constants: tuple[str, ...] = ()


def teach(
    model: DeviceModel, weights: Tensors, data: LocalData, training: ServerTraining, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """The weights after training; `weights` are the whole model's, and `model` is left with them loaded.

    Raises BundleError if the bundle has no such graph, and Diverged.
    """
    model.load(weights)
    most = training.batch if len(data) >= training.batch else 0
    trainer = model.trainer(training.tunable, training.objective, most)
    params, grads = trainer.params, trainer.grads
    steps = training.optimizer.start(params.vector)
    constants = {name: params.views[name].copy() for name in training.constants}
    for _ in range(training.epochs):
        order = rng.permutation(len(data))
        for start in range(0, len(order), training.batch):
            batch = order[start : start + training.batch]
            trainer.loss_and_grads(data.x[batch], data.y[batch], training.extras(batch))
            steps.step(params.vector, grads.vector)
            for name, value in constants.items():
                params.views[name][...] = value
    if not (np.isfinite(params.vector).all() and np.isfinite(trainer.statistics.vector).all()):
        raise Diverged(f"{training.objective} at {training.optimizer}")
    return {**weights, **params.tensors(), **trainer.statistics.tensors()}


def teach_or_keep(
    model: DeviceModel, weights: Tensors, data: LocalData, training: ServerTraining, rng: np.random.Generator
) -> Tensors:
    """As `teach`; if training diverges, `weights` unchanged."""
    try:
        return teach(model, weights, data, training, rng)
    except Diverged as error:
        log.warning("%s diverges: %s", model.manifest.name, error)
        return weights


def generator(seed: int, kind: str, order: int) -> np.random.Generator:
    """The random generator of a kind on the aggregator, for its `order`-th use in the round of this seed."""
    return generator_of(f"{seed}:{kind}:{order}")


def attention(maps: NDArray[np.float32]) -> NDArray[np.float32]:
    """The attention maps of feature maps: vec(sum_c |F_c|^2) (thesis 002, equation 5.5).

    Feature maps (n, channels, h, w) or (n, tokens, channels) give (n, places).
    """
    squares = np.square(maps)
    summed: NDArray[np.float32] = squares.sum(2) if maps.ndim == 3 else squares.sum(1)
    return summed.reshape(len(maps), -1)


def attention_maps(model: DeviceModel, x: NDArray[Any], levels: Iterable[str]) -> Rows:
    """The attention maps of samples x by level, (n, places), with the weights that the model holds."""
    return {
        level: np.concatenate([attention(model.level_features(part, level)) for part in _parts(x)])
        for level in levels
    }


def attention_places(student: Manifest, objective: str = "attention") -> dict[str, int]:
    """The levels at which the objective compares a model with its teacher, and the places of each.

    Raises BundleError if the bundle has no such graph.
    """
    need_graphs(student, (graph := f"{objective}.all",))
    extras = (extra for extra in student.graphs[graph].extras if extra.per_sample)
    return {extra.name.partition(".")[2]: extra.shape[0] for extra in extras}


@dataclass(frozen=True)
class TeacherAttention:
    """The extra inputs of attention transfer: a teacher's maps (n, places) and a beta for each level."""

    maps: Rows
    beta: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, maps: Rows, beta: float, levels: Sequence[str]) -> TeacherAttention:
        """Maps with `beta` divided by their places, as Zagoruyko and Komodakis 2017 (section 4.1) divide 1e3.

        `beta` is for images whose largest map has PLACES places, as theirs; for smaller maps it is smaller in
        proportion, so that a level weighs the same at any size (ours). Levels not among `levels` weigh 0.
        """
        most = max(rows.shape[1] for rows in maps.values())
        each = {n: beta * most / PLACES / rows.shape[1] if n in levels else 0.0 for n, rows in maps.items()}
        return cls(maps, each)

    def __call__(self, batch: Indices) -> Tensors:
        teacher = {f"teacher.{level}": rows[batch] for level, rows in self.maps.items()}
        return {**teacher, "beta": np.array([self.beta[level] for level in self.maps], np.float32)}


def need_graphs(manifest: Manifest, graphs: Iterable[str]) -> None:
    """Raises BundleError, naming the first of the graphs that the bundle does not have."""
    for graph in graphs:
        if graph not in manifest.graphs:
            what, _, of = graph.partition(".")
            ask = f"--features {of}" if what == "features" else f"--objective {what} --tunable {of}"
            raise BundleError(f"bundle {manifest.name} has no graph {graph}: export it with {ask}")


def map_shape(manifest: Manifest, level: str) -> tuple[int, ...]:
    """The shape of one sample's feature map at a level. Raises BundleError if the bundle gives none."""
    need_graphs(manifest, (f"features.{level}",))
    return {str(key): shape for key, shape in manifest.features.items()}[level]


def need_one_shape(manifests: Iterable[Manifest], level: str) -> None:
    """Raises BundleError if bundles give no feature map at a level, or maps of different shapes."""
    shapes: dict[tuple[int, ...], str] = {}
    for manifest in manifests:
        shapes.setdefault(map_shape(manifest, level), manifest.name)
    if len(shapes) > 1:
        (shape, first), (other, second), *_ = shapes.items()
        raise BundleError(
            f"maps of level {level} must have one shape in a family: {first} gives {shape}, {second} {other}"
        )


def need_places(teacher: Manifest, student: Manifest, objective: str = "attention") -> None:
    """Raises BundleError if the attention maps of teacher and student differ in size at a compared level."""
    for level, size in attention_places(student, objective).items():
        shape = map_shape(teacher, level)
        places = shape[0] if len(shape) == 2 else prod(shape[1:])
        if places != size:
            raise BundleError(
                f"attention at level {level} has {places} places in {teacher.name}, "
                f"{size} in {student.name}: they must be as many"
            )


def _parts(x: NDArray[Any]) -> Iterable[NDArray[Any]]:
    return (x[start : start + BLOCK] for start in range(0, max(len(x), 1), BLOCK))


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

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        """See `HasTrainingPlan`."""
        return TrainingPlan(self.sgd, self.epochs, self.batch, np.arange(len(data)))

    @follows_plan
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        return train_by_plan(self, model, data, run)

    @abstractmethod
    def update_of(self, result: TrainingResult, model: DeviceModel, data: LocalData, run: Run) -> Update:
        """See `HasTrainingPlan`."""


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
