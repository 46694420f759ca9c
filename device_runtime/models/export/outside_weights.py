"""Weights put into a graph, for tools that want them there, and taken out again with a note of what they are.

Tools rename and change them; what an initialiser was made of follows from its name.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx

from device_runtime.models.bundles.manifest import Derived
from device_runtime.models.bundles.tensors import Tensors

from .graph import external_names, outside, stripped

TRANSPOSED = ".T"  # ends the name of a parameter that is turned into (rest, shape[0])
HALF = ".float16"  # ends the name of its float16 values
_NAMES = {"_quantized": "", "_scale": ".scale", "_zero_point": ".zero_point"}  # of onnxruntime.quantization
_TYPES = {onnx.TensorProto.INT8: "int8", onnx.TensorProto.UINT8: "uint8"}

Layouts = Mapping[str, tuple[str, bool]]
"""What of a graph is a parameter: name -> (parameter, transposed)."""


@dataclass(frozen=True)
class Lower:
    """A graph whose external initialisers are parameters, `frozen`, and what is derived from parameters."""

    onnx: bytes
    frozen: tuple[str, ...]
    derived: tuple[Derived, ...]


def filled(graph: bytes, weights: Tensors) -> tuple[Any, Layouts]:
    """The model with all values in it. Parameters that it transposes become transposed initialisers."""
    model = onnx.load_from_string(graph)
    parameters = set(external_names(graph))
    values = {
        tensor.name: weights[tensor.name] if tensor.name in parameters else onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
    }
    layouts = {name: (name, False) for name in parameters}
    renamed: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        parameter = _transposed_parameter(node, model.graph, values, parameters)
        if parameter is None:
            nodes.append(node)
            continue
        name = renamed[node.output[0]] = parameter + TRANSPOSED
        values[name] = np.ascontiguousarray(weights[parameter].reshape(len(weights[parameter]), -1).T)
        layouts[name] = (parameter, True)
    replace(model.graph.node, nodes)
    _drop_unread(model.graph)
    read = {name for node in model.graph.node for name in node.input}
    replace(
        model.graph.initializer,
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name in read],
    )
    return model, layouts


def _transposed_parameter(
    node: Any, graph: Any, values: Mapping[str, Any], parameters: set[str]
) -> str | None:
    """The parameter that this node transposes, as a matrix (shape[0], the rest)."""
    if node.op_type != "Transpose" or list(attribute(node, "perm") or (1, 0)) != [1, 0]:
        return None
    name: str = node.input[0]
    if name in parameters:
        return name
    for reshape in graph.node:
        if reshape.op_type == "Reshape" and list(reshape.output) == [name] and reshape.input[0] in parameters:
            rows, shape = len(values[reshape.input[0]]), values.get(reshape.input[1])
            is_matrix = shape is not None and len(shape) == len(("rows", "columns")) and shape[0] == rows
            return str(reshape.input[0]) if is_matrix else None
    return None


def _drop_unread(graph: Any) -> None:
    """Reshapes whose only use was to be transposed."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    replace(graph.node, [node for node in graph.node if read.intersection(node.output)])


def emptied(model: Any, layouts: Layouts) -> Lower:
    """The file without parameters and what was made of them."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found = {name: _derived(name, tensors, layouts) for name in tensors}
    frozen = tuple(name for name in tensors if name in layouts and found[name] is None)
    derived = tuple(entry for entry in found.values() if entry is not None)
    for name in (*frozen, *(entry.name for entry in derived)):
        tensor = tensors[name]
        tensor.CopyFrom(outside(name, tensor.data_type, tensor.dims))
    return Lower(stripped(model), frozen, derived)


def _derived(name: str, tensors: Mapping[str, Any], layouts: Layouts) -> Derived | None:
    """What the initialiser is made of, from its name; None for a parameter as it is, or no parameter."""
    if name in layouts:
        parameter, transposed = layouts[name]
        return Derived(name, parameter, "float32", transposed) if transposed else None
    base = name.removesuffix(HALF)
    if base != name and base in layouts:
        return Derived(name, layouts[base][0], "float16", layouts[base][1])
    for ending, part in _NAMES.items():
        base = name.removesuffix(ending)
        if base != name and base in layouts:
            parameter, transposed = layouts[base]
            what = cast(Any, f"{_TYPES[tensors[base + '_zero_point'].data_type]}{part}")
            columns = len(tensors[base + "_scale"].dims) > 0
            return Derived(name, parameter, what, transposed, columns)
    return None


def attribute(node: Any, name: str) -> Any:
    """The value of a node's attribute, None if it has none."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def replace(field: Any, items: Iterable[Any]) -> None:
    """Puts `items` into a repeated field; they may be taken from it."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)
