"""Convolutions and their gradients in ONNX Runtime's blocked layout.

Kernels and their gradients are (out, in, rows, columns) outside. B is the size of a block, n the number of
samples. Every gradient is a convolution again; a function gives None for a convolution that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from .operators import DOMAIN, Maps, Operators, Pair, Window

FEWEST_ROWS = 4
"""Least height of the parts of maps in a kernel's gradient."""


@dataclass(frozen=True)
class Kernel:
    """A convolution's kernel in its usual layout, and its window. group: 1, or the number of channels."""

    name: str
    outs: int
    ins: int
    window: Window
    group: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel has a kernel of its own."""
        return self.group == self.outs > 1 and self.ins == 1

    @property
    def places(self) -> int:
        """Rows times columns."""
        return prod(self.window.kernel)


def convolution(ops: Operators, x: Maps | str, kernel: Kernel, bias: str, size: Pair) -> Maps | None:
    """The convolution. x: maps, or plain maps with fewer channels than a block."""
    if bias:
        bias = ops.reshape(ops.widened(bias, kernel.outs), ops.wide(kernel.outs))
    if kernel.depthwise and isinstance(x, Maps):
        blocked = _depthwise_kernel(ops, kernel)
        return ops.convolution(x, blocked, bias, kernel.outs, kernel.window, size, x.padded)
    if kernel.group > 1 or isinstance(x, str) == (kernel.ins >= ops.block):
        return None
    plain = isinstance(x, str)
    return ops.convolution(x, _kernel(ops, kernel, plain=plain), bias, kernel.outs, kernel.window, size)


def _kernel(ops: Operators, kernel: Kernel, *, plain: bool = False) -> str:
    """(out, in, rows, columns) -> (out / B, in / B, rows, columns, B of in, B of out).

    For a `plain` input: (out / B, in, rows, columns, B of out).
    """
    b, outs = ops.block, ops.wide(kernel.outs)
    ins = kernel.ins if plain else ops.wide(kernel.ins)
    shape = (kernel.outs, kernel.ins, *kernel.window.kernel)
    value = ops.pad_after(kernel.name, shape, (outs, ins, *shape[2:]))
    value = ops.blocks_inside(value, outs // b, ins * kernel.places)
    if not plain:
        value = ops.transpose(value, (outs * ins // b**2, b, kernel.places, b), (0, 2, 1, 3))
    return ops.reshape(value, outs, ins, *shape[2:])


def _swapped_kernel(ops: Operators, kernel: Kernel) -> str:
    """(out, in, rows, columns) -> (in / B, out / B, rows * columns, B of out, B of in)."""
    b, outs, ins = ops.block, ops.wide(kernel.outs), ops.wide(kernel.ins)
    value = ops.blocks_inside(_kernel(ops, kernel), outs * ins // b**2 * kernel.places, b)
    return ops.transpose(value, (outs // b, ins // b, kernel.places * b * b), (1, 0, 2))


def _depthwise_kernel(ops: Operators, kernel: Kernel, *, reverse: bool = False) -> str:
    """(channels, 1, rows, columns) -> (channels / B, rows, columns, B); `reverse`: rotated by 180 degrees."""
    wide, places = ops.wide(kernel.outs), kernel.places
    value = ops.pad_after(kernel.name, (kernel.outs, places), (wide, places))
    value = ops.blocks_inside(value, wide // ops.block, places)
    if reverse:
        value = ops.reverse(value, (wide // ops.block, places, ops.block), 1)
    return ops.reshape(value, wide, 1, *kernel.window.kernel)


# Gradient of the input


def input_gradient(ops: Operators, go: Maps, kernel: Kernel, size: Pair) -> Maps | None:
    """The gradient of the convolution's input, whose maps have this size; go: that of its result."""
    window = kernel.window
    if window.dilation != (1, 1) or go.channels != kernel.outs or (kernel.group > 1 and not kernel.depthwise):
        return None
    if kernel.depthwise:
        return _by_spreading(ops, go, kernel, size)
    if window.stride != (1, 1):
        return _by_remainder(ops, go, kernel, size)
    back = _backwards(window, (go.height, go.width), size)
    if back is None:
        return None
    b, outs, ins = ops.block, ops.wide(kernel.outs), ops.wide(kernel.ins)
    value = ops.reverse(_swapped_kernel(ops, kernel), (outs * ins // b**2, kernel.places, b * b), 1)
    return ops.convolution(go, ops.reshape(value, ins, outs, *window.kernel), "", kernel.ins, back, size)


def _backwards(window: Window, source: Pair, target: Pair) -> Window | None:
    """The window of the gradient's convolution at stride 1, from maps of one size to maps of another."""
    pairs = tuple(zip(window.kernel, window.before, source, target, strict=True))
    before = _pair(k - 1 - p for k, p, _, _ in pairs)
    after = _pair(size - had + p for _, p, had, size in pairs)
    return None if min(*before, *after) < 0 else Window(window.kernel, before=before, after=after)


def _pair(sizes: Iterable[int]) -> Pair:
    rows, columns = sizes
    return rows, columns


def _by_spreading(ops: Operators, go: Maps, kernel: Kernel, size: Pair) -> Maps | None:
    """The input gradient of a depthwise convolution: go with zeros between its places, then stride 1."""
    (rows, columns), b = kernel.window.stride, ops.block
    height, width = go.height * rows, go.width * columns
    back = _backwards(kernel.window, (height, width), size)
    if back is None:
        return None
    flat = (ops.rows * go.padded // b * go.height, 1, go.width, b)
    value = ops.pad_after(go.name, flat, (flat[0], rows, flat[2], columns * b))
    spread = replace(
        go, name=ops.reshape(value, ops.rows, go.padded, height, width), height=height, width=width
    )
    reverse = _depthwise_kernel(ops, kernel, reverse=True)
    return ops.convolution(spread, reverse, "", kernel.outs, back, size, go.padded)


@dataclass(frozen=True)
class _Remainders:
    """Along one axis, the places of the input gradient by their remainder modulo the stride.

    indices: for each remainder the kernel's index at each place of a common window, -1 for none. Remainders
    at the end that no kernel reaches are left out. count: places of each remainder.
    """

    indices: Sequence[Sequence[int]]
    before: int
    after: int
    count: int

    @classmethod
    def of(cls, kernel: int, stride: int, padding: int, source: int, target: int) -> _Remainders:
        """The gradient at place stride * q + r is the sum over j of go[q + d - j] * w[f + stride * j].

        d and f are quotient and remainder of r + padding by the stride.
        """
        tables = [
            {
                (r + padding) // stride - j: index
                for j, index in enumerate(range((r + padding) % stride, kernel, stride))
            }
            for r in range(stride)
        ]
        while not tables[-1]:
            tables.pop()
        low, high = (
            min(min(table, default=0) for table in tables),
            max(max(table, default=0) for table in tables),
        )
        indices = [[table.get(place, -1) for place in range(low, high + 1)] for table in tables]
        count = -(-target // stride)
        return cls(indices, -low, high + count - source, count)


def _by_remainder(ops: Operators, go: Maps, kernel: Kernel, size: Pair) -> Maps | None:
    """The input gradient with a stride: one convolution for all remainders of a place, then interleaved."""
    window = kernel.window
    pairs = zip(window.kernel, window.stride, window.before, (go.height, go.width), size, strict=True)
    rows, columns = (_Remainders.of(*numbers) for numbers in pairs)
    if min(rows.before, columns.before, rows.after, columns.after) < 0:
        return None
    b, outs, ins = ops.block, ops.wide(kernel.outs), ops.wide(kernel.ins)
    chosen = [
        row * window.kernel[1] + column if min(row, column) >= 0 else kernel.places
        for vertical in rows.indices
        for horizontal in columns.indices
        for row in vertical
        for column in horizontal
    ]
    blocks, count = outs * ins // b**2, len(rows.indices) * len(columns.indices)
    shape = (blocks, kernel.places, b * b)
    value = ops.pad_after(
        _swapped_kernel(ops, kernel), shape, (blocks, kernel.places + 1, b * b)
    )  # 0 at the end
    value = ops.emit("Gather", value, ops.integers(*chosen), axis=1)
    value = ops.transpose(value, (blocks, count, len(chosen) // count * b * b), (1, 0, 2))
    common = (len(rows.indices[0]), len(columns.indices[0]))
    value = ops.reshape(value, count * ins, outs, *common)
    back = Window(common, before=(rows.before, columns.before), after=(rows.after, columns.after))
    maps = ops.convolution(go, value, "", count * ins, back, (rows.count, columns.count))
    remainders = (len(rows.indices), len(columns.indices))
    return interleaved(ops, maps, remainders, window.stride, Maps("", kernel.ins, ins, *size))


def interleaved(ops: Operators, maps: Maps, remainders: Pair, stride: Pair, target: Maps) -> Maps:
    """Interleaves maps (n, remainders * channels, rows, columns) to those of the wanted shape.

    Remainders modulo the stride that are missing are 0.
    """
    b, wide, size, value = ops.block, target.padded, (target.height, target.width), maps.name
    shape = (ops.rows, *remainders, wide // b, maps.height, maps.width, b)
    value = ops.transpose(value, shape, (0, 3, 4, 1, 5, 2, 6))
    outer = ops.rows * wide // b
    flat = (outer * maps.height, remainders[0], maps.width, remainders[1] * b)
    value = ops.pad_after(value, flat, (flat[0], stride[0], flat[2], stride[1] * b))
    height, width = maps.height * stride[0], maps.width * stride[1]
    value = ops.reshape(value, outer, height, width, b)
    if (height, width) != size:
        value = ops.cut(ops.cut(value, 1, size[0]), 2, size[1])
    return target.with_values(ops.reshape(value, ops.rows, wide, *size))


# Gradient of the kernel


def kernel_gradient(ops: Operators, x: Maps | str, go: Maps, kernel: Kernel, size: Pair) -> str | None:
    """The gradient of the kernel. x: maps of this size, or plain ones with fewer channels than a block."""
    if kernel.window.dilation != (1, 1) or go.channels != kernel.outs:
        return None
    if kernel.depthwise:
        return _depthwise_gradient(ops, x, go, kernel) if isinstance(x, Maps) else None
    if kernel.group > 1 or isinstance(x, str) == (kernel.ins >= ops.block):
        return None
    b, places = ops.block, kernel.places
    images, inner = (kernel.ins, 1) if isinstance(x, str) else (x.padded // b, b)
    value, size, window = _reached(
        ops, x if isinstance(x, str) else x.name, (images, *size, inner), go, kernel
    )
    if any(zeros >= side for zeros, side in zip(window.after, window.kernel, strict=True)):
        return None  # x is smaller than go says
    parts = _parts(ops, go.height)
    n, height = ops.wide(ops.rows * parts), go.height // parts
    as_kernel = _as_kernel(ops, go, parts)
    # x: images of n channels, with B columns for each of its own
    value, rows, columns = _split(ops, value, (images, *size, inner), window, (parts, height))
    value = ops.pad_after(value, (ops.rows * parts, images * rows * columns), (n, images * rows * columns))
    value = ops.emit("ReorderInput", ops.reshape(value, 1, n, images * rows, columns), domain=DOMAIN)
    value = ops.transpose(value, (n // b, images, rows * columns * b), (1, 0, 2))
    over = Window((height, go.width), dilation=(window.stride[0], window.stride[1] * inner))
    if parts == 1:
        over = replace(over, before=(window.before[0], 0), after=(window.after[0], 0))
    value = ops.reshape(value, images, n, rows, columns)
    value = ops.emit("Conv", value, as_kernel, domain=DOMAIN, group=1, **over.attributes)
    ins = images * inner
    if inner == 1:  # (in, out / B, places, B of out)
        value = ops.transpose(value, (ins, go.padded // b, places, b), (1, 3, 0, 2))
    else:  # (in / B, out / B, places, B of in, B of out)
        value = ops.transpose(value, (images, go.padded // b, places, b, b), (1, 0, 3, 2, 4))
        value = ops.blocks_outside(value, go.padded // b, ins * places)
    value = ops.reshape(value, go.padded, ins, *kernel.window.kernel)
    value = value if go.padded == kernel.outs else ops.cut(value, 0, kernel.outs)
    return value if ins == kernel.ins else ops.cut(value, 1, kernel.ins)


def _parts(ops: Operators, height: int) -> int:
    """The number of parts of equal height that maps are cut into; each part counts as a sample.

    Samples are the channels of the gradient's convolution, and fill whole blocks. With more parts, less of a
    block is empty, but more rows of x are in two parts.
    """
    counts = [
        count for count in range(1, height + 1) if height % count == 0 and height // count >= FEWEST_ROWS
    ]
    return min(counts or [1], key=lambda count: (ops.wide(ops.rows * count) * (height // count), count))


def _as_kernel(ops: Operators, go: Maps, parts: int) -> str:
    """go as kernel: (out / B, n / B, rows, columns, B of n, B of out); n are the parts of all samples."""
    b, outs, n = ops.block, go.padded // ops.block, ops.rows * parts
    wide, area = ops.wide(n), go.area // parts
    value = ops.transpose(go.name, (ops.rows, outs, parts, area * b), (0, 2, 1, 3))
    value = ops.pad_after(value, (n, go.padded * area), (wide, go.padded * area))
    value = ops.transpose(value, (wide // b, b, outs, area, b), (2, 0, 3, 1, 4))
    return ops.reshape(value, go.padded, wide, go.height // parts, go.width)


def _split(
    ops: Operators, x: str, shape: tuple[int, int, int, int], window: Window, split: Pair
) -> tuple[str, int, int]:
    """x with its padding, cut into parts of rows that overlap: (n * parts, images, rows, columns).

    shape: images, height, width and inner size of x. split: parts, and rows of go in each. Also returns the
    numbers of rows and columns.
    """
    images, height, width, inner = shape
    parts, rows = split[0], (split[1] - 1) * window.stride[0] + window.kernel[0]
    (top, left), (bottom, right) = window.before, window.after
    if parts == 1:  # the convolution adds the rows
        top = bottom = 0
    before, after = (0, top, left * inner), (0, bottom, right * inner)
    value = ops.pad(x, (ops.rows * images, height, width * inner), before, after)
    height, columns = height + top + bottom, (width + left + right) * inner
    if parts == 1:
        return value, height, columns
    chosen = [
        image * height + part * split[1] * window.stride[0] + row
        for part in range(parts)
        for image in range(images)
        for row in range(rows)
    ]
    value = ops.reshape(value, ops.rows, images * height, columns)
    return ops.emit("Gather", value, ops.integers(*chosen), axis=1), rows, columns


def _reached(
    ops: Operators, x: str, shape: tuple[int, int, int, int], go: Maps, kernel: Kernel
) -> tuple[str, Pair, Window]:
    """Cuts the places off x that no kernel reaches; returns the rest, its size, and the window that fits.

    shape: images, height, width and inner size of x.
    """
    images, height, width, inner = shape
    window = kernel.window
    if kernel.places == 1 and window.stride != (1, 1) and window.before == (0, 0):  # every stride-th place
        value = ops.reshape(x, ops.rows * images, height, width, inner)
        value = ops.cut(value, 1, height, step=window.stride[0])
        value = ops.cut(value, 2, width, step=window.stride[1])
        return value, (go.height, go.width), Window((1, 1))
    sizes, value = [height, width], x
    after = []
    for axis, results in enumerate((go.height, go.width)):
        reach = (results - 1) * window.stride[axis] + window.kernel[axis] - window.before[axis]
        if reach < sizes[axis]:
            value = ops.cut(ops.reshape(value, ops.rows * images, *sizes, inner), 1 + axis, reach)
            sizes[axis] = reach
        after.append(reach - sizes[axis])
    return value, _pair(sizes), replace(window, after=_pair(after))


def _depthwise_gradient(ops: Operators, x: Maps, go: Maps, kernel: Kernel) -> str | None:
    """The kernel gradient of a depthwise convolution: each map convolved with its own part of go."""
    b, count = ops.block, ops.rows * x.padded
    value, size, window = _reached(ops, x.name, (x.padded // b, x.height, x.width, b), go, kernel)
    flat = (count // b * size[0], size[1] * b)
    value = ops.pad(value, flat, (0, window.before[1] * b), (0, window.after[1] * b))
    over = Window(
        (go.height, go.width),
        before=(window.before[0], 0),
        after=(window.after[0], 0),
        dilation=window.stride,
    )
    value = ops.reshape(value, 1, count, size[0], size[1] + window.before[1] + window.after[1])
    as_kernel = ops.reshape(go.name, count, 1, go.height, go.width)
    value = ops.emit("Conv", value, as_kernel, domain=DOMAIN, group=count, **over.attributes)
    value = ops.sum_over_samples(ops.reshape(value, ops.rows, x.padded * kernel.places))
    value = ops.blocks_outside(value, x.padded // b, kernel.places)
    value = ops.reshape(value, x.padded, 1, *kernel.window.kernel)
    return value if x.padded == x.channels else ops.cut(value, 0, x.channels)
