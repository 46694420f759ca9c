"""Maximum pooling and its gradient in ONNX Runtime's blocked layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .convolutions import interleaved
from .operators import DOMAIN, Maps, Operators, Pair, Window

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
