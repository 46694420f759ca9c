"""The interface of all engines, the checks of arguments that they share, and blocks of long vectors.

`available` lists the engines. A block fits the processor's cache, so that one pass over memory serves
several operations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, Vector, check
from device_runtime.models.errors import EngineError, TensorError

Inputs = NDArray[Any]  # (n, *manifest.input.shape), prepared: float32, or token ids, see `stored_dtype`
Labels = NDArray[Any]  # class numbers int (n,), or float32 (n, columns) as target.prepare gives them
Matrix = NDArray[np.float32]
NO_EXTRAS: Tensors = MappingProxyType({})


@dataclass(frozen=True)
class Forward:
    """The result of a forward pass: logits (n, outputs), and features (n, width), the head's input."""

    logits: Matrix
    features: Matrix


class EngineWatch(Protocol):
    """Notified of what an engine does; may refuse it or slow it down."""

    def will_load(self, name: str, graph: Graph) -> None:
        """Called before a session of graph `name` is made; what it raises goes to the engine's caller."""

    def ran(self, name: str, graph: Graph, samples: int, seconds: float) -> None:
        """Called after each run of a batch of `samples`, which took `seconds` of wall time."""


class LossProbe(Protocol):
    """The loss as a function of parameters that are changed in place, for zeroth-order training."""

    @property
    def params(self) -> Flat:
        """This probe's own parameters; a change in place is seen by the next call."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """The mean of the bundle's loss over all samples. Raises EngineError for wrong arrays."""


class Gradients(Protocol):
    """Back-propagation; the caller runs the optimiser, on the flat vectors of `params` and `grads`."""

    @property
    def params(self) -> Flat:
        """This trainer's own parameters; a change in place is seen by the next call."""

    @property
    def grads(self) -> Flat:
        """Gradient of the mean loss of the last call, laid out as `params`; the next call overwrites it."""

    @property
    def statistics(self) -> Flat:
        """Running statistics that training changes, if any; each call of `loss_and_grads` updates them."""

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """Mean loss over all samples; `extras` are the objective's inputs besides x and y.

        Raises EngineError for wrong arrays.
        """


class DeviceModel(Protocol):
    """A bundle ready to run. Equal inputs and weights give equal results, bit for bit, on one machine."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""

    @property
    def weights(self) -> Tensors:
        """Every tensor of the model; read-only."""

    def load(self, weights: Tensors) -> None:
        """Copies in new values of some or all tensors; existing probes and trainers keep their own."""

    def unload(self) -> None:
        """Frees the memory of everything that was made to run graphs; the next use makes it again."""

    def forward(self, x: Inputs) -> Forward:
        """Logits and features in one pass."""

    def logits(self, x: Inputs) -> Matrix:
        """Logits (n, outputs)."""

    def features(self, x: Inputs) -> Matrix:
        """Features (n, width), the input of the head."""

    def level_features(self, x: Inputs, level: str) -> NDArray[np.float32]:
        """The feature map at the end of a level, (n, *manifest.features[level])."""

    def probe(self, tunable: str = "all") -> LossProbe:
        """The loss as a function of the parameters of a tunable set, starting at `weights`."""

    def trainer(self, tunable: str = "all", objective: str = "train", batch: int = 0) -> Gradients:
        """The gradients of the parameters of a tunable set, starting at `weights`.

        `objective` is one of manifest.TRAINING; `train` is the bundle's loss (cross-entropy in nats). batch:
        samples of most calls, which are cut into equal micro-batches (`even_share`); some engines prepare for
        this number, which takes about 0.1 s.
        """


# Shared by the engines: cutting batches, and checking samples, labels and weights.


def batches(samples: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` samples, in order."""
    for start in range(0, samples, size):
        yield slice(start, min(start + size, samples))


def even_share(samples: int, most: int) -> int:
    """The size of equal micro-batches of at most `most` samples; `most` if they were under half of it."""
    if samples <= most:
        return samples
    return next((size for size in range(most, most // 2, -1) if samples % size == 0), most)


def check_sizes(batch: int, threads: int) -> None:
    """Raises EngineError unless both are at least 1."""
    if batch < 1 or threads < 1:
        raise EngineError(f"batch is {batch} and threads is {threads}, expected at least 1")


def copied_weights(manifest: Manifest, weights: Tensors) -> Tensors:
    """Copies some or all tensors of the model. Raises TensorError for one that does not fit."""
    specs = {spec.name: spec for spec in manifest.stored()}
    check(weights, [specs[name] for name in weights if name in specs])
    return {name: np.array(value, order="C") for name, value in weights.items()}


def checked_inputs(manifest: Manifest, x: Inputs) -> Inputs:
    """`x` as contiguous array (n, *shape); ids as they are stored, for `input.as_graphs_take`.

    Raises EngineError for a wrong dtype, shape or token id.
    """
    if x.shape[1:] != manifest.input.shape or x.ndim == 0:
        shape = ", ".join(str(n) for n in manifest.input.shape)
        raise EngineError(f"x is {x.shape}, {manifest.name} takes (n, {shape})")
    if x.dtype not in (manifest.input.dtype, manifest.input.stored_dtype):
        takes = f"{manifest.name} takes {manifest.input.dtype}, as input.prepare gives it"
        raise EngineError(f"x is {x.dtype}, {takes}")
    try:
        manifest.input.check_ids(x)
    except TensorError as error:
        raise EngineError(f"{manifest.name}: {error}") from None
    return np.ascontiguousarray(x)


def checked_extras(graph: Graph, samples: int, extras: Tensors) -> dict[str, NDArray[np.float32]]:
    """Extra inputs of a training graph, contiguous float32. Raises EngineError for wrong names or shapes."""
    names = [extra.name for extra in graph.extras]
    if sorted(extras) != sorted(names):
        takes = ", ".join(names) or "none"
        raise EngineError(f"extra inputs are {', '.join(sorted(extras)) or 'none'}, expected {takes}")
    arrays = {extra.name: np.ascontiguousarray(extras[extra.name], np.float32) for extra in graph.extras}
    for extra in graph.extras:
        shape = (samples, *extra.shape) if extra.per_sample else extra.shape
        if np.shape(extras[extra.name]) != shape:
            raise EngineError(f"extra input {extra.name} is {np.shape(extras[extra.name])}, expected {shape}")
    return {name: value.reshape(np.shape(extras[name])) for name, value in arrays.items()}


def checked_labels(manifest: Manifest, x: Inputs, y: Labels) -> NDArray[Any]:
    """`y` as int64 (n,), or float32 (n, columns) where the bundle's targets have columns.

    Raises EngineError for no samples, a wrong shape or dtype, unknown labels, or targets that are not finite.
    """
    if (target := manifest.target).has_columns:
        if y.shape != (len(x), *target.shape) or y.dtype != np.float32 or len(y) == 0:
            takes = f"{manifest.name} takes float32 (n, {target.shape[0]}), as target.prepare gives it"
            raise EngineError(f"y is {y.dtype} {y.shape} for {len(x)} samples, {takes}; at least one")
        if not np.isfinite(y).all():
            raise EngineError(f"y holds {int((~np.isfinite(y)).sum())} values that are not finite")
        return np.ascontiguousarray(y)
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


BLOCK = 32_768
"""Values in a block: 128 KiB; four (weights, gradients, momentum, scratch) fit a small device's L2 cache."""


def block_buffer(vector: Vector) -> Vector:
    """An uninitialised buffer for one block of `vector`; shape (at most BLOCK,)."""
    return np.empty(min(vector.size, BLOCK), np.float32)


def blocks(*vectors: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Views of the same block of every vector, block after block; all vectors have shape (size,)."""
    for start in range(0, vectors[0].size, BLOCK):
        yield tuple(vector[start : start + BLOCK] for vector in vectors)
