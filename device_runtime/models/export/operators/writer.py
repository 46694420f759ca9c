"""Writes a traced torch graph as ONNX, operator by operator.

Only the batch size of a traced graph is symbolic. torch's own exporter knows every operator, but takes a
hundred times as long, since it traces and rewrites the traced graph once more; it is used for graphs with an
operator that is not known here.
"""
# mypy: allow-any-unimported, allow-untyped-calls

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, fx

BATCH = "batch"

DTYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.uint8: TensorProto.INT64,  # ONNX Runtime has few operators for it; torch counts rows of `eye` in it
    torch.bool: TensorProto.BOOL,
}
SCALARS = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.int64,
    torch.bool: np.bool_,
}


class Unwritable(Exception):
    """Raised for an operator or argument that this writer does not know; the message names it."""


class Writer:
    """The ONNX graph so far. Values are ONNX names; integers and tuples of torch's graph stay in Python."""

    def __init__(self, input_names: Iterable[str]) -> None:
        """`input_names` are the names of the graph's inputs, which no other value may have."""
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.values: dict[fx.Node, Any] = {}
        # value -> description of the layer that it is an output of (`described.describing`)
        self.layers: dict[str, dict[str, Any]] = {}
        self.described: list[Sequence[fx.Node]] = []  # inputs of these layers
        # matrix -> name and shape of the same values as a tensor, before its rows were folded together
        self.unfolded: dict[fx.Node, tuple[str, tuple[Any, ...]]] = {}
        self._constant_names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._batch = ""
        self._names = fresh_names("t", input_names)

    def emit(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns its output's name, or a tuple of names. None attributes are left out."""
        names = [next(self._names) for _ in range(outputs)]
        settings = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(operator, list(inputs), names, **settings))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, value: NDArray[Any]) -> str:
        """The name of a constant; equal constants are stored once."""
        value = np.asarray(value)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = name = next(self._names)
            self.constants[name] = numpy_helper.from_array(value, name)
        return self._constant_names[key]

    def integers(self, values: Sequence[int]) -> str:
        """A constant int64 vector, for axes, shapes and the like."""
        return self.constant(np.asarray(values, np.int64))

    def describe(self, node: fx.Node) -> None:
        """Keeps the description; its value is that which it describes."""
        result, layer, output, inputs, numbers = node.args
        self.values[node] = self.values[result]
        self.described.append(inputs)
        self.layers[self.values[node]] = {
            "layer": layer,
            "output": output,
            "inputs": [self.values[value] for value in inputs],
            "numbers": list(numbers),
        }

    def operand(self, argument: Any, dtype: torch.dtype) -> str:
        """A tensor, or a number as a constant of this dtype; a size that depends on the batch is computed."""
        if isinstance(argument, fx.Node):
            meta = argument.meta["val"]
            if isinstance(meta, Tensor):
                name: str = self.values[argument]
                return name if meta.dtype == dtype else self.emit("Cast", name, to=DTYPES[dtype])
            argument = meta
        if isinstance(argument, torch.SymInt):
            size = self.emit("Squeeze", self._length(argument), self.integers([0]))
            return self.emit("Cast", size, to=DTYPES[dtype]) if dtype != torch.int64 else str(size)
        if isinstance(argument, (bool, int, float)):
            return self.constant(np.asarray(argument, SCALARS[dtype]))
        raise Unwritable(f"an argument of type {type(argument).__name__}")

    def sizes(self, shape: Sequence[Any]) -> str:
        """A shape as an int64 vector, for operators that do not take -1."""
        if not any(isinstance(size, torch.SymInt) for size in shape):
            return self.integers([int(size) for size in shape])
        parts = [self._length(s) if isinstance(s, torch.SymInt) else self.integers([int(s)]) for s in shape]
        return str(self.emit("Concat", *parts, axis=0)) if len(parts) > 1 else parts[0]

    def reshape(self, name: str, shape: Sequence[Any], before: Sequence[Any] = ()) -> str:
        """Reshapes from `before` to `shape`.

        If one size depends on the batch and keeps its place, it is written as 0 ("unchanged"), not -1: ONNX
        Runtime then knows which values have the same size, and can share their memory.
        """
        symbolic = [index for index, size in enumerate(shape) if isinstance(size, torch.SymInt)]
        if len(symbolic) > 1:
            return str(self.emit("Reshape", name, self.sizes(shape)))
        plain = [
            int(size) if index not in symbolic else 0 if _equal(size, before[index : index + 1]) else -1
            for index, size in enumerate(shape)
        ]
        return str(self.emit("Reshape", name, self.integers(plain)))

    def _length(self, size: torch.SymInt) -> str:
        """A size that is a whole multiple of the batch, as a vector of one element. Raises Unwritable."""
        ratio = size.node.expr / next(iter(size.node.expr.free_symbols))
        if not ratio.is_Integer:
            raise Unwritable(f"a size of {size.node.expr}")
        if not self._batch:
            self._batch = self.emit("Shape", "x", start=0, end=1)
        return self._batch if ratio == 1 else self.emit("Mul", self._batch, self.integers([int(ratio)]))


def fresh_names(prefix: str, names: Iterable[str], first: int = 1) -> Iterator[str]:
    """Endless names of prefix and number, without those that are taken: a parameter may be called t1."""
    names = frozenset(names)
    return (name for number in count(first) if (name := f"{prefix}{number}") not in names)


def _equal(size: torch.SymInt, other: Sequence[Any]) -> bool:
    return bool(other) and isinstance(other[0], torch.SymInt) and other[0].node.expr == size.node.expr


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of a node's value; those that depend on the batch are torch.SymInt."""
    return tuple(node.meta["val"].shape)


Write = Callable[[Writer, fx.Node], Any]
"""A function that writes a node, and returns the name of its value, or a tuple of names."""


def value_of(writer: Writer, node: fx.Node, index: int = 0) -> str:
    """The ONNX name of the tensor that is argument `index`."""
    name: str = writer.values[node.args[index]]
    return name


def argument_of(node: fx.Node, index: int, default: Any = None) -> Any:
    return node.args[index] if len(node.args) > index else default


def rank_of(node: fx.Node) -> int:
    return len(shape_of(node))


def first_of(node: fx.Node) -> fx.Node:
    first = node.args[0]
    if not isinstance(first, fx.Node):
        raise Unwritable(f"{node.target} of {type(first).__name__}")
    return first


def dtype_of(node: Any) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def sequence_of(argument: Any) -> Sequence[Any]:
    if not isinstance(argument, (list, tuple)):
        raise Unwritable(f"a list of type {type(argument).__name__}")
    return argument


def unchanged(writer: Writer, node: fx.Node) -> str:
    if (first := first_of(node)) in writer.unfolded:
        writer.unfolded[node] = writer.unfolded[first]
    return value_of(writer, node)
