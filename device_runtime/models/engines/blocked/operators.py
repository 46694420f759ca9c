"""Operators on feature maps in ONNX Runtime's blocked layout, as nodes of an ONNX graph.

In this layout, (n, channels / B, height, width, B), the values of B channels at one place lie side by side.
One register of the processor holds them. ONNX Runtime's own optimiser uses it where kernels are constants.
Its convolution takes kernels as inputs, too. Here the graph reorders them, which takes a fraction of a
convolution's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.engines.onnx_nodes import Attribute, Node, renamed_node, write_node

DOMAIN = "com.microsoft.nchwc"

Pair = tuple[int, int]


@dataclass(frozen=True)
class GraphStep:
    """An operator of the new graph. node: the same operator of the given graph, if it is not new."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    domain: str = ""
    node: Node | None = None

    def encoded(self, names: Mapping[str, str]) -> bytes:
        """Its bytes, with new names of values."""
        if self.node is not None:
            return renamed_node(self.node.encoded, names)
        inputs, outputs = ([names.get(name, name) for name in some] for some in (self.inputs, self.outputs))
        return write_node(self.kind, inputs, outputs, self.attributes, self.domain)


@dataclass(frozen=True)
class Window:
    """A kernel's size and moves, in (rows, columns). before, after: zeros around the maps."""

    kernel: Pair
    stride: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def size(self, height: int, width: int) -> Pair:
        """Height and width of the result."""
        rows, columns = (
            (size + self.before[axis] + self.after[axis] - self.dilation[axis] * (self.kernel[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis, size in enumerate((height, width))
        )
        return rows, columns

    def is_within(self, largest: int) -> bool:
        """Whether all sizes are pairs from 1 to `largest`, and all paddings pairs from 0 to `largest`."""
        least = ((self.kernel, 1), (self.stride, 1), (self.dilation, 1), (self.before, 0), (self.after, 0))
        return all(len(pair) == 2 and low <= min(pair) and max(pair) <= largest for pair, low in least)

    @property
    def attributes(self) -> dict[str, Attribute]:
        """As attributes of a convolution."""
        return {
            "kernel_shape": self.kernel, "strides": self.stride, "dilations": self.dilation,
            "pads": (*self.before, *self.after),
        }  # fmt: skip


@dataclass(frozen=True)
class Maps:
    """Feature maps in the blocked layout: a value of shape (n, padded, height, width).

    Channels from `channels` to `padded`, a multiple of the block, are zero. convolution: the one that
    makes them, so that what follows can become a part of it.
    """

    name: str
    channels: int
    padded: int
    height: int
    width: int
    convolution: BlockedConvolution | None = None

    @property
    def area(self) -> int:
        """Places of a map."""
        return self.height * self.width

    def fits(self, other: Maps) -> bool:
        """Whether both have the same shape."""
        return (self.channels, self.height, self.width) == (other.channels, other.height, other.width)

    def with_values(self, name: str) -> Maps:
        """Maps of the same shape with other values."""
        return replace(self, name=name, convolution=None)


@dataclass(frozen=True)
class BlockedConvolution:
    """The inputs of a blocked convolution (maps, kernel, bias; "" for none), its addend and attributes."""

    inputs: tuple[str, str, str]
    attributes: Mapping[str, Attribute]
    addend: Maps | None = None
    per_sample: bool = False  # the maps of all samples are taken as channels of one


class Operators:
    """The operators and constants of a new graph, for `rows` samples in blocks of `block` channels."""

    def __init__(self, rows: int, block: int) -> None:
        self.rows, self.block = rows, block
        self.steps: list[GraphStep] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._names: dict[Any, str] = {}
        self._reshaped: dict[str, str] = {}  # value -> the one that it is a reshape of

    # Any values

    def emit(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds an operator unless an equal one is there; returns the name of its output."""
        key = (kind, inputs, domain, tuple(sorted(attributes.items())))
        if key not in self._names:
            self._names[key] = self._fresh()
            self.steps.append(GraphStep(kind, inputs, (self._names[key],), attributes, domain))
        return self._names[key]

    def keep(self, node: Node) -> None:
        """Adds an operator of the given graph."""
        self.steps.append(GraphStep(node.kind, node.inputs, node.outputs, {}, node=node))

    def name(self, value: str, name: str) -> None:
        """Gives a value this name as well."""
        self.steps.append(GraphStep("Identity", (value,), (name,), {}))

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """The name of a constant; equal constants are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = self._fresh()
            self.constants[self._names[key]] = array
        return self._names[key]

    def integers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant(values, np.int64)

    def _fresh(self) -> str:
        return f"blocked.{len(self._names)}"

    def multiply(self, *values: str) -> str:
        """The product of values."""
        product, *others = values
        for other in others:
            product = self.emit("Mul", product, other)
        return product

    def subtract(self, value: str, other: str) -> str:
        """The difference of two values."""
        return self.emit("Sub", value, other)

    def mean(self, value: str, axis: int) -> str:
        """The mean along one axis, which keeps the size 1."""
        return self.emit("ReduceMean", value, self.integers(axis), keepdims=1)

    def sum_over_samples(self, value: str) -> str:
        """(n, ..) -> (..)."""
        return self.emit("ReduceSum", value, self.integers(0), keepdims=0)

    # Values as arrays of a given shape

    def reshape(self, value: str, *shape: int) -> str:
        """The value in another shape."""
        source = self._reshaped.get(value, value)
        reshaped = self.emit("Reshape", source, self.integers(*shape))
        self._reshaped.setdefault(reshaped, source)
        return reshaped

    def transpose(self, value: str, shape: Sequence[int], order: Sequence[int]) -> str:
        """The value, taken as an array of this shape, with its axes in this order."""
        moved = [axis for axis in order if shape[axis] > 1]
        if moved == sorted(moved):
            return value
        return self.emit("Transpose", self.reshape(value, *shape), perm=tuple(order))

    def pad(
        self, value: str, shape: Sequence[int], before: Sequence[int], after: Sequence[int], fill: float = 0.0
    ) -> str:
        """Zeros, or `fill`, around the value, taken as an array of this shape."""
        if not any((*before, *after)):
            return value
        filling = (self.constant(fill),) if fill else ()
        return self.emit("Pad", self.reshape(value, *shape), self.integers(*before, *after), *filling)

    def pad_after(self, value: str, shape: Sequence[int], target: Sequence[int]) -> str:
        """Pads the value, taken as an array of this shape, with zeros up to another shape."""
        after = [size - had for had, size in zip(shape, target, strict=True)]
        return self.pad(value, shape, [0] * len(after), after)

    def cut(self, value: str, axis: int, stop: int, *, start: int = 0, step: int = 1) -> str:
        """Every `step`-th place of the value from `start` on, along one axis."""
        ends = (self.integers(number) for number in (start, stop, axis, step))
        return self.emit("Slice", value, *ends)

    def reverse(self, value: str, shape: Sequence[int], axis: int) -> str:
        """The value, taken as an array of this shape, in reverse along one axis."""
        if shape[axis] == 1:
            return value
        places = self.integers(*range(shape[axis] - 1, -1, -1))
        return self.emit("Gather", self.reshape(value, *shape), places, axis=axis)

    # Layouts

    def wide(self, size: int) -> int:
        """The next multiple of the block."""
        return -(-size // self.block) * self.block

    def blocks_inside(self, value: str, outer: int, inner: int) -> str:
        """(outer, block, inner) -> (outer, inner, block)."""
        return self.emit("ReorderInput", self.reshape(value, outer, self.block, 1, inner), domain=DOMAIN)

    def blocks_outside(self, value: str, outer: int, inner: int) -> str:
        """(outer, inner, block) -> (outer, block, inner)."""
        maps = self.reshape(value, outer, self.block, 1, inner)
        return self.emit("ReorderOutput", maps, domain=DOMAIN, channels=self.block)

    def maps(self, value: str, channels: int, height: int, width: int) -> Maps:
        """Plain maps (n, channels, height, width) in the blocked layout."""
        wide = self.wide(channels)
        shapes = ((self.rows, size, height, width) for size in (channels, wide))
        blocked = self.emit("ReorderInput", self.pad_after(value, *shapes), domain=DOMAIN)
        return Maps(blocked, channels, wide, height, width)

    def plain(self, maps: Maps) -> str:
        """Blocked maps as (n, channels, height, width)."""
        return self.emit("ReorderOutput", maps.name, domain=DOMAIN, channels=maps.channels)

    def widened(self, value: str, channels: int, rows: int = 1) -> str:
        """(rows, channels) with zeros for padded channels."""
        return self.pad_after(value, (rows, channels), (rows, self.wide(channels)))

    # Convolutions

    def convolution(
        self, x: Maps | str, kernel: str, bias: str, channels: int, window: Window, size: Pair, group: int = 1
    ) -> Maps:
        """A convolution with a blocked kernel, to `channels` maps of this size.

        x may also be plain maps with fewer channels than a block.
        """
        source = x if isinstance(x, str) else x.name
        convolution = BlockedConvolution((source, kernel, bias), {**window.attributes, "group": group})
        return self._run(Maps("", channels, self.wide(channels), *size), convolution)

    def affine(self, x: Maps, scale: str, shift: str = "", *, per_sample: bool) -> Maps:
        """x * scale + shift: a convolution of each map by itself, which takes one pass over memory.

        scale and shift have shape (n, x.padded) if they are different for each sample, else (1, x.padded).
        """
        count = self.rows * x.padded if per_sample else x.padded
        source = self.reshape(x.name, 1, count, x.height, x.width) if per_sample else x.name
        inputs = (
            source,
            self.reshape(scale, count, 1, 1, 1),
            self.reshape(shift, count) if shift else "",
        )
        return self._run(
            x, BlockedConvolution(inputs, {"kernel_shape": (1, 1), "group": count}, None, per_sample)
        )

    def activated(self, maps: Maps, **activation: Any) -> Maps | None:
        """Fuses an activation into the convolution that makes the maps; None if that cannot be."""
        if maps.convolution is None or "activation" in maps.convolution.attributes:
            return None
        return self._run(
            maps, replace(maps.convolution, attributes={**maps.convolution.attributes, **activation})
        )

    def added(self, maps: Maps, other: Maps) -> Maps | None:
        """Fuses an addition into the convolution that makes the first maps; None if that cannot be."""
        convolution = maps.convolution
        if convolution is None or "activation" in convolution.attributes:
            return None
        addend = other if convolution.addend is None else self.added(convolution.addend, other)
        return None if addend is None else self._run(maps, replace(convolution, addend=addend))

    def _run(self, shape: Maps, convolution: BlockedConvolution) -> Maps:
        """The maps that this convolution makes, which have the given shape."""
        inputs = convolution.inputs if convolution.inputs[2] or convolution.addend else convolution.inputs[:2]
        flat = (1, self.rows * shape.padded, shape.height, shape.width)
        if convolution.addend is not None:
            addend = convolution.addend.name
            inputs = (*inputs, self.reshape(addend, *flat) if convolution.per_sample else addend)
        value = self.emit("Conv", *inputs, domain=DOMAIN, **convolution.attributes)
        if convolution.per_sample:
            value = self.reshape(value, self.rows, shape.padded, shape.height, shape.width)
        return replace(shape, name=value, convolution=convolution)

    # Reductions

    def means(self, maps: Maps) -> str:
        """Mean of each map: (n, channels)."""
        pooled = self.emit("GlobalAveragePool", maps.name, domain=DOMAIN)
        pooled = self.reshape(pooled, self.rows, maps.padded)
        return pooled if maps.padded == maps.channels else self.cut(pooled, 1, maps.channels)

    def mean_products(self, maps: Maps, other: Maps) -> str:
        """Mean over places of the product of two maps: (n, channels)."""
        return self.means(maps.with_values(self.multiply(maps.name, other.name)))

    def sums(self, maps: Maps, other: Maps | None = None) -> str:
        """Sum of each channel over places and samples, or of its product with other maps: (channels,)."""
        means = self.means(maps) if other is None else self.mean_products(maps, other)
        return self.multiply(self.sum_over_samples(means), self.constant(maps.area))
