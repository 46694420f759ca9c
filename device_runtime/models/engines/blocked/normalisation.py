"""Group and batch normalisation, maximum pooling, and their gradients in ONNX Runtime's blocked layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from device_runtime.models.engines.onnx_nodes import Node

from .convolutions import interleaved
from .operators import DOMAIN, Maps, Operators, Pair, Window
from .rewriting import Described, Rewriting


def _squares(ops: Operators, x: Maps, shift: str, *, per_sample: bool) -> str:
    """Mean square of each map after a shift (.., x.padded): (n, channels)."""
    ones = ops.constant(np.ones((ops.rows if per_sample else 1, x.padded)))
    shifted = ops.affine(x, ones, shift, per_sample=per_sample)
    return ops.mean_products(shifted, shifted)


def _reciprocal_deviation(ops: Operators, variance: str, epsilon: float) -> str:
    return ops.emit("Reciprocal", ops.emit("Sqrt", ops.emit("Add", variance, ops.constant(epsilon))))


@dataclass(frozen=True)
class _Groups:
    """The groups of a group normalisation, of `each` channels."""

    ops: Operators
    groups: int
    each: int

    @classmethod
    def of(cls, on: Rewriting, x: Maps, layer: Described) -> _Groups | None:
        groups = int(layer.numbers[0])
        return None if groups < 1 or x.channels % groups else cls(on.ops, groups, x.channels // groups)

    def split(self, value: str, rows: int) -> str:
        """(rows, channels) -> (rows, groups, each)."""
        return self.ops.reshape(value, rows, self.groups, self.each)

    def mean(self, value: str) -> str:
        """(n, channels) -> (n, groups, 1)."""
        return self.ops.mean(self.split(value, self.ops.rows), 2)

    def spread(self, value: str) -> str:
        """(n, groups, 1) -> (n, groups, each)."""
        return self.ops.multiply(value, self.ops.constant(np.ones((1, 1, self.each))))

    def wide(self, value: str) -> str:
        """(n, groups, each) -> (n, x.padded)."""
        return self.ops.widened(value, self.groups * self.each, self.ops.rows)


def group_norm(on: Rewriting, layer: Described) -> Maps | str | None:
    x, ops = on.blocked(layer.inputs[0]), on.ops
    by = None if x is None else _Groups.of(on, x, layer)
    if x is None or by is None:
        return None
    mean = by.mean(ops.means(x))
    minus = by.wide(by.spread(ops.emit("Neg", mean)))
    variance = by.mean(_squares(ops, x, minus, per_sample=True))
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[1])
    if layer.output:
        return ops.reshape((mean, deviation)[layer.output - 1], ops.rows, by.groups)
    weight, bias = (by.split(on.plain(name), 1) for name in layer.inputs[1:])
    scale = ops.multiply(deviation, weight)
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    return ops.affine(x, by.wide(scale), by.wide(shift), per_sample=True)


def group_norm_backward(on: Rewriting, layer: Described) -> Maps | str | None:
    """As in `torch_modules.layers.group_norm_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    by = None if pair is None else _Groups.of(on, pair[0], layer)
    if pair is None or by is None:
        return None
    go, x = pair
    mean, deviation = (ops.reshape(on.plain(name), ops.rows, by.groups, 1) for name in layer.inputs[2:4])
    sums, along = (by.split(value, ops.rows) for value in (ops.means(go), ops.mean_products(go, x)))
    along = ops.multiply(ops.subtract(along, ops.multiply(mean, sums)), deviation)
    if layer.output:
        total = ops.sum_over_samples((along, sums)[layer.output - 1])
        return ops.reshape(ops.multiply(total, ops.constant(x.area)), x.channels)
    weight = by.split(on.plain(layer.inputs[4]), 1)
    inner, outer = (ops.mean(ops.multiply(value, weight), 2) for value in (along, sums))
    scale = ops.emit("Neg", ops.multiply(inner, deviation, deviation))
    shift = ops.emit("Neg", ops.emit("Add", ops.multiply(scale, mean), ops.multiply(outer, deviation)))
    rest = ops.affine(x, *(by.wide(by.spread(value)) for value in (scale, shift)), per_sample=True)
    return ops.added(ops.affine(go, by.wide(ops.multiply(deviation, weight)), per_sample=True), rest)


def _normalised(ops: Operators, x: Maps, affine: tuple[str, str], statistics: tuple[str, str]) -> Maps:
    """x by weight, bias, mean and reciprocal deviation of each channel."""
    (weight, bias), (mean, deviation) = affine, statistics
    scale = ops.multiply(deviation, weight)
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    return ops.affine(x, *(ops.widened(value, x.channels) for value in (scale, shift)), per_sample=False)


def batch_norm(on: Rewriting, node: Node) -> Maps | None:
    x, ops = on.maps.get(node.inputs[0]), on.ops
    if x is None:
        return None
    weight, bias, mean, variance = (on.plain(name) for name in node.inputs[1:])
    epsilon: Any = node.attributes.get("epsilon", 1e-5)
    return _normalised(ops, x, (weight, bias), (mean, _reciprocal_deviation(ops, variance, epsilon)))


def batch_norm_backward(on: Rewriting, layer: Described) -> Maps | str | None:
    """With running statistics: as in `torch_modules.layers.batch_norm_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    if pair is None:
        return None
    go, x = pair
    weight, mean, variance = (on.plain(name) for name in layer.inputs[2:])
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[0])
    if layer.output == 0:
        scale = ops.widened(ops.multiply(deviation, weight), go.channels)
        return ops.affine(go, scale, per_sample=False)
    sums = ops.sums(go)
    if layer.output == 2:
        return sums
    return ops.multiply(ops.subtract(ops.sums(go, x), ops.multiply(mean, sums)), deviation)


def batch_statistics(on: Rewriting, layer: Described) -> Maps | str | None:
    """Batch normalisation with the statistics of the batch: result, mean, variance."""
    x, ops = on.blocked(layer.inputs[0]), on.ops
    if x is None:
        return None
    mean = ops.mean(ops.means(x), 0)
    minus = ops.widened(ops.emit("Neg", mean), x.channels)
    variance = ops.mean(_squares(ops, x, minus, per_sample=False), 0)
    if layer.output:
        return ops.reshape((mean, variance)[layer.output - 1], x.channels)
    weight, bias = (on.plain(name) for name in layer.inputs[1:])
    return _normalised(ops, x, (weight, bias), (mean, _reciprocal_deviation(ops, variance, layer.numbers[0])))


def batch_statistics_backward(on: Rewriting, layer: Described) -> Maps | str | None:
    """As in `torch_modules.layers.batch_statistics_backward`."""
    pair, ops = on.both(*layer.inputs[:2]), on.ops
    if pair is None:
        return None
    go, x = pair
    weight, mean, variance = (on.plain(name) for name in layer.inputs[2:])
    deviation = _reciprocal_deviation(ops, variance, layer.numbers[0])
    of_bias, of_product = (ops.mean(value, 0) for value in (ops.means(go), ops.mean_products(go, x)))
    of_weight = ops.multiply(ops.subtract(of_product, ops.multiply(mean, of_bias)), deviation)
    if layer.output:
        gradient = (of_weight, of_bias)[layer.output - 1]
        return ops.reshape(ops.multiply(gradient, ops.constant(ops.rows * x.area)), x.channels)
    scale = ops.multiply(weight, deviation)
    along = ops.multiply(scale, deviation, of_weight)
    shift = ops.subtract(ops.multiply(along, mean), ops.multiply(scale, of_bias))
    along = ops.emit("Neg", along)
    rest = ops.affine(x, *(ops.widened(value, x.channels) for value in (along, shift)), per_sample=False)
    return ops.added(ops.affine(go, ops.widened(scale, x.channels), per_sample=False), rest)


LOWEST = -3e38
"""Fills the places around maps, which are never the largest of a window."""


def max_pool(ops: Operators, x: Maps, window: Window) -> Maps:
    """The largest value of each window."""
    size = window.size(x.height, x.width)
    value = ops.emit("MaxPool", x.name, domain=DOMAIN, **window.attributes)
    return replace(x.with_values(value), height=size[0], width=size[1])


def max_pool_gradient(ops: Operators, x: Maps, y: Maps, go: Maps, window: Window) -> Maps:
    """The gradient of x: that of each result goes to the first place of its window with the largest value.

    y and go: result and its gradient. For each place of the window, a slice of x is compared with the result.
    """
    b, (rows, columns), stride = ops.block, window.kernel, window.stride
    outer = ops.rows * x.padded // b
    height, width = (
        (size - 1) * s + k for size, s, k in zip((go.height, go.width), stride, window.kernel, strict=True)
    )
    after = (height - x.height - window.before[0], width - x.width - window.before[1])
    value = ops.reshape(x.name, outer, x.height, x.width, b)
    value = ops.pad(
        value,
        (outer, x.height, x.width, b),
        (0, *window.before, 0),
        (0, *(max(0, size) for size in after), 0),
        LOWEST,
    )
    gradients: dict[Pair, str] = {}
    rest = ops.reshape(go.name, outer, go.height, go.width, b)
    largest = ops.reshape(y.name, outer, go.height, go.width, b)
    for place in ((row, column) for row in range(rows) for column in range(columns)):
        if place == (rows - 1, columns - 1):
            gradients[place] = rest
            break
        part = value
        for axis, (start, step, count) in enumerate(
            zip(place, stride, (go.height, go.width), strict=True), start=1
        ):
            part = ops.cut(part, axis, start + (count - 1) * step + 1, start=start, step=step)
        below = ops.subtract(part, largest)  # 0 or less
        gradients[place] = ops.multiply(rest, ops.emit("HardSigmoid", below, alpha=3e38, beta=1.0))
        rest = ops.subtract(rest, gradients[place])
    counts = (-(-height // stride[0]), -(-width // stride[1]))
    remainders = (min(rows, stride[0]), min(columns, stride[1]))
    maps = [
        _sum(ops, [*_placed(ops, gradients, (row, column), window, go, counts)])
        for row in range(remainders[0])
        for column in range(remainders[1])
    ]
    together = [ops.reshape(gradient, ops.rows, x.padded, *counts) for gradient in maps]
    name = ops.emit("Concat", *together, axis=1) if len(together) > 1 else together[0]
    padded = replace(x.with_values(name), height=counts[0], width=counts[1])
    whole = (counts[0] * stride[0], counts[1] * stride[1])
    return _within(
        ops,
        interleaved(ops, padded, remainders, stride, replace(x, height=whole[0], width=whole[1])),
        x,
        window,
    )


def _placed(
    ops: Operators, gradients: dict[Pair, str], first: Pair, window: Window, go: Maps, counts: Pair
) -> Iterator[str]:
    """Gradients of all places of a window with one remainder modulo the stride, padded to their positions."""
    (rows, columns), (down, along) = window.kernel, window.stride
    shape = (ops.rows * go.padded // ops.block, go.height, go.width, ops.block)
    for row in range(first[0], rows, down):
        for column in range(first[1], columns, along):
            before = (row // down, column // along)
            after = (counts[0] - go.height - before[0], counts[1] - go.width - before[1])
            yield ops.pad(gradients[row, column], shape, (0, *before, 0), (0, *after, 0))


def _sum(ops: Operators, values: list[str]) -> str:
    total, *others = values
    for other in others:
        total = ops.emit("Add", total, other)
    return total


def _within(ops: Operators, maps: Maps, x: Maps, window: Window) -> Maps:
    """The part of the maps that is not padding, with zeros where x is larger."""
    value, b = maps.name, ops.block
    shape = [ops.rows * maps.padded // b, maps.height, maps.width, b]
    for axis, (start, size) in enumerate(zip(window.before, (x.height, x.width), strict=True), start=1):
        stop = min(shape[axis], start + size)
        if (start, stop) != (0, shape[axis]):
            value = ops.cut(ops.reshape(value, *shape), axis, stop, start=start)
            shape[axis] = stop - start
    value = ops.pad_after(value, shape, (shape[0], x.height, x.width, b))
    return x.with_values(ops.reshape(value, ops.rows, x.padded, x.height, x.width))
