"""torch's operators as ONNX writes them; see torch_writer. Each takes the writer and the node."""
# mypy: allow-untyped-calls, allow-any-unimported

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from .torch_writer import DTYPES, SCALARS, Unwritable, Writer, shape_of

aten = torch.ops.aten
Write = Callable[[Writer, fx.Node], Any]

ENDLESS = (1 << 63) - 1  # the end of a slice that has none
FOLDS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
SMALL = 64  # a constant of more elements is filled when the graph runs


def _value(writer: Writer, node: fx.Node, index: int = 0) -> str:
    """The tensor that is argument `index`."""
    name: str = writer.values[node.args[index]]
    return name


def _argument(node: fx.Node, index: int, default: Any = None) -> Any:
    return node.args[index] if len(node.args) > index else default


def _rank(node: fx.Node) -> int:
    return len(shape_of(node))


def _first(node: fx.Node) -> fx.Node:
    first = node.args[0]
    if not isinstance(first, fx.Node):
        raise Unwritable(f"{node.target} of {type(first).__name__}")
    return first


def _dtype(node: Any) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _same(writer: Writer, node: fx.Node) -> str:
    if (first := _first(node)) in writer.unfolded:
        writer.unfolded[node] = writer.unfolded[first]
    return _value(writer, node)


def _equal_shapes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and [str(size) for size in a] == [str(size) for size in b]


def _product(writer: Writer, node: fx.Node) -> str:
    """x @ w, where torch folds a tensor's rows into one matrix and unfolds the result.

    ONNX multiplies tensors; and where it is folded, ONNX Runtime no longer sees that the batch stays, which
    costs memory, and time at the start of a session. Of both results the unneeded one is left out later.
    """
    first, second = (_value(writer, node, index) for index in (0, 1))
    given = node.args[0]
    if isinstance(given, fx.Node) and given.target in FOLDS:
        before = _first(given)
        shape = shape_of(before)
        if len(shape) > 2 and shape[-1] == shape_of(given)[-1]:
            name = writer.emit("MatMul", writer.values[before], second)
            writer.unfolded[node] = (name, (*shape[:-1], shape_of(node)[-1]))
            return writer.reshape(name, shape_of(node))
    return str(writer.emit("MatMul", first, second))


def _unary(name: str) -> Write:
    return lambda writer, node: writer.emit(name, _value(writer, node))


def _binary(name: str) -> Write:
    """Numbers become constants of the result's dtype; a comparison's, of its arguments' common one."""

    def write(writer: Writer, node: fx.Node) -> Any:
        dtype = _dtype(node)
        first, second = node.args[:2]
        if name == "Mul" and second == 1 and isinstance(first, fx.Node) and _dtype(first) == dtype:
            return _same(writer, node)  # what is left of alpha and beta in torch's addmm
        if dtype == torch.bool:
            dtype = torch.result_type(*(_example(argument) for argument in node.args[:2]))
        left, right = (writer.operand(argument, dtype) for argument in node.args[:2])
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            right = writer.emit("Mul", right, writer.operand(alpha, dtype))
        _unfolded(writer, node, name, right)
        return writer.emit(name, left, right)

    return write


def _unfolded(writer: Writer, node: fx.Node, name: str, right: str) -> None:
    """A bias is added to what was not folded, too."""
    first, second = node.args[:2]
    if isinstance(first, fx.Node) and first in writer.unfolded and isinstance(second, fx.Node):
        value, shape = writer.unfolded[first]
        if shape_of(second) == shape[-1:]:
            writer.unfolded[node] = (writer.emit(name, value, right), shape)


def _example(argument: Any) -> Any:
    """For torch's promotion of dtypes."""
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    if isinstance(value, Tensor):
        return torch.empty((0,) * value.dim(), dtype=value.dtype)
    return 0 if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else value


def _in_place(write: Write) -> Write:
    """Whoever reads the first argument from here on reads the result."""

    def changed(writer: Writer, node: fx.Node) -> Any:
        writer.values[_first(node)] = result = write(writer, node)
        return result

    return changed


def _compare(name: str, *after: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Any:
        result = _binary(name)(writer, node)
        for other in after:
            result = writer.emit(other, result)
        return result

    return write


def _reshape(writer: Writer, node: fx.Node) -> str:
    """What a product was before its rows were folded together is there already."""
    name, shape = writer.unfolded.get(_first(node), ("", ()))
    if shape and _equal_shapes(shape, shape_of(node)):
        return name
    return writer.reshape(_value(writer, node), shape_of(node), shape_of(_first(node)))


def _unsqueeze(writer: Writer, node: fx.Node) -> Any:
    axis = _argument(node, 1) % _rank(node)
    return writer.emit("Unsqueeze", _value(writer, node), writer.integers([axis]))


def _squeeze(writer: Writer, node: fx.Node) -> Any:
    """Axes whose size is not 1 stay."""
    shape, axes = shape_of(_first(node)), _argument(node, 1, range(_rank(_first(node))))
    places = sorted(axis % len(shape) for axis in ([axes] if isinstance(axes, int) else axes))
    gone = [place for place in places if shape[place] == 1 and not isinstance(shape[place], torch.SymInt)]
    return (
        writer.emit("Squeeze", _value(writer, node), writer.integers(gone)) if gone else _same(writer, node)
    )


def _permute(writer: Writer, node: fx.Node) -> Any:
    order = [int(axis) % _rank(node) for axis in _argument(node, 1)]
    return writer.emit("Transpose", _value(writer, node), perm=order)


def _transpose(writer: Writer, node: fx.Node) -> Any:
    order = list(range(_rank(node)))
    a, b = (int(_argument(node, index, index - 1)) for index in (1, 2))
    order[a], order[b] = order[b], order[a]
    return writer.emit("Transpose", _value(writer, node), perm=order)


def _slice(writer: Writer, node: fx.Node) -> Any:
    axis, start, end, step = (_argument(node, i, d) for i, d in ((1, 0), (2, 0), (3, ENDLESS), (4, 1)))
    if any(isinstance(bound, fx.Node) for bound in (start, end)):
        raise Unwritable("a slice whose ends depend on the batch")
    places = [[start or 0], [ENDLESS if end is None else end], [axis % _rank(node)], [step]]
    return writer.emit("Slice", _value(writer, node), *(writer.integers(place) for place in places))


def _select(writer: Writer, node: fx.Node) -> Any:
    axis, index = _argument(node, 1), _argument(node, 2)
    if isinstance(index, fx.Node):
        raise Unwritable("a selection that depends on the batch")
    return writer.emit("Gather", _value(writer, node), writer.constant(np.int64(index)), axis=axis)


def _expand(writer: Writer, node: fx.Node) -> str:
    name, have, want = _value(writer, node), shape_of(_first(node)), shape_of(node)
    added = len(want) - len(have)
    kept = [
        place >= added and (isinstance(size, torch.SymInt) or have[place - added] == size)
        and not (isinstance(size, torch.SymInt) and isinstance(have[place - added], int))
        for place, size in enumerate(want)
    ]  # fmt: skip
    if all(kept):
        return name
    shape = [1 if same else size for same, size in zip(kept, want, strict=True)]  # 1 leaves a size as it is
    return str(writer.emit("Expand", name, writer.sizes(shape)))


def _filled(writer: Writer, node: fx.Node, value: Any) -> str:
    shape, kind = shape_of(node), SCALARS[_dtype(node)]
    fixed = not any(isinstance(size, torch.SymInt) for size in shape)
    if fixed and int(np.prod(shape)) <= SMALL:
        return writer.constant(np.full(shape, value, kind))
    filler = torch.tensor([value], dtype=_dtype(node)).numpy()
    tensor = {"data_type": DTYPES[_dtype(node)], "dims": [1], "vals": filler.tolist()}
    from onnx import helper

    return str(writer.emit("ConstantOfShape", writer.sizes(shape), value=helper.make_tensor("", **tensor)))


def _full(index: int) -> Write:
    def write(writer: Writer, node: fx.Node) -> str:
        value = _argument(node, index)
        if isinstance(value, fx.Node):
            return _expanded_number(writer, node, value)
        return _filled(writer, node, value)

    return write


def _expanded_number(writer: Writer, node: fx.Node, value: fx.Node) -> str:
    return str(writer.emit("Expand", writer.operand(value, _dtype(node)), writer.sizes(shape_of(node))))


def _arange(writer: Writer, node: fx.Node) -> str:
    shape = shape_of(node)
    numbers = [argument for argument in node.args if isinstance(argument, (int, float))]
    if any(isinstance(size, torch.SymInt) for size in shape) or len(numbers) != len(node.args):
        raise Unwritable("a range that depends on the batch")
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    return writer.constant((start + step * np.arange(int(shape[0]))).astype(SCALARS[_dtype(node)]))


def _reduce(name: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Any:
        axes = _argument(node, 1) or range(_rank(_first(node)))
        axes = [axes] if isinstance(axes, int) else list(axes)
        keep = int(bool(_argument(node, 2, False)))
        operand = writer.operand(_first(node), _dtype(node))
        return writer.emit(name, operand, writer.integers(axes), keepdims=keep)

    return write


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


def _pad(writer: Writer, node: fx.Node) -> Any:
    given, value = list(_argument(node, 1)), _argument(node, 2, 0)
    if any(isinstance(size, (fx.Node, torch.SymInt)) for size in given):
        raise Unwritable("a padding that depends on the batch")
    rank = _rank(node)
    before, after = [0] * rank, [0] * rank
    for place in range(len(given) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = given[2 * place : 2 * place + 2]
    pads = writer.integers([*before, *after])
    return writer.emit("Pad", _value(writer, node), pads, writer.operand(value, _dtype(node)))


def _flip(writer: Writer, node: fx.Node) -> Any:
    axes = [axis % _rank(node) for axis in _argument(node, 1)]
    places = ([-1] * len(axes), [-ENDLESS] * len(axes), axes, [-1] * len(axes))
    return writer.emit("Slice", _value(writer, node), *(writer.integers(place) for place in places))


def _concat(writer: Writer, node: fx.Node) -> Any:
    names = [writer.operand(part, _dtype(node)) for part in _sequence(node.args[0])]
    return writer.emit("Concat", *names, axis=_argument(node, 1, 0) % _rank(node))


def _sequence(argument: Any) -> Sequence[Any]:
    if not isinstance(argument, (list, tuple)):
        raise Unwritable(f"a list of type {type(argument).__name__}")
    return argument


def _split(writer: Writer, node: fx.Node) -> Any:
    sizes, axis = list(_argument(node, 1)), _argument(node, 2, 0)
    made = writer.emit("Split", _value(writer, node), writer.integers(sizes), outputs=len(sizes), axis=axis)
    return (made,) if len(sizes) == 1 else made


def _power(writer: Writer, node: fx.Node) -> Any:
    name, exponent = _value(writer, node), _argument(node, 1)
    if exponent == 2:
        return writer.emit("Mul", name, name)
    return writer.emit("Pow", name, writer.operand(exponent, _dtype(node)))


def _clip(low: float | None = None, high: float | None = None) -> Write:
    """Arguments 1 and 2 are the bounds, or else these."""

    def write(writer: Writer, node: fx.Node) -> Any:
        bounds = (_argument(node, 1, low), _argument(node, 2, high))
        names = ["" if bound is None else writer.operand(bound, _dtype(node)) for bound in bounds]
        return writer.emit("Clip", _value(writer, node), *names)

    return write


def _normalised_exponential(name: str) -> Write:
    return lambda writer, node: writer.emit(name, _value(writer, node), axis=_argument(node, 1))


def _layer_norm(writer: Writer, node: fx.Node) -> Any:
    shape, weight, bias, eps = node.args[1:5]
    sizes = [int(size) for size in _sequence(shape)]
    scale = writer.values[weight] if weight is not None else writer.constant(np.ones(sizes, np.float32))
    offset = [writer.values[bias]] if bias is not None else []
    given = (_value(writer, node), scale, *offset)
    return writer.emit("LayerNormalization", *given, outputs=3, axis=-len(sizes), epsilon=eps)


def _group_norm(writer: Writer, node: fx.Node) -> Any:
    """Groups are the channels of an instance normalisation; only the result, not mean and deviation."""
    x, weight, bias, _, channels, _, groups, eps = node.args
    unit = [writer.constant(np.full(groups, value, np.float32)) for value in (1.0, 0.0)]
    shape = shape_of(_first(node))
    flat = writer.emit("Reshape", writer.values[x], writer.integers([0, groups, -1]))
    y = writer.reshape(writer.emit("InstanceNormalization", flat, *unit, epsilon=eps), shape, shape)
    per_channel = writer.integers([1, channels, *(1 for _ in shape[2:])])
    for name, affine in (("Mul", weight), ("Add", bias)):
        if affine is not None:
            y = writer.emit(name, y, writer.emit("Reshape", writer.values[affine], per_channel))
    return y, "", ""


def _batch_norm(writer: Writer, node: fx.Node) -> Any:
    x, weight, bias, mean, variance, _, eps = node.args
    channels = shape_of(_first(node))[1]
    unit = [np.full(channels, value, np.float32) for value in (1.0, 0.0)]
    affine = [
        writer.values[given] if given is not None else writer.constant(default)
        for given, default in zip((weight, bias), unit, strict=True)
    ]
    inputs = (writer.values[x], *affine, writer.values[mean], writer.values[variance])
    return writer.emit("BatchNormalization", *inputs, epsilon=eps), "", ""


def _max_pool(writer: Writer, node: fx.Node) -> Any:
    """ONNX counts places through the whole tensor, torch within each image and channel."""
    kernel, stride, padding, dilation, ceil = (
        _argument(node, index, default) for index, default in ((1, None), (2, []), (3, 0), (4, 1), (5, False))
    )
    rank = _rank(_first(node)) - 2
    kernel, padding, dilation = (_per_axis(value, rank) for value in (kernel, padding, dilation))
    y, places = writer.emit(
        "MaxPool", _value(writer, node), outputs=2, kernel_shape=kernel, pads=[*padding, *padding],
        strides=_per_axis(stride, rank) or kernel, dilations=dilation, ceil_mode=int(bool(ceil)),
    )  # fmt: skip
    area = int(np.prod([int(size) for size in shape_of(_first(node))[2:]]))
    return y, writer.emit("Mod", places, writer.constant(np.int64(area)))


def _average_pool(writer: Writer, node: fx.Node) -> Any:
    kernel, stride, padding, ceil, count_padding, divisor = (
        _argument(node, index, default)
        for index, default in ((1, None), (2, []), (3, 0), (4, False), (5, True), (6, None))
    )
    if divisor is not None:
        raise Unwritable("an average with a divisor of its own")
    rank = _rank(_first(node)) - 2
    kernel, padding = (_per_axis(value, rank) for value in (kernel, padding))
    return writer.emit(
        "AveragePool", _value(writer, node), kernel_shape=kernel, pads=[*padding, *padding],
        strides=_per_axis(stride, rank) or kernel, ceil_mode=int(bool(ceil)),
        count_include_pad=int(bool(count_padding)),
    )  # fmt: skip


def _per_axis(value: Any, rank: int) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    return list(value) * rank if len(value) == 1 else list(value)


def _cast(writer: Writer, node: fx.Node) -> str:
    return writer.operand(_first(node), _dtype(node))


def _embedding(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gather", _value(writer, node, 0), _value(writer, node, 1), axis=0)


def _index(writer: Writer, node: fx.Node) -> Any:
    """x[.., indices, ..] with indices along one axis."""
    indices = list(_sequence(node.args[1]))
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or _dtype(indices[given[0]]) == torch.bool:
        raise Unwritable("indices along several axes, or a mask")
    return writer.emit("Gather", _value(writer, node), writer.values[indices[given[0]]], axis=given[0])


def _index_select(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gather", _value(writer, node), _value(writer, node, 2), axis=node.args[1])


def _log1p(writer: Writer, node: fx.Node) -> Any:
    one = writer.operand(1, _dtype(node))
    return writer.emit("Log", writer.emit("Add", _value(writer, node), one))


def _cumulative_sum(writer: Writer, node: fx.Node) -> Any:
    axis = writer.constant(np.int64(_argument(node, 1) % _rank(node)))
    return writer.emit("CumSum", writer.operand(_first(node), _dtype(node)), axis)


def _gather(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("GatherElements", _value(writer, node), _value(writer, node, 2), axis=node.args[1])


def _scatter_add(writer: Writer, node: fx.Node) -> Any:
    inputs = (_value(writer, node, index) for index in (0, 2, 3))
    return writer.emit("ScatterElements", *inputs, axis=node.args[1], reduction="add")


def _where(writer: Writer, node: fx.Node) -> Any:
    chosen = (writer.operand(argument, _dtype(node)) for argument in node.args[1:3])
    return writer.emit("Where", _value(writer, node), *chosen)


def _rsqrt(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Reciprocal", writer.emit("Sqrt", _value(writer, node)))


def _silu(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Mul", _value(writer, node), writer.emit("Sigmoid", _value(writer, node)))


def _gelu(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gelu", _value(writer, node), approximate=node.kwargs.get("approximate", "none"))


def _hard_sigmoid(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("HardSigmoid", _value(writer, node), alpha=1 / 6, beta=0.5)


def _symbolic(writer: Writer, node: fx.Node) -> Any:
    """An operator of ONNX that the network asks for by its name (torch.onnx.ops.symbolic)."""
    inputs = ["" if given is None else writer.values[given] for given in _sequence(node.args[0])]
    settings = node.kwargs
    if settings.get("domain") or any(kind not in ("i", "is") for kind in _sequence(settings["attr_types"])):
        raise Unwritable(f"operator {node.args[1]} with its domain or attributes")
    numbers = list(_sequence(settings["attr_ints"]))
    named = zip(*(_sequence(settings[key]) for key in ("attr_keys", "attr_types", "attr_pos")), strict=True)
    attributes = {key: numbers[a:b] if kind == "is" else numbers[a] for key, kind, (a, b) in named}
    several = len(node.args[2]) if isinstance(node.args[2], (list, tuple)) else 0
    made = writer.emit(str(node.args[1]), *inputs, outputs=several or 1, **attributes)
    return (made,) if several == 1 else made


def _item(writer: Writer, node: fx.Node) -> Any:
    return writer.values[_first(node)][node.args[1]]


OPERATORS: dict[Any, Write] = {
    operator.getitem: _item,
    torch.ops.onnx_symbolic._symbolic.default: _symbolic,
    torch.ops.onnx_symbolic._symbolic_multi_out.default: _symbolic,
    **dict.fromkeys(
        (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default), _same
    ),
    **dict.fromkeys(FOLDS, _reshape),
    **dict.fromkeys((aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default), _squeeze),
    aten.unsqueeze.default: _unsqueeze,
    **{
        getattr(aten, name).default: _unary(written)
        for name, written in (
            ("relu", "Relu"), ("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("erf", "Erf"),
            ("neg", "Neg"), ("abs", "Abs"), ("tanh", "Tanh"), ("sigmoid", "Sigmoid"), ("sin", "Sin"),
            ("cos", "Cos"), ("reciprocal", "Reciprocal"), ("logical_not", "Not"), ("sign", "Sign"),
            ("bitwise_not", "Not"), ("hardswish", "HardSwish"), ("floor", "Floor"), ("ceil", "Ceil"),
            ("round", "Round"),
        )
    },
    **{
        getattr(getattr(aten, name), overload): _binary(written)
        for name, written in (("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"))
        for overload in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(aten, name), overload): _compare(*written)
        for name, written in (
            ("le", ("LessOrEqual",)), ("ge", ("GreaterOrEqual",)), ("lt", ("Less",)), ("gt", ("Greater",)),
            ("eq", ("Equal",)), ("ne", ("Equal", "Not")),
        )
        for overload in ("Tensor", "Scalar")
    },
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), _binary("Or")),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default), _binary("And")),
    aten.add_.Tensor: _in_place(_binary("Add")),
    aten.mul_.Tensor: _in_place(_binary("Mul")),
    aten.maximum.default: _binary("Max"),
    aten.minimum.default: _binary("Min"),
    aten.mm.default: _product,
    aten.bmm.default: _binary("MatMul"),
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
    aten.sum.dim_IntList: _reduce("ReduceSum"),
    aten.sum.default: _reduce("ReduceSum"),
    aten.mean.dim: _reduce("ReduceMean"),
    aten.mean.default: _reduce("ReduceMean"),
    aten.amax.default: _reduce("ReduceMax"),
    aten.convolution.default: _convolution,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.cat.default: _concat,
    aten.split_with_sizes.default: _split,
    aten.pow.Tensor_Scalar: _power,
    aten.clamp.default: _clip(),
    aten.clamp_min.default: _clip(),
    aten.hardtanh.default: _clip(-1.0, 1.0),
    aten._softmax.default: _normalised_exponential("Softmax"),
    aten._log_softmax.default: _normalised_exponential("LogSoftmax"),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _average_pool,
    aten._to_copy.default: _cast,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.log1p.default: _log1p,
    aten.cumsum.default: _cumulative_sum,
    aten.gather.default: _gather,
    aten.scatter_add.default: _scatter_add,
    aten.where.self: _where,
    aten.rsqrt.default: _rsqrt,
    aten.silu.default: _silu,
    aten.gelu.default: _gelu,
    aten.hardsigmoid.default: _hard_sigmoid,
}  # fmt: skip
