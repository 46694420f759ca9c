"""Loss for zeroth-order training with the parameters as a graph's inputs, and graphs with constants."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import delimited_field, fields, number_field
from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Flat, TensorSpec

from .base import Inputs, Labels, batches, checked_inputs, checked_labels
from .onnx_nodes import (
    ENTRY_KEY,
    ENTRY_VALUE,
    GRAPH_INITIALISER,
    GRAPH_INPUT,
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_TYPE,
    TENSOR_NAME,
    TENSOR_SHAPE,
    TENSOR_TYPE,
    TYPES,
)
from .onnx_session import BoundSession, LoadedGraph, SessionSettings, load_session


class OnnxProbe:
    """Loss by one session that reads the parameters in place; see `engines.base.LossProbe`.

    rows: the most samples of a run.
    """

    def __init__(self, manifest: Manifest, rows: int, loaded: LoadedGraph, params: Flat) -> None:
        self.params = params
        self._manifest, self._rows, self._bound = manifest, rows, BoundSession(loaded, params)

    def loss(self, x: Inputs, y: Labels) -> float:
        """The mean of the bundle's loss: of each sample in float32, summed in float64 in the given order."""
        x = checked_inputs(self._manifest, x)
        labels = checked_labels(self._manifest, x, y)
        losses = np.empty(len(y), np.float32)
        for part in batches(len(x), self._rows):
            batch = self._manifest.input.as_graphs_take(x[part])  # which the session reads in place
            self._bound.bind_input("x", batch)
            self._bound.bind_input("y", labels[part])
            self._bound.bind_output("losses", losses[part])
            self._bound.run(part.stop - part.start)
        return float(losses.mean(dtype=np.float64))


@dataclass(frozen=True)
class ProbeGraph:
    """A graph that takes parameters as inputs, and the values of its initialisers."""

    name: str
    graph: Graph
    onnx: bytes
    frozen: Mapping[str, NDArray[Any]]

    def suits_constants(self, manifest: Manifest) -> bool:
        """Whether constants may be faster: it has convolutions, and trains more than the head."""
        head = {manifest.head.weight, manifest.head.bias}
        return not head.issuperset(self.graph.trainable) and has_convolution(self.onnx)

    def open(self, settings: SessionSettings) -> LoadedGraph:
        """A session with the parameters as inputs. Raises EngineError, and what the watch raises."""
        return load_session(self.name, self.graph, self.onnx, self.frozen, settings)

    def with_constants(self, params: Flat) -> "ProbeGraph":
        """The same graph with the parameters as initialisers, which share the memory of `params`."""
        constant = msgspec.structs.replace(
            self.graph, trainable=(), frozen=(*self.graph.frozen, *params.views)
        )
        frozen = {**self.frozen, **params.views}
        return replace(self, graph=constant, onnx=with_constants(self.onnx, params.specs), frozen=frozen)


def rows_beside(held_bytes: int, graph: Graph, rows: int) -> int:
    """`rows`, less the samples whose activations take `held_bytes`; at least half of `rows`.

    With that many samples a run, holding `held_bytes` in addition to the activations does not raise peak
    memory.
    """
    return max(rows - -(-held_bytes // max(1, graph.bytes_per_sample)), -(-rows // 2))


# Turns inputs of a graph into constants, which ONNX Runtime folds and lays out for the processor, and back.

INPUT_NAME = 1
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
EXTERNAL = 1


@lru_cache(maxsize=16)
def has_convolution(onnx: bytes) -> bool:
    """Whether the model has a convolution. Raises BundleError if it is no model."""
    return any(
        part.number == NODE_TYPE and part.content == b"Conv"
        for graph in fields(onnx)
        if graph.number == MODEL_GRAPH
        for node in fields(graph.content)
        if node.number == GRAPH_NODE
        for part in fields(node.content)
    )


def with_constants(onnx: bytes, specs: Sequence[TensorSpec]) -> bytes:
    """The model with these inputs as initialisers without data, which the session is given in memory.

    Raises BundleError if it is no model.
    """
    constants = {spec.name.encode(): spec for spec in specs}
    return b"".join(
        delimited_field(MODEL_GRAPH, b"".join(_graph(field.content, constants)))
        if field.number == MODEL_GRAPH
        else field.encoded
        for field in fields(onnx)
    )


def with_inputs(onnx: bytes, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The model with these float32 initialisers as inputs. Raises BundleError if it is no model."""
    names = {name.encode() for name in shapes}
    parts = []
    for field in fields(onnx):
        if field.number != MODEL_GRAPH:
            parts.append(field.encoded)
            continue
        rest = [
            part.encoded
            for part in fields(field.content)
            if part.number != GRAPH_INITIALISER or _name(part.content, TENSOR_NAME) not in names
        ]
        inputs = (delimited_field(GRAPH_INPUT, encoded_input(name, shape)) for name, shape in shapes.items())
        parts.append(delimited_field(MODEL_GRAPH, b"".join((*rest, *inputs))))
    return b"".join(parts)


def encoded_input(name: str, shape: tuple[int, ...]) -> bytes:
    """An encoded ValueInfoProto of float32."""
    sizes = b"".join(delimited_field(1, number_field(1, size)) for size in shape)
    tensor = number_field(1, TYPES["float32"]) + delimited_field(2, sizes)
    return delimited_field(INPUT_NAME, name.encode()) + delimited_field(2, delimited_field(1, tensor))


def _graph(graph: bytes, constants: dict[bytes, TensorSpec]) -> Iterator[bytes]:
    for field in fields(graph):
        name = _name(field.content, INPUT_NAME) if field.number == GRAPH_INPUT else b""
        yield (
            delimited_field(GRAPH_INITIALISER, _without_data(constants[name]))
            if name in constants
            else field.encoded
        )


def _name(value: bytes, which: int) -> bytes:
    return next((part.content for part in fields(value) if part.number == which), b"")


def _without_data(spec: TensorSpec) -> bytes:
    shape = b"".join(number_field(TENSOR_SHAPE, size) for size in spec.shape)
    named = delimited_field(TENSOR_NAME, spec.name.encode())
    where = {"location": "weights", "offset": "0", "length": str(4 * spec.size)}
    entries = (
        delimited_field(ENTRY_KEY, key.encode()) + delimited_field(ENTRY_VALUE, value.encode())
        for key, value in where.items()
    )
    return (
        shape
        + number_field(TENSOR_TYPE, TYPES[spec.dtype])
        + named
        + b"".join(delimited_field(TENSOR_EXTERNAL, entry) for entry in entries)
        + number_field(TENSOR_LOCATION, EXTERNAL)
    )
