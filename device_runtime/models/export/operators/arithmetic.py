"""ONNX writers of arithmetic, elementwise functions, reductions and matrix products."""
# mypy: allow-untyped-calls, allow-any-unimported

from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, fx

from .shapes import FOLDS
from .writer import (
    Unwritable,
    Write,
    Writer,
    argument_of,
    dtype_of,
    first_of,
    rank_of,
    shape_of,
    unchanged,
    value_of,
)

aten = torch.ops.aten


def _product(writer: Writer, node: fx.Node) -> str:
    """x @ w, where torch folds a tensor's rows into one matrix and unfolds the result.

    ONNX can multiply tensors without folding. After folding, ONNX Runtime no longer sees that the batch size
    stays, which costs memory, and time at the start of a session. So both results are written; the one that
    is not needed is removed later.
    """
    first, second = (value_of(writer, node, index) for index in (0, 1))
    argument = node.args[0]
    if isinstance(argument, fx.Node) and argument.target in FOLDS:
        before = first_of(argument)
        shape = shape_of(before)
        if len(shape) > 2 and shape[-1] == shape_of(argument)[-1]:
            name = writer.emit("MatMul", writer.values[before], second)
            writer.unfolded[node] = (name, (*shape[:-1], shape_of(node)[-1]))
            return writer.reshape(name, shape_of(node))
    return str(writer.emit("MatMul", first, second))


def _unary(name: str) -> Write:
    return lambda writer, node: writer.emit(name, value_of(writer, node))


def _binary(name: str) -> Write:
    """Numbers become constants of the result's dtype; for comparisons, of the arguments' common dtype."""

    def write(writer: Writer, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        first, second = node.args[:2]
        if name == "Mul" and second == 1 and isinstance(first, fx.Node) and dtype_of(first) == dtype:
            return unchanged(writer, node)  # torch's addmm leaves factors alpha and beta of 1
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
    """Adds a bias to the unfolded tensor, too."""
    first, second = node.args[:2]
    if isinstance(first, fx.Node) and first in writer.unfolded and isinstance(second, fx.Node):
        value, shape = writer.unfolded[first]
        if shape_of(second) == shape[-1:]:
            writer.unfolded[node] = (writer.emit(name, value, right), shape)


def _example(argument: Any) -> Any:
    """An argument's value or an empty tensor of its dtype, for torch's rules of dtype promotion."""
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    if isinstance(value, Tensor):
        return torch.empty((0,) * value.dim(), dtype=value.dtype)
    return 0 if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else value


def _in_place(write: Write) -> Write:
    """Writes an in-place operator: later reads of its first argument get the result."""

    def changed(writer: Writer, node: fx.Node) -> Any:
        writer.values[first_of(node)] = result = write(writer, node)
        return result

    return changed


_VIEWS = {
    aten.view.default, aten.select.int, aten.slice.Tensor, aten.expand.default, aten.permute.default,
    aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
}  # fmt: skip


def _copied(writer: Writer, node: fx.Node) -> str:
    """Writes a copy into a tensor: later reads of the first argument get the second, in its shape."""
    first, source = first_of(node), node.args[1]
    if first.target in _VIEWS or not isinstance(source, fx.Node):
        raise Unwritable("a copy into a part of a tensor")
    name = writer.operand(source, dtype_of(node))
    if [str(size) for size in shape_of(source)] != [str(size) for size in shape_of(node)]:
        name = writer.emit("Expand", name, writer.sizes(shape_of(node)))
    writer.values[first] = name
    return name


def _compare(name: str, *after: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Any:
        result = _binary(name)(writer, node)
        for other in after:
            result = writer.emit(other, result)
        return result

    return write


def _reduce(name: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Any:
        axes = argument_of(node, 1) or range(rank_of(first_of(node)))
        axes = [axes] if isinstance(axes, int) else list(axes)
        keep = int(bool(argument_of(node, 2, False)))
        operand = writer.operand(first_of(node), dtype_of(node))
        return writer.emit(name, operand, writer.integers(axes), keepdims=keep)

    return write


def _norm(writer: Writer, node: fx.Node) -> Any:
    kind = {2: "ReduceL2", 1: "ReduceL1"}.get(argument_of(node, 1, 2))
    if kind is None:
        raise Unwritable(f"a norm of order {argument_of(node, 1)}")
    axes = argument_of(node, 2) or range(rank_of(first_of(node)))
    axes = [axes] if isinstance(axes, int) else list(axes)
    keep = int(bool(argument_of(node, 3, False)))
    return writer.emit(
        kind, writer.operand(first_of(node), dtype_of(node)), writer.integers(axes), keepdims=keep
    )


def _variance(writer: Writer, node: fx.Node) -> Any:
    """The mean of squares about the mean, with torch's correction; the sizes must not depend on the batch."""
    shape = shape_of(first_of(node))
    places = list(argument_of(node, 1) or range(len(shape)))
    axes, sizes = writer.integers(places), [shape[place] for place in places]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise Unwritable("a variance over the batch")
    count = int(np.prod([int(size) for size in sizes]))
    correction = node.kwargs.get("correction")
    less = max(0.0, count - (1 if correction is None else float(correction)))
    x = value_of(writer, node)
    off = writer.emit("Sub", x, writer.emit("ReduceMean", x, axes, keepdims=1))
    keep = int(bool(node.kwargs.get("keepdim", False)))
    total = writer.emit("ReduceSum", writer.emit("Mul", off, off), axes, keepdims=keep)
    return writer.emit("Div", total, writer.operand(less, dtype_of(node)))


def _any(writer: Writer, node: fx.Node) -> Any:
    axes = argument_of(node, 1)
    axes = list(range(rank_of(first_of(node)))) if axes is None else [axes] if isinstance(axes, int) else axes
    number = writer.operand(first_of(node), torch.int64)
    keep = int(bool(argument_of(node, 2, False)))
    largest = writer.emit("ReduceMax", number, writer.integers(list(axes)), keepdims=keep)
    return writer.emit("Cast", largest, to=TensorProto.BOOL)


def _maximum_with_place(writer: Writer, node: fx.Node) -> Any:
    axis, keep = argument_of(node, 1), int(bool(argument_of(node, 2, False)))
    x = value_of(writer, node)
    places = writer.emit("ArgMax", x, axis=axis, keepdims=keep)
    return writer.emit("ReduceMax", x, writer.integers([axis]), keepdims=keep), places


def _exponential_less_one(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Sub", writer.emit("Exp", value_of(writer, node)), writer.operand(1, dtype_of(node)))


def _elu(writer: Writer, node: fx.Node) -> Any:
    """x above 0, else alpha * (exp(x * input_scale) - 1); all times scale."""
    alpha, scale, inside = (float(argument_of(node, place, 1.0)) for place in (1, 2, 3))
    if inside == scale == 1:
        return writer.emit("Elu", value_of(writer, node), alpha=alpha)
    if inside == 1:
        return writer.emit("Selu", value_of(writer, node), alpha=alpha, gamma=scale)
    raise Unwritable("an ELU with a scale of its input")


def _leaky_relu(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("LeakyRelu", value_of(writer, node), alpha=float(argument_of(node, 1, 0.01)))


def _power(writer: Writer, node: fx.Node) -> Any:
    name, exponent = value_of(writer, node), argument_of(node, 1)
    if exponent == 2:
        return writer.emit("Mul", name, name)
    return writer.emit("Pow", name, writer.operand(exponent, dtype_of(node)))


def _clip(low: float | None = None, high: float | None = None) -> Write:
    """Arguments 1 and 2 are the bounds; `low` and `high` are their defaults."""

    def write(writer: Writer, node: fx.Node) -> Any:
        bounds = (argument_of(node, 1, low), argument_of(node, 2, high))
        names = ["" if bound is None else writer.operand(bound, dtype_of(node)) for bound in bounds]
        return writer.emit("Clip", value_of(writer, node), *names)

    return write


def _normalised_exponential(name: str) -> Write:
    return lambda writer, node: writer.emit(name, value_of(writer, node), axis=argument_of(node, 1))


def _cast(writer: Writer, node: fx.Node) -> str:
    return writer.operand(first_of(node), dtype_of(node))


def _log1p(writer: Writer, node: fx.Node) -> Any:
    unit = writer.operand(1, dtype_of(node))
    return writer.emit("Log", writer.emit("Add", value_of(writer, node), unit))


def _cumulative_sum(writer: Writer, node: fx.Node) -> Any:
    axis = writer.constant(np.int64(argument_of(node, 1) % rank_of(node)))
    return writer.emit("CumSum", writer.operand(first_of(node), dtype_of(node)), axis)


def _where(writer: Writer, node: fx.Node) -> Any:
    chosen = (writer.operand(argument, dtype_of(node)) for argument in node.args[1:3])
    return writer.emit("Where", value_of(writer, node), *chosen)


def _rsqrt(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Reciprocal", writer.emit("Sqrt", value_of(writer, node)))


def _silu(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Mul", value_of(writer, node), writer.emit("Sigmoid", value_of(writer, node)))


def _gelu(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("Gelu", value_of(writer, node), approximate=node.kwargs.get("approximate", "none"))


def _hard_sigmoid(writer: Writer, node: fx.Node) -> Any:
    return writer.emit("HardSigmoid", value_of(writer, node), alpha=1 / 6, beta=0.5)


OPERATORS: dict[Any, Write] = {
    **{
        getattr(aten, name).default: _unary(written)
        for name, written in (
            ("relu", "Relu"), ("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("erf", "Erf"),
            ("neg", "Neg"), ("abs", "Abs"), ("tanh", "Tanh"), ("sigmoid", "Sigmoid"), ("sin", "Sin"),
            ("cos", "Cos"), ("reciprocal", "Reciprocal"), ("logical_not", "Not"), ("sign", "Sign"),
            ("bitwise_not", "Not"), ("hardswish", "HardSwish"), ("floor", "Floor"), ("ceil", "Ceil"),
            ("round", "Round"), ("cosh", "Cosh"), ("sinh", "Sinh"), ("atan", "Atan"), ("tan", "Tan"),
            ("isnan", "IsNaN"), ("asin", "Asin"), ("acos", "Acos"), ("atanh", "Atanh"), ("asinh", "Asinh"),
            ("acosh", "Acosh"),
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
    aten.add_.Scalar: _in_place(_binary("Add")),
    aten.mul_.Tensor: _in_place(_binary("Mul")),
    aten.sub_.Tensor: _in_place(_binary("Sub")),
    aten.div_.Tensor: _in_place(_binary("Div")),
    aten.sqrt_.default: _in_place(_unary("Sqrt")),
    aten.relu_.default: _in_place(_unary("Relu")),
    aten.clamp_min_.default: _in_place(_clip()),
    aten.clamp_min_.Tensor: _in_place(_binary("Max")),
    aten.clamp_min.Tensor: _binary("Max"),
    aten.copy_.default: _copied,
    aten.linalg_vector_norm.default: _norm,
    aten.var.correction: _variance,
    **dict.fromkeys((aten.any.dim, aten.any.dims, aten.any.default), _any),
    aten.max.dim: _maximum_with_place,
    aten.expm1.default: _exponential_less_one,
    aten.elu.default: _elu,
    aten.leaky_relu.default: _leaky_relu,
    aten.maximum.default: _binary("Max"),
    aten.minimum.default: _binary("Min"),
    aten.mm.default: _product,
    aten.bmm.default: _binary("MatMul"),
    aten.sum.dim_IntList: _reduce("ReduceSum"),
    aten.sum.default: _reduce("ReduceSum"),
    aten.mean.dim: _reduce("ReduceMean"),
    aten.mean.default: _reduce("ReduceMean"),
    aten.amax.default: _reduce("ReduceMax"),
    aten.pow.Tensor_Scalar: _power,
    aten.clamp.default: _clip(),
    aten.clamp_min.default: _clip(),
    aten.hardtanh.default: _clip(-1.0, 1.0),
    aten._softmax.default: _normalised_exponential("Softmax"),
    aten._log_softmax.default: _normalised_exponential("LogSoftmax"),
    aten._to_copy.default: _cast,
    aten.log1p.default: _log1p,
    aten.cumsum.default: _cumulative_sum,
    aten.where.self: _where,
    aten.rsqrt.default: _rsqrt,
    aten.silu.default: _silu,
    aten.gelu.default: _gelu,
    aten.hardsigmoid.default: _hard_sigmoid,
}  # fmt: skip
