"""ONNX writers of operators that move data (reshape, slice, concatenate, look up, fill), and of layers."""
# mypy: allow-any-unimported, allow-untyped-calls

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.onnx.ops  # registers the operators onnx_symbolic
from torch import fx

from .writer import (
    DTYPES,
    SCALARS,
    Unwritable,
    Write,
    Writer,
    argument_of,
    dtype_of,
    first_of,
    rank_of,
    sequence_of,
    shape_of,
    unchanged,
    value_of,
)

aten = torch.ops.aten

ENDLESS = (1 << 63) - 1  # the end of a slice that has none
FOLDS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
SMALL = 64  # a constant of more elements is made when the graph runs, not stored


def _equal_shapes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and [str(size) for size in a] == [str(size) for size in b]


def _reshape(writer: Writer, node: fx.Node) -> str:
    """Uses a product's unfolded tensor, if the result has its shape."""
    name, shape = writer.unfolded.get(first_of(node), ("", ()))
    if shape and _equal_shapes(shape, shape_of(node)):
        return name
    return writer.reshape(value_of(writer, node), shape_of(node), shape_of(first_of(node)))


def _unsqueeze(writer: Writer, node: fx.Node) -> Any:
    axis = argument_of(node, 1) % rank_of(node)
    return writer.emit("Unsqueeze", value_of(writer, node), writer.integers([axis]))


def _squeeze(writer: Writer, node: fx.Node) -> Any:
    """Drops the axes whose size is 1; others stay."""
    shape, axes = shape_of(first_of(node)), argument_of(node, 1, range(rank_of(first_of(node))))
    places = sorted(axis % len(shape) for axis in ([axes] if isinstance(axes, int) else axes))
    gone = [place for place in places if shape[place] == 1 and not isinstance(shape[place], torch.SymInt)]
    return (
        writer.emit("Squeeze", value_of(writer, node), writer.integers(gone))
        if gone
        else unchanged(writer, node)
    )


def _permute(writer: Writer, node: fx.Node) -> Any:
    order = [int(axis) % rank_of(node) for axis in argument_of(node, 1)]
    return writer.emit("Transpose", value_of(writer, node), perm=order)


def _transpose(writer: Writer, node: fx.Node) -> Any:
    order = list(range(rank_of(node)))
    a, b = (int(argument_of(node, index, index - 1)) for index in (1, 2))
    order[a], order[b] = order[b], order[a]
    return writer.emit("Transpose", value_of(writer, node), perm=order)


def _slice(writer: Writer, node: fx.Node) -> Any:
    axis, start, end, step = (argument_of(node, i, d) for i, d in ((1, 0), (2, 0), (3, ENDLESS), (4, 1)))
    if any(isinstance(bound, fx.Node) for bound in (start, end)):
        raise Unwritable("a slice whose ends depend on the batch")
    places = [[start or 0], [ENDLESS if end is None else end], [axis % rank_of(node)], [step]]
    return writer.emit("Slice", value_of(writer, node), *(writer.integers(place) for place in places))


def _select(writer: Writer, node: fx.Node) -> Any:
    axis, index = argument_of(node, 1), argument_of(node, 2)
    if isinstance(index, fx.Node):
        raise Unwritable("a selection that depends on the batch")
    return writer.emit("Gather", value_of(writer, node), writer.constant(np.int64(index)), axis=axis)


def _expand(writer: Writer, node: fx.Node) -> str:
    name, have, want = value_of(writer, node), shape_of(first_of(node)), shape_of(node)
    added = len(want) - len(have)
    fits = [
        place >= added and (isinstance(size, torch.SymInt) or have[place - added] == size)
        and not (isinstance(size, torch.SymInt) and isinstance(have[place - added], int))
        for place, size in enumerate(want)
    ]  # fmt: skip
    if all(fits):
        return name
    shape = [1 if same else size for same, size in zip(fits, want, strict=True)]  # 1 leaves a size as it is
    return str(writer.emit("Expand", name, writer.sizes(shape)))


def _filled(writer: Writer, node: fx.Node, value: Any) -> str:
    shape, kind = shape_of(node), SCALARS[dtype_of(node)]
    fixed = not any(isinstance(size, torch.SymInt) for size in shape)
    if fixed and int(np.prod(shape)) <= SMALL:
        return writer.constant(np.full(shape, value, kind))
    filler = torch.tensor([value], dtype=dtype_of(node)).numpy()
    tensor = {"data_type": DTYPES[dtype_of(node)], "dims": [1], "vals": filler.tolist()}
    from onnx import helper

    return str(writer.emit("ConstantOfShape", writer.sizes(shape), value=helper.make_tensor("", **tensor)))


def _full(index: int) -> Write:
    def write(writer: Writer, node: fx.Node) -> str:
        value = argument_of(node, index)
        if isinstance(value, fx.Node):
            return _expanded_number(writer, node, value)
        return _filled(writer, node, value)

    return write


def _expanded_number(writer: Writer, node: fx.Node, value: fx.Node) -> str:
    return str(writer.emit("Expand", writer.operand(value, dtype_of(node)), writer.sizes(shape_of(node))))


def _arange(writer: Writer, node: fx.Node) -> str:
    shape = shape_of(node)
    numbers = [argument for argument in node.args if isinstance(argument, (int, float))]
    if any(isinstance(size, torch.SymInt) for size in shape) or len(numbers) != len(node.args):
        raise Unwritable("a range that depends on the batch")
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    return writer.constant((start + step * np.arange(int(shape[0]))).astype(SCALARS[dtype_of(node)]))


def _pad(writer: Writer, node: fx.Node) -> Any:
    widths, value = list(argument_of(node, 1)), argument_of(node, 2, 0)
    if any(isinstance(size, (fx.Node, torch.SymInt)) for size in widths):
        raise Unwritable("a padding that depends on the batch")
    rank = rank_of(node)
    before, after = [0] * rank, [0] * rank
    for place in range(len(widths) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = widths[2 * place : 2 * place + 2]
    pads = writer.integers([*before, *after])
    return writer.emit("Pad", value_of(writer, node), pads, writer.operand(value, dtype_of(node)))


def _flip(writer: Writer, node: fx.Node) -> Any:
    axes = [axis % rank_of(node) for axis in argument_of(node, 1)]
    places = ([-1] * len(axes), [-ENDLESS] * len(axes), axes, [-1] * len(axes))
    return writer.emit("Slice", value_of(writer, node), *(writer.integers(place) for place in places))


def _concat(writer: Writer, node: fx.Node) -> Any:
    names = [writer.operand(part, dtype_of(node)) for part in sequence_of(node.args[0])]
    return writer.emit("Concat", *names, axis=argument_of(node, 1, 0) % rank_of(node))


def _split(writer: Writer, node: fx.Node) -> Any:
    sizes, axis = list(argument_of(node, 1)), argument_of(node, 2, 0)
    y = writer.emit("Split", value_of(writer, node), writer.integers(sizes), outputs=len(sizes), axis=axis)
    return (y,) if len(sizes) == 1 else y


def _embedding(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gather", value_of(writer, node, 0), value_of(writer, node, 1), axis=0)


def _index(writer: Writer, node: fx.Node) -> Any:
    """x[.., indices, ..] with indices along one axis."""
    indices = list(sequence_of(node.args[1]))
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) != 1 or dtype_of(indices[axes[0]]) == torch.bool:
        raise Unwritable("indices along several axes, or a mask")
    return writer.emit("Gather", value_of(writer, node), writer.values[indices[axes[0]]], axis=axes[0])


def _index_select(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gather", value_of(writer, node), value_of(writer, node, 2), axis=node.args[1])


def _gather(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("GatherElements", value_of(writer, node), value_of(writer, node, 2), axis=node.args[1])


def _scatter_add(writer: Writer, node: fx.Node) -> Any:
    inputs = (value_of(writer, node, index) for index in (0, 2, 3))
    return writer.emit("ScatterElements", *inputs, axis=node.args[1], reduction="add")


def _scatter(writer: Writer, node: fx.Node) -> Any:
    inputs = (value_of(writer, node, index) for index in (0, 2, 3))
    return writer.emit("ScatterElements", *inputs, axis=node.args[1])


def _item(writer: Writer, node: fx.Node) -> Any:
    return writer.values[first_of(node)][node.args[1]]


OPERATORS: dict[Any, Write] = {
    operator.getitem: _item,
    **dict.fromkeys(
        (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default), unchanged
    ),
    **dict.fromkeys(FOLDS, _reshape),
    **dict.fromkeys((aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default), _squeeze),
    aten.unsqueeze.default: _unsqueeze,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.expand.default: _expand,
    aten.full.default: _full(1),
    aten.full_like.default: _full(1),
    aten.scalar_tensor.default: _full(0),
    **dict.fromkeys(
        (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default),
        lambda writer, node: _filled(writer, node, 0),
    ),
    **dict.fromkeys(
        (aten.ones.default, aten.ones_like.default, aten.new_ones.default),
        lambda writer, node: _filled(writer, node, 1),
    ),
    aten.arange.start_step: _arange,
    aten.arange.default: _arange,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.cat.default: _concat,
    aten.split_with_sizes.default: _split,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.scatter_add.default: _scatter_add,
    aten.scatter.src: _scatter,
    aten.empty_permuted.default: lambda writer, node: _filled(writer, node, 0),
}  # fmt: skip


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


LAYER_OPERATORS: dict[Any, Write] = {
    torch.ops.onnx_symbolic._symbolic.default: _symbolic,
    torch.ops.onnx_symbolic._symbolic_multi_out.default: _symbolic,
    aten.convolution.default: _convolution,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _average_pool,
}  # fmt: skip
