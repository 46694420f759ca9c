"""Reads the arguments of a node of the traced graph."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .writer import Unwritable, Writer, shape_of

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
