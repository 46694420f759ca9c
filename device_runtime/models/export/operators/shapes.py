"""ONNX writers of operators that move data: reshape, slice, concatenate, look up, fill."""
# mypy: allow-untyped-calls, allow-any-unimported

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from .arguments import Write, argument_of, dtype_of, first_of, rank_of, sequence_of, unchanged, value_of
from .writer import DTYPES, SCALARS, Unwritable, Writer, shape_of

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
