"""Rewrites a training graph so that its convolutions run in ONNX Runtime's blocked layout.

Kernels are inputs of a training graph, which keeps ONNX Runtime from its fastest convolutions. This module
replaces the layers that `export.described` describes, for one number of samples and the block of this
processor. Values stay in blocks from layer to layer; parameters and gradients keep their usual layout.

A graph may come from anywhere, and describe itself wrongly. ONNX Runtime refuses it then, because its
operators compare the shapes of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from device_runtime.models.bundles.graph_check import delimited_field, fields, number, number_field
from device_runtime.models.errors import BundleError

from .blocked_convolutions import Kernel, convolution, input_gradient, kernel_gradient
from .blocked_operators import DOMAIN, Maps, Operators, Step, Window
from .blocked_pooling import max_pool, max_pool_gradient
from .onnx_nodes import (
    GRAPH_INITIALISER,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_OPSET,
    Node,
    read_node,
)
from .onnx_whole import TENSOR_BYTES, TENSOR_NAME, TENSOR_TYPE, TYPES, encoded_tensor

MICROSOFT = "com.microsoft"
WIDEST = 1.5
"""Most channels with padding, over channels: wider ones cost more than the layout saves."""

MOST_PRODUCTS = 4
"""Products of matrices for each convolution in blocks from which on the usual layout is faster."""

Shape = tuple[int, ...]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 13)]
LARGEST_WINDOW = 64
"""Largest size, stride, padding and dilation of a kernel: a constant of the graph lists its places."""


@dataclass(frozen=True)
class BlockedGraph:
    """A rewritten graph. initialisers: names of those that it still has."""

    onnx: bytes
    initialisers: frozenset[str]


def blocked_graph(onnx: bytes, shapes: Mapping[str, Shape], rows: int, block: int) -> BlockedGraph | None:
    """The graph for `rows` samples in blocks of `block` channels; None if it has no convolution to rewrite.

    shapes: of x without samples, and of every tensor of the model. Raises BundleError if it is no graph, or
    describes its layers wrongly.
    """
    if b'"layer"' not in onnx:
        return None
    rewriting = _Rewriting(onnx, shapes, Operators(rows, block))
    try:
        return rewriting.result()
    except (ValueError, IndexError, ArithmeticError) as error:
        raise BundleError(f"the graph describes its layers wrongly: {error}") from error


class Described(msgspec.Struct, frozen=True):
    """A node's description. shape: of its output, 0 for samples. layer: the one whose output it is."""

    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=3, max_length=4)] | None = None
    layer: str = ""
    output: Literal[0, 1, 2] = 0
    inputs: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


class _Rewriting:
    """Rewrites operator by operator; each value exists in its usual layout, as blocked maps, or as both."""

    def __init__(self, onnx: bytes, shapes: Mapping[str, Shape], ops: Operators) -> None:
        self.ops = ops
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
        self._taken: set[str] = set()  # values that an operator takes
        self._unpooled: set[str] = set()  # maps whose gradient through maximum pooling is described

    def result(self) -> BlockedGraph | None:
        """The whole graph; None if no convolution was rewritten."""
        nodes = [read_node(part.content) for part in self._graph if part.number == GRAPH_NODE]
        said = [msgspec.json.decode(n.doc, type=Described) if n.doc else Described() for n in nodes]
        self._taken = {name for node in nodes for name in node.inputs}
        self._unpooled = {one.inputs[1] for one in said if one.layer == "max_pool_backward"}
        for node, one in zip(nodes, said, strict=True):
            self._rewrite(node, one)
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
        kept = {name: content for name, content in self._initialisers.items() if name in used}
        made = {name: value for name, value in self.ops.constants.items() if name in used}
        constants = (*kept.values(), *(encoded_tensor(name, value) for name, value in made.items()))
        parts += [delimited_field(GRAPH_INITIALISER, content) for content in constants]
        model = [field.encoded for field in self._model if field.number != MODEL_GRAPH]
        model.append(delimited_field(MODEL_GRAPH, b"".join(parts)))
        for domain in (DOMAIN, MICROSOFT):
            opset = delimited_field(1, domain.encode()) + number_field(2, 1)
            model.append(delimited_field(MODEL_OPSET, opset))
        return BlockedGraph(b"".join(model), frozenset(kept))

    def _rewrite(self, node: Node, said: Described) -> None:
        output = node.outputs[0]
        if said.shape is not None:
            self._shapes[output] = said.shape
        found: Maps | str | None = None
        if said.layer:
            layer = LAYERS.get((said.layer, said.output))
            found = None if layer is None else layer(self, said)
        elif node.kind in OPERATORS:
            found = OPERATORS[node.kind](self, node)
        if found is None:
            for name in node.inputs:
                self.plain(name)
            self.ops.keep(node)
        elif isinstance(found, Maps):
            self.maps[output] = found
            self._hidden.add(output)
        else:
            self.ops.name(found, output)

    def shape(self, name: str) -> Shape:
        """The shape of maps (0 for samples), or of a kernel; () if it is not known.

        Those along one dimension are taken as of one row.
        """
        shape = self._shapes.get(name, ())
        return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape

    def in_own_shape(self, value: str, name: str) -> str:
        """The value in the shape that `name` has in the given graph."""
        shape = self._shapes.get(name, ())
        return self.ops.reshape(value, shape[0] or self.ops.rows, *shape[1:]) if len(shape) == 3 else value

    def with_rows(self, name: str) -> str:
        """The value in its usual layout; maps along one dimension as of one row."""
        shape = self.shape(name)
        value = self.plain(name)
        one_row = len(self._shapes.get(name, ())) == 3
        return self.ops.reshape(value, shape[0] or self.ops.rows, *shape[1:]) if one_row else value

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
        return any(name in self._taken for name in pool.outputs[1:]) and pool.inputs[0] not in self._unpooled

    def is_wide(self, channels: int) -> bool:
        """Whether so many channels fill blocks well enough."""
        return 0 < self.ops.wide(channels) <= WIDEST * channels

    def constant(self, name: str) -> float | int | None:
        """The value of a constant of the graph that has one value, float32 or int64; None if it is none."""
        parts = {part.number: part for part in fields(self._initialisers.get(name, b""))}
        kinds = {TYPES["float32"]: "<f4", TYPES["int64"]: "<i8"}
        kind = kinds.get(number(parts[TENSOR_TYPE])) if TENSOR_BYTES in parts else None
        found = np.frombuffer(parts[TENSOR_BYTES].content, kind) if kind else np.empty(0)
        return found[0].item() if found.size == 1 else None


def _text(message: bytes, number: int) -> str:
    return next(bytes(part.content).decode() for part in fields(message) if part.number == number)


def _needed(steps: Sequence[Step], outputs: Sequence[str]) -> list[Step]:
    """The steps that the outputs need, in their order."""
    needed = set(outputs)
    kept = []
    for step in reversed(steps):
        if needed.intersection(step.outputs):
            needed.update(step.inputs)
            kept.append(step)
    return kept[::-1]


def _pays(steps: Sequence[Step]) -> bool:
    """Whether convolutions in blocks outweigh the products of matrices.

    ONNX Runtime does not optimise a rewritten graph, so that its products are slower than in the given one.
    """
    convolutions = sum(step.kind == "Conv" and step.domain == DOMAIN for step in steps)
    products = sum(step.kind in ("MatMul", "FusedMatMul") for step in steps)
    return MOST_PRODUCTS * convolutions > products


def _without_copies(steps: Sequence[Step], outputs: Sequence[str]) -> tuple[list[Step], dict[str, str]]:
    """The steps without copies of a value, and the new names of values that this takes."""
    made = {name for step in steps for name in step.outputs if step.kind != "Identity"}
    names: dict[str, str] = {}

    def final(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    kept = []
    for step in steps:
        if step.kind == "Identity":
            source, output = final(step.inputs[0]), step.outputs[0]
            if output not in outputs:
                names[output] = source
                continue
            if source in made and source not in outputs:
                names[source] = output
                continue
        kept.append(step)
    return kept, {name: final(name) for name in names}


# Each function below gives one output of a layer, as maps or as a value in its usual layout, or None to leave
# the layer as it is.


def _kernel(
    on: _Rewriting, name: str, window: Callable[[tuple[int, int]], Window], group: int
) -> Kernel | None:
    shape = on.shape(name)
    if len(shape) != 4 or group < 1 or not on.is_wide(shape[0]):
        return None
    moves = window((shape[2], shape[3]))
    return (
        Kernel(on.plain(name), shape[0], shape[1], moves, group) if moves.is_within(LARGEST_WINDOW) else None
    )


def _input(on: _Rewriting, name: str, kernel: Kernel) -> Maps | str | None:
    """The input of a convolution: as it is if it has fewer channels than a block, else blocked."""
    shape = on.shape(name)
    if len(shape) != 4 or shape[0] != 0 or shape[1] != kernel.ins * kernel.group:
        return None
    return on.with_rows(name) if kernel.group == 1 and kernel.ins < on.ops.block else on.blocked(name)


def _window(node: Node, kernel: tuple[int, int]) -> Window:
    """How a convolution, or pooling, moves over maps; along one dimension, as over maps of one row."""
    given: Mapping[str, Any] = node.attributes
    pads = given.get("pads", (0, 0, 0, 0))
    sizes = (given.get("kernel_shape", kernel), given.get("strides", (1, 1)), given.get("dilations", (1, 1)))
    pairs = [tuple(size) if len(size) == 2 else (1, *size) for size in sizes]
    before, after = (pads[:2], pads[2:]) if len(pads) == 4 else ((0, *pads[:1]), (0, *pads[1:]))
    return Window(pairs[0], pairs[1], before, after, pairs[2])


def _convolution(on: _Rewriting, node: Node) -> Maps | None:
    x, w, *bias = node.inputs
    group: Any = node.attributes.get("group", 1)
    kernel = _kernel(on, w, lambda size: _window(node, size), group)
    maps = None if kernel is None else _input(on, x, kernel)
    if kernel is None or maps is None:
        return None
    size = kernel.window.size(*on.shape(x)[2:])
    return convolution(on.ops, maps, kernel, on.plain(bias[0]) if bias else "", size)


def _described_kernel(on: _Rewriting, layer: Described) -> Kernel | None:
    """The kernel of a convolution whose gradient is described: stride, padding, dilation, groups."""
    numbers = [int(value) for value in layer.numbers]
    if len(numbers) == 4:  # along one dimension
        numbers = [1, numbers[0], 0, numbers[1], 1, *numbers[2:]]
    stride, padding, dilation = ((numbers[at], numbers[at + 1]) for at in (0, 2, 4))
    return _kernel(
        on, layer.inputs[2], lambda size: Window(size, stride, padding, padding, dilation), numbers[6]
    )


def _input_gradient(on: _Rewriting, layer: Described) -> Maps | None:
    kernel, go, shape = _described_kernel(on, layer), on.blocked(layer.inputs[0]), on.shape(layer.inputs[1])
    if kernel is None or go is None or len(shape) != 4 or not on.is_wide(shape[1]):
        return None
    return input_gradient(on.ops, go, kernel, (shape[2], shape[3]))


def _kernel_gradient(on: _Rewriting, layer: Described) -> str | None:
    kernel, go = _described_kernel(on, layer), on.blocked(layer.inputs[0])
    x = None if kernel is None else _input(on, layer.inputs[1], kernel)
    if kernel is None or go is None or x is None:
        return None
    _, _, height, width = on.shape(layer.inputs[1])
    gradient = kernel_gradient(on.ops, x, go, kernel, (height, width))
    return None if gradient is None else on.in_own_shape(gradient, layer.inputs[2])


def _bias_gradient(on: _Rewriting, layer: Described) -> str | None:
    go = on.maps.get(layer.inputs[0])
    return None if go is None else on.ops.sums(go)


def _max_pool(on: _Rewriting, node: Node) -> Maps | None:
    x, size = on.maps.get(node.inputs[0]), on.shape(node.outputs[0])[2:]
    window = _window(node, (1, 1))
    if x is None or window.dilation != (1, 1) or not window.is_within(LARGEST_WINDOW):
        return None
    if window.size(x.height, x.width) != size or node.inputs[0] in on.pooled or on.takes_places(node):
        return None
    on.pooled[node.inputs[0]] = node.outputs[0], window
    return max_pool(on.ops, x, window)


def _max_pool_gradient(on: _Rewriting, layer: Described) -> Maps | None:
    go_name, x_name = layer.inputs
    if x_name not in on.pooled:
        return None
    y_name, window = on.pooled[x_name]
    pair = on.both(go_name, y_name)
    return None if pair is None else max_pool_gradient(on.ops, on.maps[x_name], pair[1], pair[0], window)


# Normalisation


def _squares(ops: Operators, x: Maps, shift: str, *, per_sample: bool) -> str:
    """Mean square of each map after a shift (.., x.padded): (n, channels)."""
    ones = ops.constant(np.ones((ops.rows if per_sample else 1, x.padded)))
    shifted = ops.affine(x, ones, shift, per_sample=per_sample)
    return ops.mean_products(shifted, shifted)


def _reciprocal_deviation(ops: Operators, variance: str, epsilon: float) -> str:
    return ops.emit("Reciprocal", ops.emit("Sqrt", ops.emit("Add", variance, ops.constant(epsilon))))


@dataclass(frozen=True)
class _Groups:
    """The groups of a group normalisation, of `each` channels."""

    ops: Operators
    groups: int
    each: int

    @classmethod
    def of(cls, on: _Rewriting, x: Maps, layer: Described) -> _Groups | None:
        groups = int(layer.numbers[0])
        return None if groups < 1 or x.channels % groups else cls(on.ops, groups, x.channels // groups)

    def split(self, value: str, rows: int) -> str:
        """(rows, channels) -> (rows, groups, each)."""
        return self.ops.reshape(value, rows, self.groups, self.each)

    def mean(self, value: str) -> str:
        """(n, channels) -> (n, groups, 1)."""
        return self.ops.mean(self.split(value, self.ops.rows), 2)

    def spread(self, value: str) -> str:
        """(n, groups, 1) -> (n, groups, each)."""
        return self.ops.multiply(value, self.ops.constant(np.ones((1, 1, self.each))))

    def wide(self, value: str) -> str:
        """(n, groups, each) -> (n, x.padded)."""
        return self.ops.widened(value, self.groups * self.each, self.ops.rows)


def _group_norm(on: _Rewriting, layer: Described) -> Maps | str | None:
    x, ops = on.blocked(layer.inputs[0]), on.ops
    by = None if x is None else _Groups.of(on, x, layer)
    if x is None or by is None:
        return None
    mean = by.mean(ops.means(x))
    minus = by.wide(by.spread(ops.emit("Neg", mean)))
    variance = by.mean(_squares(ops, x, minus, per_sample=True))
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[1])
    if layer.output:
        return ops.reshape((mean, deviation)[layer.output - 1], ops.rows, by.groups)
    weight, bias = (by.split(on.plain(name), 1) for name in layer.inputs[1:])
    scale = ops.multiply(deviation, weight)
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    return ops.affine(x, by.wide(scale), by.wide(shift), per_sample=True)


def _group_norm_backward(on: _Rewriting, layer: Described) -> Maps | str | None:
    """As in `torch_engine.layers.group_norm_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    by = None if pair is None else _Groups.of(on, pair[0], layer)
    if pair is None or by is None:
        return None
    go, x = pair
    mean, deviation = (ops.reshape(on.plain(name), ops.rows, by.groups, 1) for name in layer.inputs[2:4])
    sums, along = (by.split(value, ops.rows) for value in (ops.means(go), ops.mean_products(go, x)))
    along = ops.multiply(ops.subtract(along, ops.multiply(mean, sums)), deviation)
    if layer.output:
        total = ops.sum_over_samples((along, sums)[layer.output - 1])
        return ops.reshape(ops.multiply(total, ops.constant(x.area)), x.channels)
    weight = by.split(on.plain(layer.inputs[4]), 1)
    inner, outer = (ops.mean(ops.multiply(value, weight), 2) for value in (along, sums))
    scale = ops.emit("Neg", ops.multiply(inner, deviation, deviation))
    shift = ops.emit("Neg", ops.emit("Add", ops.multiply(scale, mean), ops.multiply(outer, deviation)))
    rest = ops.affine(x, *(by.wide(by.spread(value)) for value in (scale, shift)), per_sample=True)
    return ops.added(ops.affine(go, by.wide(ops.multiply(deviation, weight)), per_sample=True), rest)


def _batch_norm(on: _Rewriting, node: Node) -> Maps | None:
    x, ops = on.maps.get(node.inputs[0]), on.ops
    if x is None:
        return None
    weight, bias, mean, variance = (on.plain(name) for name in node.inputs[1:])
    epsilon: Any = node.attributes.get("epsilon", 1e-5)
    scale = ops.multiply(_reciprocal_deviation(ops, variance, epsilon), weight)
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    return ops.affine(x, *(ops.widened(value, x.channels) for value in (scale, shift)), per_sample=False)


def _batch_norm_backward(on: _Rewriting, layer: Described) -> Maps | str | None:
    """With running statistics: as in `torch_engine.layers.batch_norm_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    if pair is None:
        return None
    go, x = pair
    weight, mean, variance = (on.plain(name) for name in layer.inputs[2:])
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[0])
    if layer.output == 0:
        scale = ops.widened(ops.multiply(deviation, weight), go.channels)
        return ops.affine(go, scale, per_sample=False)
    sums = ops.sums(go)
    if layer.output == 2:
        return sums
    return ops.multiply(ops.subtract(ops.sums(go, x), ops.multiply(mean, sums)), deviation)


def _batch_statistics(on: _Rewriting, layer: Described) -> Maps | str | None:
    """Batch normalisation with the statistics of the batch: result, mean, variance."""
    x, ops = on.blocked(layer.inputs[0]), on.ops
    if x is None:
        return None
    mean = ops.mean(ops.means(x), 0)
    minus = ops.widened(ops.emit("Neg", mean), x.channels)
    variance = ops.mean(_squares(ops, x, minus, per_sample=False), 0)
    if layer.output:
        return ops.reshape((mean, variance)[layer.output - 1], x.channels)
    weight, bias = (on.plain(name) for name in layer.inputs[1:])
    scale = ops.multiply(_reciprocal_deviation(ops, variance, layer.numbers[0]), weight)
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    return ops.affine(x, *(ops.widened(value, x.channels) for value in (scale, shift)), per_sample=False)


def _batch_statistics_backward(on: _Rewriting, layer: Described) -> Maps | str | None:
    """As in `torch_engine.layers.batch_statistics_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    if pair is None:
        return None
    go, x = pair
    weight, mean, variance = (on.plain(name) for name in layer.inputs[2:])
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[0])
    of_bias, of_product = (ops.mean(value, 0) for value in (ops.means(go), ops.mean_products(go, x)))
    of_weight = ops.multiply(ops.subtract(of_product, ops.multiply(mean, of_bias)), deviation)
    if layer.output:
        found = (of_weight, of_bias)[layer.output - 1]
        return ops.reshape(ops.multiply(found, ops.constant(ops.rows * x.area)), x.channels)
    scale = ops.multiply(weight, deviation)
    along = ops.multiply(scale, deviation, of_weight)
    shift = ops.subtract(ops.multiply(along, mean), ops.multiply(scale, of_bias))
    along = ops.emit("Neg", along)
    rest = ops.affine(x, *(ops.widened(value, x.channels) for value in (along, shift)), per_sample=False)
    return ops.added(ops.affine(go, ops.widened(scale, x.channels), per_sample=False), rest)


# Activations and sums

STEEP = 2.0**100
"""Takes every difference of two float32 values near 1 to above 1."""


def _relu(on: _Rewriting, node: Node) -> Maps | None:
    x = on.maps.get(node.inputs[0])
    if x is None:
        return None
    return on.ops.activated(x, activation="Relu") or x.with_values(on.ops.emit("Relu", x.name))


def _clip(on: _Rewriting, node: Node) -> Maps | None:
    x = on.maps.get(node.inputs[0])
    bounds = [on.constant(name) for name in node.inputs[1:]]
    if (
        x is None
        or len(bounds) != 2
        or bounds[0] is None
        or bounds[1] is None
        or not bounds[0] <= 0 <= bounds[1]
    ):
        return None
    on.activated[node.inputs[0]] = node.outputs[0]
    clipped = on.ops.activated(x, activation="Clip", activation_params=(bounds[0], bounds[1]))
    return clipped or x.with_values(on.ops.emit("Clip", x.name, *node.inputs[1:]))


def _threshold_backward(on: _Rewriting, layer: Described) -> Maps | None:
    pair = on.both(*layer.inputs)
    if pair is None or layer.numbers[0] != 0:
        return None
    go, x = pair
    mask = on.ops.emit("HardSigmoid", x.name, alpha=3e38, beta=0.0)
    return go.with_values(on.ops.multiply(go.name, mask))


def _hardtanh_backward(on: _Rewriting, layer: Described) -> Maps | None:
    go_name, x_name = layer.inputs
    pair = on.both(go_name, on.activated.get(x_name, x_name))  # both lie between the bounds, or neither
    if pair is None:
        return None
    go, x = pair
    low, high = (float(np.float32(value)) for value in layer.numbers)
    above = on.ops.emit("HardSigmoid", x.name, alpha=STEEP, beta=-STEEP * low)
    below = on.ops.emit("HardSigmoid", x.name, alpha=-STEEP, beta=STEEP * high)
    return go.with_values(on.ops.multiply(go.name, above, below))


def _add(on: _Rewriting, node: Node) -> Maps | None:
    pair = on.both(*node.inputs)
    if pair is None:
        return None
    first, second = pair
    made = on.ops.added(second, first) or on.ops.added(first, second)
    return made or first.with_values(on.ops.emit("Add", first.name, second.name))


def _concat(on: _Rewriting, node: Node) -> Maps | None:
    """Maps side by side as channels; whole blocks lie one after another in both layouts."""
    parts = [on.maps.get(name) for name in node.inputs]
    if node.attributes.get("axis") != 1 or not all(part and part.channels == part.padded for part in parts):
        return None
    known = [part for part in parts if part is not None]
    channels = sum(part.channels for part in known)
    value = on.ops.emit("Concat", *(part.name for part in known), axis=1)
    return Maps(value, channels, channels, known[0].height, known[0].width)


def _slice(on: _Rewriting, node: Node) -> Maps | None:
    """Some of the channels, if they are whole blocks."""
    x, numbers = on.maps.get(node.inputs[0]), [on.constant(name) for name in node.inputs[1:]]
    shape = on.shape(node.outputs[0])
    if x is None or len(numbers) != 4 or numbers[2:] != [1, 1] or len(shape) != 4:
        return None
    if shape[1] % on.ops.block or not isinstance(numbers[0], int) or numbers[0] % on.ops.block:
        return None
    value = on.ops.emit("Slice", x.name, *node.inputs[1:])
    return Maps(value, shape[1], shape[1], x.height, x.width)


def _one_row(on: _Rewriting, node: Node) -> Maps | None:
    """Maps along one dimension as of one row, or the other way round: the same in blocks."""
    x = on.maps.get(node.inputs[0])
    return x if x is not None and x.height == 1 and on.constant(node.inputs[1]) == 2 else None


def _transpose(on: _Rewriting, node: Node) -> str | None:
    """Leaves a transposed matrix to the product that takes it; transposed twice it is the matrix itself."""
    if node.attributes.get("perm") != (1, 0):
        return None
    source = node.inputs[0]
    if source in on.transposed:
        return on.plain(on.transposed[source])
    on.transposed[node.outputs[0]] = source
    return None


def _product(on: _Rewriting, node: Node) -> str | None:
    if not any(name in on.transposed for name in node.inputs):
        return None
    inputs = (on.plain(on.transposed.get(name, name)) for name in node.inputs)
    of_a, of_b = (int(name in on.transposed) for name in node.inputs)
    return on.ops.emit("FusedMatMul", *inputs, domain=MICROSOFT, transA=of_a, transB=of_b)


def _elementwise(on: _Rewriting, node: Node) -> Maps | None:
    pair = on.both(*node.inputs)
    return None if pair is None else pair[0].with_values(on.ops.emit(node.kind, pair[0].name, pair[1].name))


LAYERS: Mapping[tuple[str, int], Callable[[_Rewriting, Described], Maps | str | None]] = {
    ("convolution_backward", 0): _input_gradient,
    ("convolution_backward", 1): _kernel_gradient,
    ("convolution_backward", 2): _bias_gradient,
    **{("group_norm", output): _group_norm for output in range(3)},
    **{("group_norm_backward", output): _group_norm_backward for output in range(3)},
    **{("batch_norm_backward", output): _batch_norm_backward for output in range(3)},
    **{("batch_norm", output): _batch_statistics for output in range(3)},
    **{("batch_statistics_backward", output): _batch_statistics_backward for output in range(3)},
    ("max_pool_backward", 0): _max_pool_gradient,
    ("threshold_backward", 0): _threshold_backward,
    ("hardtanh_backward", 0): _hardtanh_backward,
}
"""Layers by the names of torch's operators, and the number of their output."""

OPERATORS: Mapping[str, Callable[[_Rewriting, Node], Maps | str | None]] = {
    "Conv": _convolution,
    "MaxPool": _max_pool,
    "BatchNormalization": _batch_norm,
    "Relu": _relu,
    "Clip": _clip,
    "Add": _add,
    "Transpose": _transpose,
    "MatMul": _product,
    "Concat": _concat,
    "Squeeze": _one_row,
    "Unsqueeze": _one_row,
    "Slice": _slice,
    "Mul": _elementwise,
    "Sub": _elementwise,
}
"""Operators of ONNX."""
