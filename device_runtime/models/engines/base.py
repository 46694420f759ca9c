"""What an engine offers, whatever it runs on; `available` says which there are."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, check
from device_runtime.models.errors import EngineError, TensorError

Inputs = NDArray[Any]  # (n, *manifest.input.shape), prepared: float32, or int64 token ids
Labels = NDArray[np.integer[Any]]  # (n,), 0 <= y < len(manifest.labels)
Matrix = NDArray[np.float32]
NO_EXTRAS: Tensors = MappingProxyType({})


@dataclass(frozen=True)
class Forward:
    """One pass: logits (n, classes) and the features the head takes (n, width)."""

    logits: Matrix
    features: Matrix


class EngineWatch(Protocol):
    """Told of what an engine does; may refuse it, or take time over it."""

    def will_load(self, name: str, graph: Graph) -> None:
        """Before a session of graph `name` is made; whatever it raises goes to the caller."""

    def ran(self, name: str, graph: Graph, samples: int, seconds: float) -> None:
        """After each run of a batch of `samples`, which took `seconds` of wall time."""


class LossProbe(Protocol):
    """The loss as a function of parameters that are changed in place, for zeroth-order work."""

    @property
    def params(self) -> Flat:
        """This probe's own parameters; a change in place is seen by the next call."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """Mean cross-entropy in nats over all samples. Raises EngineError for wrong arrays."""


class Gradients(Protocol):
    """Back-propagation; the optimiser is the caller's, on the two flat vectors."""

    @property
    def params(self) -> Flat:
        """This trainer's own parameters; a change in place is seen by the next call."""

    @property
    def grads(self) -> Flat:
        """Gradient of the mean loss at the last call, laid out as `params`; overwritten by the next."""

    @property
    def statistics(self) -> Flat:
        """Running statistics, where training moves any; each call of `loss_and_grads` does."""

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """Mean loss over all samples; `extras` are the objective's inputs beside x and y.

        Raises EngineError for wrong arrays.
        """


class DeviceModel(Protocol):
    """A bundle ready to run. Equal inputs and weights give equal results, bit for bit, on one machine."""

    @property
    def manifest(self) -> Manifest:
        """Of the bundle."""

    @property
    def weights(self) -> Tensors:
        """Every tensor of the model; read-only."""

    def load(self, weights: Tensors) -> None:
        """New values for some or all tensors, copied; probes and trainers handed out keep theirs."""

    def unload(self) -> None:
        """Give back the memory of everything made to run the graphs; the next use makes it again."""

    def forward(self, x: Inputs) -> Forward:
        """Logits and features in one pass."""

    def logits(self, x: Inputs) -> Matrix:
        """(n, classes)."""

    def features(self, x: Inputs) -> Matrix:
        """(n, width): what the head takes."""

    def level_features(self, x: Inputs, level: str) -> NDArray[np.float32]:
        """(n, *manifest.features[level]): the feature map at the end of a level."""

    def probe(self, tunable: str = "all") -> LossProbe:
        """The loss with the parameters of a tunable set free, starting at `weights`."""

    def trainer(self, tunable: str = "all", objective: str = "train") -> Gradients:
        """The gradients of the parameters of a tunable set, starting at `weights`.

        `objective` is one of manifest.TRAINING; `train` is cross-entropy in nats.
        """


# FROM arguments: What every engine does with what it is given: samples, labels and weights are checked,
# batches cut.


def batches(samples: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` samples, in order."""
    for start in range(0, samples, size):
        yield slice(start, min(start + size, samples))


def check_sizes(batch: int, threads: int) -> None:
    """Raises EngineError for less than one."""
    if batch < 1 or threads < 1:
        raise EngineError(f"batch is {batch} and threads is {threads}, expected at least 1")


def copied_weights(manifest: Manifest, weights: Tensors) -> Tensors:
    """A copy of some or all tensors of the model. Raises TensorError for one that does not fit."""
    specs = {spec.name: spec for spec in manifest.stored()}
    check(weights, [specs[name] for name in weights if name in specs])
    return {name: np.array(value, order="C") for name, value in weights.items()}


def checked_inputs(manifest: Manifest, x: Inputs) -> Inputs:
    """`x` as contiguous array of shape (n, *shape). Raises EngineError for another dtype, shape, or id."""
    if x.shape[1:] != manifest.input.shape or x.ndim == 0:
        wanted = ", ".join(str(n) for n in manifest.input.shape)
        raise EngineError(f"x is {x.shape}, {manifest.name} takes (n, {wanted})")
    if x.dtype != manifest.input.dtype:
        takes = f"{manifest.name} takes {manifest.input.dtype}, as input.prepare gives it"
        raise EngineError(f"x is {x.dtype}, {takes}")
    try:
        manifest.input.check_ids(x)
    except TensorError as error:
        raise EngineError(f"{manifest.name}: {error}") from None
    return np.ascontiguousarray(x)


def checked_extras(graph: Graph, samples: int, extras: Tensors) -> dict[str, NDArray[np.float32]]:
    """The extra inputs of a training graph, contiguous float32. Raises EngineError for wrong ones."""
    wanted = [extra.name for extra in graph.extras]
    if sorted(extras) != sorted(wanted):
        takes = ", ".join(wanted) or "none"
        raise EngineError(f"extra inputs are {', '.join(sorted(extras)) or 'none'}, expected {takes}")
    given = {extra.name: np.ascontiguousarray(extras[extra.name], np.float32) for extra in graph.extras}
    for extra in graph.extras:
        shape = (samples, *extra.shape) if extra.per_sample else extra.shape
        if np.shape(extras[extra.name]) != shape:
            raise EngineError(f"extra input {extra.name} is {np.shape(extras[extra.name])}, expected {shape}")
    return {name: value.reshape(np.shape(extras[name])) for name, value in given.items()}


def checked_labels(manifest: Manifest, x: Inputs, y: Labels) -> NDArray[np.int64]:
    """`y` as int64 of shape (n,). Raises EngineError for no samples, another shape or unknown labels."""
    if y.shape != x.shape[:1] or len(y) == 0:
        raise EngineError(f"y is {y.shape}, expected ({len(x)},), at least one")
    if y.dtype.kind not in "iu":
        raise EngineError(f"y is {y.dtype}, expected integers")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(manifest.labels):
        wrong = low if low < 0 else high
        last = len(manifest.labels) - 1
        raise EngineError(f"y holds label {wrong}, {manifest.name} has labels 0 to {last}")
    return np.ascontiguousarray(y, np.int64)
