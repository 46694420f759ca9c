"""Rewrites the operators of a training graph into others that compute the same in the blocked layout.

The rules say which operators; this module keeps where each value lies, and writes the new graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np

from device_runtime.models.bundles.graph_check import delimited_field, fields, number, number_field
from device_runtime.models.engines.onnx_nodes import (
    GRAPH_INITIALISER,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_OPSET,
    TENSOR_BYTES,
    TENSOR_NAME,
    TENSOR_TYPE,
    TYPES,
    Node,
    encoded_tensor,
    read_node,
)

from .operators import DOMAIN, GraphStep, Maps, Operators, Window

MICROSOFT = "com.microsoft"
WIDEST = 1.5
"""Most channels with padding, over channels: wider ones cost more than the layout saves."""

MOST_PRODUCTS = 4
"""Products of matrices for each convolution in blocks from which on the usual layout is faster."""

Shape = tuple[int, ...]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 13)]


@dataclass(frozen=True)
class BlockedGraph:
    """A rewritten graph. initialisers: names of those that it still has."""

    onnx: bytes
    initialisers: frozenset[str]


class Described(msgspec.Struct, frozen=True):
    """A node's description: the shape of its output (0 for samples), and the layer that computes it."""

    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=3, max_length=4)] | None = None
    layer: str = ""
    output: Literal[0, 1, 2] = 0
    inputs: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerRules:
    """What replaces a layer's output, by name and number, and an operator of ONNX, by its kind.

    Each gives maps, or a value in its usual layout, or None to leave what it is given as it is.
    """

    layers: Mapping[tuple[str, int], Callable[[Rewriting, Described], Maps | str | None]]
    operators: Mapping[str, Callable[[Rewriting, Node], Maps | str | None]]


class Rewriting:
    """Rewrites a graph operator by operator; a value may exist in the usual layout, in blocks, or in both."""

    def __init__(self, onnx: bytes, shapes: Mapping[str, Shape], ops: Operators, rules: LayerRules) -> None:
        self.ops, self._rules = ops, rules
        self.maps: dict[str, Maps] = {}
        self.activated: dict[str, str] = {}  # maps -> the same after an activation
        self.pooled: dict[str, tuple[str, Window]] = {}  # maps -> the same after maximum pooling
        self.transposed: dict[str, str] = {}  # transposed matrix -> the matrix
        self._model = list(fields(onnx))
        self._graph = [
            part for field in self._model if field.number == MODEL_GRAPH for part in fields(field.content)
        ]
        self._initialisers = {
            _text(part.content, TENSOR_NAME): part.content
            for part in self._graph
            if part.number == GRAPH_INITIALISER
        }
        self._shapes: dict[str, Shape] = {**shapes, "x": (0, *shapes["x"])}
        self._hidden: set[str] = set()  # values that exist as blocked maps only
        self._operands: set[str] = set()  # values that an operator takes
        self._unpooled: set[str] = set()  # maps whose gradient through maximum pooling is described

    def result(self) -> BlockedGraph | None:
        """The whole graph; None if no convolution was rewritten."""
        nodes = [read_node(part.content) for part in self._graph if part.number == GRAPH_NODE]
        descriptions = [msgspec.json.decode(n.doc, type=Described) if n.doc else Described() for n in nodes]
        self._operands = {name for node in nodes for name in node.inputs}
        self._unpooled = {
            description.inputs[1] for description in descriptions if description.layer == "max_pool_backward"
        }
        for node, description in zip(nodes, descriptions, strict=True):
            self._rewrite(node, description)
        if not self.maps:
            return None
        outputs = [_text(part.content, 1) for part in self._graph if part.number == GRAPH_OUTPUT]
        for name in outputs:
            self.plain(name)
        steps, names = _without_copies(_needed(self.ops.steps, outputs), outputs)
        if not _pays(steps):
            return None
        used = {name for step in steps for name in step.inputs}
        parts = [delimited_field(GRAPH_NODE, step.encoded(names)) for step in steps]
        parts += [p.encoded for p in self._graph if p.number not in (GRAPH_NODE, GRAPH_INITIALISER)]
        initialisers = {name: content for name, content in self._initialisers.items() if name in used}
        constants = {name: value for name, value in self.ops.constants.items() if name in used}
        tensors = (
            *initialisers.values(),
            *(encoded_tensor(name, value) for name, value in constants.items()),
        )
        parts += [delimited_field(GRAPH_INITIALISER, content) for content in tensors]
        model = [field.encoded for field in self._model if field.number != MODEL_GRAPH]
        model.append(delimited_field(MODEL_GRAPH, b"".join(parts)))
        for domain in (DOMAIN, MICROSOFT):
            opset = delimited_field(1, domain.encode()) + number_field(2, 1)
            model.append(delimited_field(MODEL_OPSET, opset))
        return BlockedGraph(b"".join(model), frozenset(initialisers))

    def _rewrite(self, node: Node, description: Described) -> None:
        output = node.outputs[0]
        if description.shape is not None:
            self._shapes[output] = description.shape
        maps: Maps | str | None = None
        if description.layer:
            layer = self._rules.layers.get((description.layer, description.output))
            maps = None if layer is None else layer(self, description)
        elif node.kind in self._rules.operators:
            maps = self._rules.operators[node.kind](self, node)
        if maps is None:
            for name in node.inputs:
                self.plain(name)
            self.ops.keep(node)
        elif isinstance(maps, Maps):
            self.maps[output] = maps
            self._hidden.add(output)
        else:
            self.ops.name(maps, output)

    def shape(self, name: str) -> Shape:
        """The shape of maps (0 for samples), or of a kernel; () if it is not known.

        Those along one dimension are taken as of one row.
        """
        shape = self._shapes.get(name, ())
        return (*shape[:2], 1, *shape[2:]) if self._has_one_dimension(name) else shape

    def in_own_shape(self, value: str, name: str) -> str:
        """The value in the shape that `name` has in the given graph."""
        return self._reshaped(value, self._shapes[name]) if self._has_one_dimension(name) else value

    def with_rows(self, name: str) -> str:
        """The value in its usual layout; maps along one dimension as of one row."""
        value = self.plain(name)
        return self._reshaped(value, self.shape(name)) if self._has_one_dimension(name) else value

    def _has_one_dimension(self, name: str) -> bool:
        return len(self._shapes.get(name, ())) == 3

    def _reshaped(self, value: str, shape: Shape) -> str:
        return self.ops.reshape(value, shape[0] or self.ops.rows, *shape[1:])

    def blocked(self, name: str) -> Maps | None:
        """The value as blocked maps; None if it is no batch of maps, or of too few channels."""
        if name not in self.maps:
            shape = self.shape(name)
            if len(shape) != 4 or shape[0] != 0 or not self.is_wide(shape[1]):
                return None
            self.maps[name] = self.ops.maps(self.with_rows(name), *shape[1:])
        return self.maps[name]

    def both(self, *names: str) -> tuple[Maps, Maps] | None:
        """Two values as maps, if they have the same shape and one of them is blocked already."""
        if not any(name in self.maps for name in names):
            return None
        first, second = (self.blocked(name) for name in names)
        return (first, second) if first and second and first.fits(second) else None

    def plain(self, name: str) -> str:
        """The value in its usual layout."""
        if name in self._hidden:
            self._hidden.discard(name)
            self.ops.name(self.in_own_shape(self.ops.plain(self.maps[name]), name), name)
        return name

    def takes_places(self, pool: Node) -> bool:
        """Whether anything but the described gradient takes the places of the maxima."""
        return (
            any(name in self._operands for name in pool.outputs[1:]) and pool.inputs[0] not in self._unpooled
        )

    def is_wide(self, channels: int) -> bool:
        """Whether so many channels fill blocks well enough."""
        return 0 < self.ops.wide(channels) <= WIDEST * channels

    def constant(self, name: str) -> float | int | None:
        """The value of a constant scalar of the graph, float32 or int64; None if it is none."""
        parts = {part.number: part for part in fields(self._initialisers.get(name, b""))}
        kinds = {TYPES["float32"]: "<f4", TYPES["int64"]: "<i8"}
        kind = kinds.get(number(parts[TENSOR_TYPE])) if TENSOR_BYTES in parts else None
        values = np.frombuffer(parts[TENSOR_BYTES].content, kind) if kind else np.empty(0)
        return values[0].item() if values.size == 1 else None


def _text(message: bytes, number: int) -> str:
    return next(bytes(part.content).decode() for part in fields(message) if part.number == number)


def _needed(steps: Sequence[GraphStep], outputs: Sequence[str]) -> list[GraphStep]:
    """The steps that the outputs need, in their order."""
    needed = set(outputs)
    backwards = []
    for step in reversed(steps):
        if needed.intersection(step.outputs):
            needed.update(step.inputs)
            backwards.append(step)
    return backwards[::-1]


def _pays(steps: Sequence[GraphStep]) -> bool:
    """Whether convolutions in blocks outweigh the products of matrices.

    ONNX Runtime does not optimise a rewritten graph, so that its products are slower than in the given one.
    """
    convolutions = sum(step.kind == "Conv" and step.domain == DOMAIN for step in steps)
    products = sum(step.kind in ("MatMul", "FusedMatMul") for step in steps)
    return MOST_PRODUCTS * convolutions > products


def _without_copies(
    steps: Sequence[GraphStep], outputs: Sequence[str]
) -> tuple[list[GraphStep], dict[str, str]]:
    """The steps without copies of a value, and the new names of values that this takes."""
    originals = {name for step in steps for name in step.outputs if step.kind != "Identity"}
    names: dict[str, str] = {}

    def final(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    rest = []
    for step in steps:
        if step.kind == "Identity":
            source, output = final(step.inputs[0]), step.outputs[0]
            if output not in outputs:
                names[output] = source
                continue
            if source in originals and source not in outputs:
                names[source] = output
                continue
        rest.append(step)
    return rest, {name: final(name) for name in names}
