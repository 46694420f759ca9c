"""Labels the operators of an exported graph with the layer that they compute.

A convolution's gradient is dozens of standard operators in the graph. A device that has faster operators of
its own replaces them (`engines.blocked`), for which it needs to know what they compute together. The
description is text in a node. A device that does not read it runs the operators as they are.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-untyped-decorators

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, fx

LAYER = "device_runtime::layer"
MAPS = (3, 4)
"""Dimensions of feature maps: (n, channels, length) or (n, channels, height, width)."""


@torch.library.custom_op(LAYER, mutates_args=())
def layer(
    result: Tensor, name: str, output: int, inputs: Sequence[Tensor], numbers: Sequence[float]
) -> Tensor:
    """The result itself, described as an output of layer `name` with these inputs and settings."""
    return result.clone()


@layer.register_fake
def _(result: Tensor, name: str, output: int, inputs: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
    return torch.empty_like(result)


def describing(
    name: str, function: Callable[..., Any], tensors: Sequence[int], numbers: Sequence[int]
) -> Callable[..., Any]:
    """Wraps a function so that its outputs are labelled; tensors, numbers: positions of arguments to keep.

    Nothing is described if an argument of `tensors` is None, or the first of them is no batch of maps.
    """

    def described(*arguments: Any) -> Any:
        outputs = function(*arguments)
        inputs = [arguments[index] for index in tensors]
        if any(value is None for value in inputs) or inputs[0].dim() not in MAPS:
            return outputs
        settings = [
            float(number)
            for index in numbers
            for number in (
                arguments[index] if isinstance(arguments[index], (list, tuple)) else [arguments[index]]
            )
        ]
        if isinstance(outputs, Tensor):
            return layer(outputs, name, 0, inputs, settings)
        return tuple(
            None if value is None else layer(value, name, index, inputs, settings)
            for index, value in enumerate(outputs)
        )

    return described


def undescribed(model: bytes) -> bytes:
    """The ONNX file without descriptions."""
    parsed = onnx.load_from_string(model)
    for node in parsed.graph.node:
        node.doc_string = ""
    contents: bytes = parsed.SerializeToString(deterministic=True)
    return contents


def without_descriptions(graph: fx.GraphModule) -> fx.GraphModule:
    """Removes the descriptions, which torch's own exporter does not know; changes the graph."""
    for node in list(graph.graph.nodes):
        if is_description(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def is_description(node: fx.Node) -> bool:
    """Whether the node only describes its first argument."""
    return node.op == "call_function" and bool(node.target == torch.ops.device_runtime.layer.default)


def description(shape: Sequence[int] | None, layer: Mapping[str, Any] | None) -> str:
    """The text for a node: shape of its output, 0 for the batch, and the layer that it completes."""
    fields = {**({"shape": list(shape)} if shape else {}), **(layer or {})}
    return json.dumps(fields, separators=(",", ":")) if fields else ""


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The description with new names of values; without its layer if an input no longer exists."""
    if not text:
        return ""
    fields = json.loads(text)
    if "inputs" in fields:
        if any(name not in names for name in fields["inputs"]):
            return description(fields.get("shape"), None)
        fields["inputs"] = [names[name] for name in fields["inputs"]]
    return description(None, fields)
