"""What every engine does with what it is given: samples, labels and weights are checked, batches cut."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.errors import EngineError, TensorError

from .base import Inputs, Labels


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
