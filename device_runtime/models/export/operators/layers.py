"""ONNX writers of convolutions, norms, pooling, and operators that a network names itself."""
# mypy: allow-untyped-calls, allow-any-unimported

from typing import Any

import numpy as np
import torch
import torch.onnx.ops  # registers the operators onnx_symbolic
from torch import fx

from .arguments import Write, argument_of, first_of, rank_of, sequence_of, value_of
from .writer import Unwritable, Writer, shape_of

aten = torch.ops.aten


def _convolution(writer: Writer, node: fx.Node) -> Any:
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    inputs = [writer.values[v] for v in (x, w, bias) if v is not None]
    shared = {
        "strides": list(stride), "dilations": list(dilation), "group": groups,
        "pads": [*padding, *padding], "kernel_shape": list(shape_of(w)[2:]),
    }  # fmt: skip
    if not transposed:
        return writer.emit("Conv", *inputs, **shared)
    return writer.emit("ConvTranspose", *inputs, **shared, output_padding=list(output_padding))


def _layer_norm(writer: Writer, node: fx.Node) -> Any:
    shape, weight, bias, eps = node.args[1:5]
    sizes = [int(size) for size in sequence_of(shape)]
    scale = writer.values[weight] if weight is not None else writer.constant(np.ones(sizes, np.float32))
    offset = [writer.values[bias]] if bias is not None else []
    inputs = (value_of(writer, node), scale, *offset)
    return writer.emit("LayerNormalization", *inputs, outputs=3, axis=-len(sizes), epsilon=eps)


def _group_norm(writer: Writer, node: fx.Node) -> Any:
    """Writes an instance norm with the groups as channels; gives the result, not mean and deviation."""
    x, weight, bias, _, channels, _, groups, eps = node.args
    unit = [writer.constant(np.full(groups, value, np.float32)) for value in (1.0, 0.0)]
    shape = shape_of(first_of(node))
    flat = writer.emit("Reshape", writer.values[x], writer.integers([0, groups, -1]))
    y = writer.reshape(writer.emit("InstanceNormalization", flat, *unit, epsilon=eps), shape, shape)
    per_channel = writer.integers([1, channels, *(1 for _ in shape[2:])])
    for name, affine in (("Mul", weight), ("Add", bias)):
        if affine is not None:
            y = writer.emit(name, y, writer.emit("Reshape", writer.values[affine], per_channel))
    return y, "", ""


def _batch_norm(writer: Writer, node: fx.Node) -> Any:
    x, weight, bias, mean, variance, _, eps = node.args
    channels = shape_of(first_of(node))[1]
    unit = [np.full(channels, value, np.float32) for value in (1.0, 0.0)]
    affine = [
        writer.values[parameter] if parameter is not None else writer.constant(default)
        for parameter, default in zip((weight, bias), unit, strict=True)
    ]
    inputs = (writer.values[x], *affine, writer.values[mean], writer.values[variance])
    return writer.emit("BatchNormalization", *inputs, epsilon=eps), "", ""


def _max_pool(writer: Writer, node: fx.Node) -> Any:
    """Writes a MaxPool; ONNX counts places in the whole tensor, torch within each image and channel."""
    kernel, stride, padding, dilation, ceil = (
        argument_of(node, index, default)
        for index, default in ((1, None), (2, []), (3, 0), (4, 1), (5, False))
    )
    rank = rank_of(first_of(node)) - 2
    kernel, padding, dilation = (_per_axis(value, rank) for value in (kernel, padding, dilation))
    y, places = writer.emit(
        "MaxPool", value_of(writer, node), outputs=2, kernel_shape=kernel, pads=[*padding, *padding],
        strides=_per_axis(stride, rank) or kernel, dilations=dilation, ceil_mode=int(bool(ceil)),
    )  # fmt: skip
    area = int(np.prod([int(size) for size in shape_of(first_of(node))[2:]]))
    return y, writer.emit("Mod", places, writer.constant(np.int64(area)))


def _average_pool(writer: Writer, node: fx.Node) -> Any:
    kernel, stride, padding, ceil, count_padding, divisor = (
        argument_of(node, index, default)
        for index, default in ((1, None), (2, []), (3, 0), (4, False), (5, True), (6, None))
    )
    if divisor is not None:
        raise Unwritable("an average with a custom divisor")
    rank = rank_of(first_of(node)) - 2
    kernel, padding = (_per_axis(value, rank) for value in (kernel, padding))
    return writer.emit(
        "AveragePool", value_of(writer, node), kernel_shape=kernel, pads=[*padding, *padding],
        strides=_per_axis(stride, rank) or kernel, ceil_mode=int(bool(ceil)),
        count_include_pad=int(bool(count_padding)),
    )  # fmt: skip


def _per_axis(value: Any, rank: int) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    return list(value) * rank if len(value) == 1 else list(value)


def _symbolic(writer: Writer, node: fx.Node) -> Any:
    """Writes an ONNX operator that the network calls by its name (torch.onnx.ops.symbolic)."""
    inputs = ["" if argument is None else writer.values[argument] for argument in sequence_of(node.args[0])]
    settings = node.kwargs
    if settings.get("domain") or any(kind not in ("i", "is") for kind in sequence_of(settings["attr_types"])):
        raise Unwritable(f"operator {node.args[1]} with its domain or attributes")
    numbers = list(sequence_of(settings["attr_ints"]))
    named = zip(*(sequence_of(settings[key]) for key in ("attr_keys", "attr_types", "attr_pos")), strict=True)
    attributes = {key: numbers[a:b] if kind == "is" else numbers[a] for key, kind, (a, b) in named}
    several = len(node.args[2]) if isinstance(node.args[2], (list, tuple)) else 0
    output = writer.emit(str(node.args[1]), *inputs, outputs=several or 1, **attributes)
    return (output,) if several == 1 else output


OPERATORS: dict[Any, Write] = {
    torch.ops.onnx_symbolic._symbolic.default: _symbolic,
    torch.ops.onnx_symbolic._symbolic_multi_out.default: _symbolic,
    aten.convolution.default: _convolution,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _average_pool,
}  # fmt: skip
