"""Group and batch normalisation in the blocked layout, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from device_runtime.models.engines.onnx_nodes import Node

from .operators import Maps, Operators
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
