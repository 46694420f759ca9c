"""ONNX operators for which onnxruntime-training builds right gradients, in the place of those it does not.

It has none for some operators; for others they are those of batch statistics, or want a fixed batch.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators


@dataclass(frozen=True)
class _Known:
    """What is known of values by name: shapes (a size that is not fixed is 0), and constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, model: Any) -> "_Known":
        graph = onnx.shape_inference.infer_shapes(model).graph
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        inside = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
        return cls(shapes, {tensor.name: numpy_helper.to_array(tensor) for tensor in inside})


_Rewrite = Callable[[Any, _Known], Sequence[Any]]


def make_differentiable(model: Any) -> None:
    """Changes an onnx.ModelProto without gradients in place; it computes what it did."""
    known = _Known.of(model)
    nodes: list[Any] = []
    for node in model.graph.node:
        rewrite = _REWRITES.get(node.op_type)
        nodes.extend(rewrite(node, known) if rewrite else [node])
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def _frozen_batch_norm(node: Any, known: _Known) -> Sequence[Any]:
    """x * scale + shift, per channel: the operator's own gradient is that of batch statistics."""
    x, weight, bias, mean, variance = node.input
    y = node.output[0]
    own = {name: f"{y}.{name}" for name in ("eps", "moved", "std", "scale", "sum", "shift", "axes", "ax")}
    axes = list(range(1, len(known.shapes[x]) - 1))
    return [
        _constant(own["eps"], [_attribute(node, "epsilon", 1e-5)], ()),
        helper.make_node("Add", [variance, own["eps"]], [own["moved"]]),
        helper.make_node("Sqrt", [own["moved"]], [own["std"]]),
        helper.make_node("Div", [weight, own["std"]], [own["scale"]]),
        helper.make_node("Mul", [mean, own["scale"]], [own["sum"]]),
        helper.make_node("Sub", [bias, own["sum"]], [own["shift"]]),
        *_per_channel(own["scale"], axes),
        *_per_channel(own["shift"], axes),
        helper.make_node("Mul", [x, f"{own['scale']}.wide"], [own["ax"]]),
        helper.make_node("Add", [own["ax"], f"{own['shift']}.wide"], [y]),
    ]


def _per_channel(name: str, axes: Sequence[int]) -> Sequence[Any]:
    """(channels,) -> (channels, 1, ..)."""
    tensor = helper.make_tensor("axes", onnx.TensorProto.INT64, [len(axes)], axes)
    return [
        helper.make_node("Constant", [], [f"{name}.axes"], value=tensor),
        helper.make_node("Unsqueeze", [name, f"{name}.axes"], [f"{name}.wide"]),
    ]


def _layer_norm(node: Any, known: _Known) -> Sequence[Any]:
    """The gradient needs a bias, and mean and reciprocal deviation as outputs."""
    y = node.output[0]
    added = []
    if len(node.input) < 3:
        shape = known.shapes[node.input[1]]
        added.append(_constant(f"{y}.bias", [0.0] * prod(shape), shape))
        node.input.append(f"{y}.bias")
    node.output[:] = [y, f"{y}.mean", f"{y}.deviation"]
    return [*added, node]


def _max_pool(node: Any, known: _Known) -> Sequence[Any]:
    """x at the places of the maxima, which ONNX counts in the whole of x: MaxPoolGrad wants a fixed batch."""
    x, y = node.input[0], node.output[0]
    node.output[:] = [f"{y}.values", f"{y}.places"]
    everything = helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [-1])
    return [
        node,
        helper.make_node("Constant", [], [f"{y}.shape"], value=everything),
        helper.make_node("Reshape", [x, f"{y}.shape"], [f"{y}.flat"]),
        helper.make_node("Gather", [f"{y}.flat", f"{y}.places"], [y]),
    ]


def _clip(node: Any, known: _Known) -> Sequence[Any]:
    """At the lower end the gradient is 1, in torch 0: it shows in ReLU6, where 0 is frequent."""
    x, y = node.input[0], node.output[0]
    lower = known.constants.get(node.input[1]) if len(node.input) > 1 else None
    if lower is None or lower != 0:
        return [node]
    node.input[:2] = [f"{y}.relu", ""]
    return [helper.make_node("Relu", [x], [f"{y}.relu"]), node]


def _gelu(node: Any, known: _Known) -> Sequence[Any]:
    """ONNX Runtime's own operators have gradients, those of the standard have none."""
    kind = "FastGelu" if _attribute(node, "approximate", b"none") == b"tanh" else "Gelu"
    return [helper.make_node(kind, list(node.input), list(node.output), domain=MICROSOFT)]


def _constant(name: str, values: Sequence[float], shape: Sequence[int]) -> Any:
    tensor = helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, values)
    return helper.make_node("Constant", [], [name], value=tensor)


def _attribute(node: Any, name: str, default: Any) -> Any:
    found = [helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return found[0] if found else default


_REWRITES: dict[str, _Rewrite] = {
    "BatchNormalization": _frozen_batch_norm,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "Clip": _clip,
    "Gelu": _gelu,
}
