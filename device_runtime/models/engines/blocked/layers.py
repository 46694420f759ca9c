"""Rewrites a training graph so that its convolutions run in ONNX Runtime's blocked layout.

Kernels are inputs of a training graph, which keeps ONNX Runtime from its fastest convolutions. This module
replaces the layers that `torch_modules.rules` labels, for one number of samples and the block of this
processor. Values stay in blocks from layer to layer; parameters and gradients keep their usual layout.

A graph may come from anywhere, and describe itself wrongly. ONNX Runtime refuses it then, because its
operators compare the shapes of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import check_graph, delimited_field, number_field
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.onnx_nodes import (
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_OPSET,
    Node,
    write_node,
)
from device_runtime.models.engines.onnx_session import (
    LoadedGraph,
    SessionSettings,
    encoded_input,
    engine_errors,
    load_session,
)
from device_runtime.models.errors import BundleError, EngineError

from .convolutions import Kernel, convolution, input_gradient, kernel_gradient
from .normalisation import (
    batch_norm,
    batch_norm_backward,
    batch_statistics,
    batch_statistics_backward,
    group_norm,
    group_norm_backward,
    max_pool,
    max_pool_gradient,
)
from .operators import DOMAIN, Maps, Operators, Window
from .rewriting import MICROSOFT, BlockedGraph, Described, LayerRules, Rewriting, Shape

LARGEST_WINDOW = 64
"""Largest size, stride, padding and dilation of a kernel: a constant of the graph lists its places."""


def blocked_graph(onnx: bytes, shapes: Mapping[str, Shape], rows: int, block: int) -> BlockedGraph | None:
    """Rewrites a graph for `rows` samples and blocks of `block` channels; None if that does not pay.

    shapes: of x without samples, and of every tensor of the model. Raises BundleError if it is no graph, or
    describes its layers wrongly.
    """
    if b'"layer"' not in onnx:
        return None
    rewriting = Rewriting(onnx, shapes, Operators(rows, block), LayerRules(LAYERS, OPERATORS))
    try:
        return rewriting.result()
    except (ValueError, IndexError, ArithmeticError) as error:
        raise BundleError(f"the graph describes its layers wrongly: {error}") from error


# Each function below gives one output of a layer, as maps or as a value in its usual layout, or None to leave
# the layer as it is.


def _kernel(
    on: Rewriting, name: str, window: Callable[[tuple[int, int]], Window], group: int
) -> Kernel | None:
    shape = on.shape(name)
    if len(shape) != 4 or group < 1 or not on.is_wide(shape[0]):
        return None
    moves = window((shape[2], shape[3]))
    return (
        Kernel(on.plain(name), shape[0], shape[1], moves, group) if moves.is_within(LARGEST_WINDOW) else None
    )


def _input(on: Rewriting, name: str, kernel: Kernel) -> Maps | str | None:
    """The input of a convolution: as it is if it has fewer channels than a block, else blocked."""
    shape = on.shape(name)
    if len(shape) != 4 or shape[0] != 0 or shape[1] != kernel.ins * kernel.group:
        return None
    return on.with_rows(name) if kernel.group == 1 and kernel.ins < on.ops.block else on.blocked(name)


def _window(node: Node, kernel: tuple[int, int]) -> Window:
    """The window of a convolution or pooling; along one dimension it has one row."""
    attributes: Mapping[str, Any] = node.attributes
    pads = attributes.get("pads", (0, 0, 0, 0))
    sizes = (
        attributes.get("kernel_shape", kernel),
        attributes.get("strides", (1, 1)),
        attributes.get("dilations", (1, 1)),
    )
    pairs = [tuple(size) if len(size) == 2 else (1, *size) for size in sizes]
    before, after = (pads[:2], pads[2:]) if len(pads) == 4 else ((0, *pads[:1]), (0, *pads[1:]))
    return Window(pairs[0], pairs[1], before, after, pairs[2])


def _convolution(on: Rewriting, node: Node) -> Maps | None:
    x, w, *bias = node.inputs
    group: Any = node.attributes.get("group", 1)
    kernel = _kernel(on, w, lambda size: _window(node, size), group)
    maps = None if kernel is None else _input(on, x, kernel)
    if kernel is None or maps is None:
        return None
    size = kernel.window.size(*on.shape(x)[2:])
    return convolution(on.ops, maps, kernel, on.plain(bias[0]) if bias else "", size)


def _described_kernel(on: Rewriting, layer: Described) -> Kernel | None:
    """The kernel of a convolution whose gradient is described."""
    numbers = [int(value) for value in layer.numbers]
    if len(numbers) == 4:  # along one dimension
        numbers = [1, numbers[0], 0, numbers[1], 1, *numbers[2:]]
    stride, padding, dilation = ((numbers[at], numbers[at + 1]) for at in (0, 2, 4))
    return _kernel(
        on, layer.inputs[2], lambda size: Window(size, stride, padding, padding, dilation), numbers[6]
    )


def _input_gradient(on: Rewriting, layer: Described) -> Maps | None:
    kernel, go, shape = _described_kernel(on, layer), on.blocked(layer.inputs[0]), on.shape(layer.inputs[1])
    if kernel is None or go is None or len(shape) != 4 or not on.is_wide(shape[1]):
        return None
    return input_gradient(on.ops, go, kernel, (shape[2], shape[3]))


def _kernel_gradient(on: Rewriting, layer: Described) -> str | None:
    kernel, go = _described_kernel(on, layer), on.blocked(layer.inputs[0])
    x = None if kernel is None else _input(on, layer.inputs[1], kernel)
    if kernel is None or go is None or x is None:
        return None
    _, _, height, width = on.shape(layer.inputs[1])
    gradient = kernel_gradient(on.ops, x, go, kernel, (height, width))
    return None if gradient is None else on.in_own_shape(gradient, layer.inputs[2])


def _bias_gradient(on: Rewriting, layer: Described) -> str | None:
    go = on.maps.get(layer.inputs[0])
    return None if go is None else on.ops.sums(go)


def _max_pool(on: Rewriting, node: Node) -> Maps | None:
    x, size = on.maps.get(node.inputs[0]), on.shape(node.outputs[0])[2:]
    window = _window(node, (1, 1))
    if x is None or window.dilation != (1, 1) or not window.is_within(LARGEST_WINDOW):
        return None
    if window.size(x.height, x.width) != size or node.inputs[0] in on.pooled or on.takes_places(node):
        return None
    on.pooled[node.inputs[0]] = node.outputs[0], window
    return max_pool(on.ops, x, window)


def _max_pool_gradient(on: Rewriting, layer: Described) -> Maps | None:
    go_name, x_name = layer.inputs
    if x_name not in on.pooled:
        return None
    y_name, window = on.pooled[x_name]
    pair = on.both(go_name, y_name)
    return None if pair is None else max_pool_gradient(on.ops, on.maps[x_name], pair[1], pair[0], window)


# Activations and sums

STEEP = 2.0**100
"""Takes every difference of two float32 values near 1 to above 1."""


def _relu(on: Rewriting, node: Node) -> Maps | None:
    x = on.maps.get(node.inputs[0])
    if x is None:
        return None
    return on.ops.activated(x, activation="Relu") or x.with_values(on.ops.emit("Relu", x.name))


def _clip(on: Rewriting, node: Node) -> Maps | None:
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


def _threshold_backward(on: Rewriting, layer: Described) -> Maps | None:
    pair = on.both(*layer.inputs)
    if pair is None or layer.numbers[0] != 0:
        return None
    go, x = pair
    mask = on.ops.emit("HardSigmoid", x.name, alpha=3e38, beta=0.0)
    return go.with_values(on.ops.multiply(go.name, mask))


def _hardtanh_backward(on: Rewriting, layer: Described) -> Maps | None:
    go_name, x_name = layer.inputs
    pair = on.both(go_name, on.activated.get(x_name, x_name))  # both lie between the bounds, or neither
    if pair is None:
        return None
    go, x = pair
    low, high = (float(np.float32(value)) for value in layer.numbers)
    above = on.ops.emit("HardSigmoid", x.name, alpha=STEEP, beta=-STEEP * low)
    below = on.ops.emit("HardSigmoid", x.name, alpha=-STEEP, beta=STEEP * high)
    return go.with_values(on.ops.multiply(go.name, above, below))


def _add(on: Rewriting, node: Node) -> Maps | None:
    pair = on.both(*node.inputs)
    if pair is None:
        return None
    first, second = pair
    total = on.ops.added(second, first) or on.ops.added(first, second)
    return total or first.with_values(on.ops.emit("Add", first.name, second.name))


def _concat(on: Rewriting, node: Node) -> Maps | None:
    """Maps side by side as channels; whole blocks lie one after another in both layouts."""
    parts = [on.maps.get(name) for name in node.inputs]
    if node.attributes.get("axis") != 1 or not all(part and part.channels == part.padded for part in parts):
        return None
    maps = [part for part in parts if part is not None]
    channels = sum(part.channels for part in maps)
    value = on.ops.emit("Concat", *(part.name for part in maps), axis=1)
    return Maps(value, channels, channels, maps[0].height, maps[0].width)


def _slice(on: Rewriting, node: Node) -> Maps | None:
    """Some of the channels, if they are whole blocks."""
    x, numbers = on.maps.get(node.inputs[0]), [on.constant(name) for name in node.inputs[1:]]
    shape = on.shape(node.outputs[0])
    if x is None or len(numbers) != 4 or numbers[2:] != [1, 1] or len(shape) != 4:
        return None
    if shape[1] % on.ops.block or not isinstance(numbers[0], int) or numbers[0] % on.ops.block:
        return None
    value = on.ops.emit("Slice", x.name, *node.inputs[1:])
    return Maps(value, shape[1], shape[1], x.height, x.width)


def _one_row(on: Rewriting, node: Node) -> Maps | None:
    """Maps along one dimension as of one row, or the other way round: the same in blocks."""
    x = on.maps.get(node.inputs[0])
    return x if x is not None and x.height == 1 and on.constant(node.inputs[1]) == 2 else None


def _transpose(on: Rewriting, node: Node) -> str | None:
    """Moves a transpose into the matrix product that takes it, and drops one that undoes another."""
    if node.attributes.get("perm") != (1, 0):
        return None
    source = node.inputs[0]
    if source in on.transposed:
        return on.plain(on.transposed[source])
    on.transposed[node.outputs[0]] = source
    return None


def _product(on: Rewriting, node: Node) -> str | None:
    if not any(name in on.transposed for name in node.inputs):
        return None
    inputs = (on.plain(on.transposed.get(name, name)) for name in node.inputs)
    of_a, of_b = (int(name in on.transposed) for name in node.inputs)
    return on.ops.emit("FusedMatMul", *inputs, domain=MICROSOFT, transA=of_a, transB=of_b)


def _elementwise(on: Rewriting, node: Node) -> Maps | None:
    pair = on.both(*node.inputs)
    return None if pair is None else pair[0].with_values(on.ops.emit(node.kind, pair[0].name, pair[1].name))


LAYERS: Mapping[tuple[str, int], Callable[[Rewriting, Described], Maps | str | None]] = {
    ("convolution_backward", 0): _input_gradient,
    ("convolution_backward", 1): _kernel_gradient,
    ("convolution_backward", 2): _bias_gradient,
    **{("group_norm", output): group_norm for output in range(3)},
    **{("group_norm_backward", output): group_norm_backward for output in range(3)},
    **{("batch_norm_backward", output): batch_norm_backward for output in range(3)},
    **{("batch_norm", output): batch_statistics for output in range(3)},
    **{("batch_statistics_backward", output): batch_statistics_backward for output in range(3)},
    ("max_pool_backward", 0): _max_pool_gradient,
    ("threshold_backward", 0): _threshold_backward,
    ("hardtanh_backward", 0): _hardtanh_backward,
}
"""Layers by the names of torch's operators, and the number of their output."""

OPERATORS: Mapping[str, Callable[[Rewriting, Node], Maps | str | None]] = {
    "Conv": _convolution,
    "MaxPool": _max_pool,
    "BatchNormalization": batch_norm,
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


GRAPH_NAME, MODEL_IR, IR_VERSION, OPSET = 2, 1, 10, 20
WIDEST = 16
"""Channels of a block on processors with AVX-512; 8 on those with AVX2, and fewer elsewhere."""


def load_blocked(
    name: str,
    graph: Graph,
    onnx: bytes,
    tensors: tuple[Tensors, Mapping[str, Shape]],
    samples: int,
    settings: SessionSettings,
) -> LoadedGraph | None:
    """Opens a training graph in the blocked layout for exactly `samples` samples; None where it cannot be.

    tensors: the initialisers, and the shapes of x and of every tensor of the model. Raises BundleError,
    EngineError, and what the watch raises.
    """
    block = block_size()
    if not block:
        return None
    check_graph(onnx)
    initialisers, shapes = tensors
    blocked = blocked_graph(onnx, shapes, samples, block)
    if blocked is None:
        return None
    constants = {key: value for key, value in initialisers.items() if key in blocked.initialisers}
    return load_session(name, graph, blocked.onnx, constants, replace(settings, rewritten=True))


@cache
def block_size() -> int:
    """The number of channels of a block; 0 without a blocked layout, or if its results are wrong.

    The first call runs a model of three operators, which takes some milliseconds.
    """
    x = np.arange(WIDEST * 2, dtype=np.float32).reshape(1, WIDEST, 1, 2)
    kernel = np.zeros((WIDEST, WIDEST, 1, 1), np.float32)
    try:
        session = _probe()
        with engine_errors("the probe of the blocked layout"):
            blocked, _ = session.run(None, {"x": x, "w": kernel})
            block = next((size for size in (16, 8, 4) if np.array_equal(blocked, _in_blocks(x, size))), 0)
            if not block:
                return 0
            blocks = (WIDEST // block, block, WIDEST // block, block)
            doubling = (2 * np.eye(WIDEST, dtype=np.float32)).reshape(blocks).transpose(0, 2, 3, 1)
            _, doubled = session.run(None, {"x": x, "w": doubling.reshape(kernel.shape)})
    except EngineError:  # no such operators
        return 0
    return block if np.array_equal(doubled, 2 * x) else 0


def _in_blocks(x: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    n, channels, height, width = x.shape
    blocks = x.reshape(n, channels // block, block, height * width)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2)).reshape(x.shape)


def _probe() -> Any:
    """A session that gives x in blocks, and its convolution with a blocked kernel w as plain maps."""
    shape = (1, WIDEST, 1, 2)
    nodes = (
        write_node("ReorderInput", ["x"], ["blocked"], {}, DOMAIN),
        write_node("Conv", ["blocked", "w"], ["maps"], {"kernel_shape": (1, 1), "group": 1}, DOMAIN),
        write_node("ReorderOutput", ["maps"], ["plain"], {"channels": WIDEST}, DOMAIN),
    )
    graph = [delimited_field(GRAPH_NODE, node) for node in nodes]
    graph.append(delimited_field(GRAPH_NAME, b"graph"))
    kernel = encoded_input("w", (WIDEST, WIDEST, 1, 1))
    graph += [delimited_field(GRAPH_INPUT, value) for value in (encoded_input("x", shape), kernel)]
    graph += [delimited_field(GRAPH_OUTPUT, encoded_input(name, shape)) for name in ("blocked", "plain")]
    opsets = (
        delimited_field(1, domain.encode()) + number_field(2, v) for domain, v in (("", OPSET), (DOMAIN, 1))
    )
    model = number_field(MODEL_IR, IR_VERSION) + delimited_field(MODEL_GRAPH, b"".join(graph))
    model += b"".join(delimited_field(MODEL_OPSET, opset) for opset in opsets)
    named = Graph("", "", 0, (), 0, 0, 0)
    return load_session(
        "the blocked layout's probe", named, model, {}, SessionSettings(rewritten=True)
    ).session
