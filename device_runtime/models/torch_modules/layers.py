"""Gradients of convolutions, linear layers and norms, written to run fast on a CPU.

Convolutions and norms are for traced graphs, in operators that ONNX Runtime runs fast; linear layers are for
training in torch.

Convolutions go along one or two dimensions; one along one dimension is computed as one of maps with a single
row. Shapes: x (n, in, height, width), go the gradient of the result (n, out, height, width), w the weight
(out, in / groups, kernel height, kernel width).

Large linear layers write their weight gradient into the buffer where it is needed, not into new memory first.
The system allocates new memory of megabytes in each step, which may cost more time than the gradient itself;
and a copy is saved.

Norms and their gradients take few passes over memory. Shapes: x (n, channels, ...), go the gradient of the
result, w and b (channels,).
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

aten = torch.ops.aten

LARGE_AREA = 256  # places of a map from which on a product for each sample beats transposed copies
FEW_CHANNELS = 8  # with fewer, products are too narrow to be fast, and all places of the kernel share one


@dataclass(frozen=True)
class ConvolutionSize:
    """Sizes of a convolution; each pair is (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def convolution_backward(
    go: Tensor,
    x: Tensor,
    w: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias of a 1-d or 2-d convolution, each None where `mask` says so.

    A transposed convolution is the gradient of the input of one with the same weight: its own gradients are
    that convolution, and the weight's gradient with x and go exchanged.
    """
    if x.dim() not in (3, 4):
        raise NotImplementedError("only convolutions along one or two dimensions can be trained")
    if x.dim() == 3:
        go, x, w = (tensor.unsqueeze(2) for tensor in (go, x, w))
        flat = ([1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups, mask)
        of_x, of_w, of_bias = convolution_backward(go, x, w, bias_sizes, *flat)
        return (
            None if of_x is None else of_x.squeeze(2),
            None if of_w is None else of_w.squeeze(2),
            of_bias,
        )
    kernel, stride, padding, dilation = (_pair(sizes) for sizes in (w.shape[2:], stride, padding, dilation))
    shape = ConvolutionSize(kernel, stride, padding, dilation, groups)
    if transposed:
        back = aten.convolution(go, w, None, stride, padding, dilation, False, [0, 0], groups)
        of_w = _convolution_weight(x, go, w, shape) if mask[1] else None
        return back if mask[0] else None, of_w, go.sum((0, 2, 3)) if mask[2] else None
    grad_input = _convolution_input(go, x, w, shape) if mask[0] else None
    grad_weight = _convolution_weight(go, x, w, shape) if mask[1] else None
    return grad_input, grad_weight, go.sum((0, 2, 3)) if mask[2] else None


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return int(sizes[0]), int(sizes[1])


def _convolution_input(go: Tensor, x: Tensor, w: Tensor, shape: ConvolutionSize) -> Tensor:
    """The gradient of the input; at stride 1 a convolution with the flipped kernel.

    ONNX Runtime runs that faster than ConvTranspose.
    """
    stride, padding, dilation, groups = shape.stride, shape.padding, shape.dilation, shape.groups
    reach = [d * (k - 1) for d, k in zip(dilation, shape.kernel, strict=True)]
    pad = [r - p for r, p in zip(reach, padding, strict=True)]
    if stride == (1, 1) and min(pad) >= 0:
        return aten.convolution(go, _flipped(w, groups), None, [1, 1], pad, dilation, False, [0, 0], groups)
    covered = [
        (go.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + reach[i] + 1 for i in range(2)
    ]  # rows and columns of x that the kernel touched; the rest is output padding
    rest = [x.shape[2 + i] - covered[i] for i in range(2)]
    return aten.convolution(go, w, None, stride, padding, dilation, True, rest, groups)


def _flipped(w: Tensor, groups: int) -> Tensor:
    """(out, in / groups, rows, columns) -> (in, out / groups, rows, columns), rotated by 180 degrees."""
    out, inner, *kernel = w.shape
    if groups > 1:
        w = w.reshape(groups, out // groups, inner, *kernel).transpose(1, 2)
        w = w.reshape(groups * inner, out // groups, *kernel)
    else:
        w = w.transpose(0, 1)
    return w.flip((2, 3)) if max(kernel) > 1 else w


def _convolution_weight(go: Tensor, x: Tensor, w: Tensor, shape: ConvolutionSize) -> Tensor:
    """The gradient of the weight, by one matrix product for each place of the kernel.

    On ONNX Runtime this is faster than im2col and takes less memory.
    """
    groups = shape.groups
    out, inner, rows, columns = w.shape
    if inner == 1 and out == groups:  # depthwise
        parts, taps = _products_at_kernel_places(go, x, shape)
        return torch.stack([(part * tap).sum((0, 2, 3)) for part in parts for tap in taps], 1).reshape(
            w.shape
        )
    by_sample = groups == 1 and go.shape[2] * go.shape[3] >= LARGE_AREA
    if by_sample:  # a product for each sample: no transposed copies
        parts, taps = _products_at_kernel_places(go, x, shape)
        parts, taps = ([maps.flatten(2) for maps in several] for several in (parts, taps))
    else:
        parts, taps = _products_at_kernel_places(go.transpose(0, 1), x.transpose(0, 1), shape)
        parts, taps = ([_grouped(maps, groups) for maps in several] for several in (parts, taps))
    if inner < FEW_CHANNELS:
        taps = [torch.cat(taps, 1)]
    turned = [tap.transpose(1, 2) for tap in taps]
    product = torch.cat([torch.bmm(part, tap) for part in parts for tap in turned], 2)
    if by_sample:
        product = product.sum(0)
    return product.reshape(out, rows * columns, inner).transpose(1, 2).reshape(w.shape)


def _grouped(maps: Tensor, groups: int) -> Tensor:
    """(channels, n, rows, columns) -> (groups, channels of a group, places)."""
    return maps.reshape(groups, maps.shape[0] // groups, -1)


def _products_at_kernel_places(
    go: Tensor, x: Tensor, shape: ConvolutionSize
) -> tuple[list[Tensor], list[Tensor]]:
    """Parts of go and parts of x; each pair of them, in order, was multiplied at one place of the kernel.

    At stride 1 go is shifted by rows and x by columns: a kernel of 3x3 takes six tensors for nine places.
    """
    tops, lefts = (
        [i * shape.dilation[axis] - shape.padding[axis] for i in range(shape.kernel[axis])] for axis in (0, 1)
    )
    rows, columns = go.shape[2:]
    if shape.stride == (1, 1):
        ups = [-top for top in tops]
        return list(_windows(go, 2, ups, (x.shape[2], 1))), list(_windows(x, 3, lefts, (columns, 1)))
    cuts = _windows(x, 2, tops, (rows, shape.stride[0]))
    return [go], [tap for cut in cuts for tap in _windows(cut, 3, lefts, (columns, shape.stride[1]))]


def _windows(x: Tensor, dim: int, starts: Sequence[int], extent: tuple[int, int]) -> Iterator[Tensor]:
    """For each start, extent[0] places of x along a dimension, extent[1] apart, with zeros beyond its ends.

    All are cut from one padded copy, which ONNX Runtime runs faster than one padding for each.
    """
    size, step = extent
    span = (size - 1) * step + 1
    before, after = max(0, -min(starts)), max(0, max(starts) + span - x.shape[dim])
    if before or after:
        padded = aten.constant_pad_nd(x, [0, 0] * (x.dim() - 1 - dim) + [before, after], 0.0)
    else:
        padded = x
    for start in starts:
        whole = start == 0 and span == size == x.shape[dim]
        yield x if whole else aten.slice(padded, dim, before + start, before + start + span, step)


# Linear layers

Slots = dict[str, Tensor]
"""Name of a weight -> buffer for its gradient; a layer removes the entry that it has filled."""

LARGE = 1 << 16
"""Least number of values in a large weight: 256 KiB. The C library keeps smaller blocks for reuse."""


def write_gradients(module: nn.Module, slots: Slots) -> None:
    """Changes the module's large linear layers so that they write weight gradients into `slots`.

    `slots` may be empty at any call. A layer that runs more than once in a pass fills its slot once; torch
    adds the other gradients to that, in new memory.
    """
    for name, part in module.named_modules():
        if type(part) is nn.Linear and part.weight.numel() >= LARGE:
            part.forward = _forward(f"{name}.weight", part, slots)


def _forward(name: str, part: nn.Linear, slots: Slots) -> Any:
    def forward(x: Tensor) -> Tensor:
        if x.dim() != 2:
            return functional.linear(x, part.weight, part.bias)
        return _Linear.apply(x, part.weight, part.bias, (name, slots))

    return forward


class _Linear(torch.autograd.Function):
    """A linear layer: x (n, in), weight (out, in), bias (out,) or None -> (n, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, where: tuple[str, Slots]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.where = where
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, go: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        name, slots = ctx.where
        grad = None
        if for_weight:
            slot = slots.pop(name, None)
            grad = go.t() @ x if slot is None else torch.mm(go.t(), x, out=slot)
        return go @ weight if for_x else None, grad, go.sum(0) if for_bias else None, None


# Norms


def group_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, n: Any, channels: int, area: Any, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, and mean and reciprocal deviation of each group (n, groups). Wu and He 2018, eq. 1 to 6."""
    flat = x.reshape(n, groups, -1)
    mean = flat.mean(2, keepdim=True)
    centred = flat - mean
    rstd = torch.rsqrt((centred * centred).mean(2, keepdim=True) + eps)
    per_channel = [1, groups, channels // groups]
    scale = rstd if w is None else rstd * w.reshape(per_channel)
    shift = mean * scale
    shift = -shift if b is None else b.reshape(per_channel) - shift
    return _affine(x, scale, shift), mean.squeeze(2), rstd.squeeze(2)


def group_norm_backward(
    go: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    w: Tensor | None,
    n: Any,
    channels: int,
    area: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias of a group norm; mean and rstd: (n, groups).

    All follow from two sums over each channel of a sample: of go, and of go * normalised x.
    """
    per_channel = [groups, channels // groups]
    mean, rstd = mean.unsqueeze(2), rstd.unsqueeze(2)
    places = list(range(2, x.dim()))
    sums = _summed(go, places).reshape(n, *per_channel)
    products = (_summed(go * x, places).reshape(n, *per_channel) - mean * sums) * rstd
    grad_input = None
    if mask[0]:
        weight = go.new_ones(1, *per_channel) if w is None else w.reshape(1, *per_channel)
        per_value = rstd / (per_channel[1] * area)
        from_variance = (products * weight).sum(2, keepdim=True) * per_value * rstd
        from_mean = (sums * weight).sum(2, keepdim=True) * per_value
        along_x = _affine(x, from_variance, from_mean - from_variance * mean)
        grad_input = _affine(go, rstd * weight) - along_x
    grad_weight = products.sum(0).reshape(channels) if mask[1] else None
    return grad_input, grad_weight, sums.sum(0).reshape(channels) if mask[2] else None


def _summed(x: Tensor, places: Sequence[int]) -> Tensor:
    """The sum over these axes; torch's `sum([])` sums over all of them."""
    return x.sum(places) if places else x


def _affine(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """x (n, channels, ...) * scale + shift, both (n, groups, channels of a group) or (n, groups, 1)."""
    n, groups, width = scale.shape
    if groups * width == x.shape[1]:
        maps, shape = x, [n, groups * width] + [1] * (x.dim() - 2)
    else:
        maps, shape = x.reshape(n, groups, -1), [n, groups, 1]
    y = maps * scale.reshape(shape)
    return (y if shift is None else y + shift.reshape(shape)).reshape(x.shape)


def batch_norm_backward(
    go: Tensor,
    x: Tensor,
    w: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    saved_mean: Any,
    saved_rstd: Any,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias of a batch norm that uses running statistics, (channels,)."""
    if training:
        raise NotImplementedError("batch statistics are differentiated in plain operators")
    rstd = torch.rsqrt(running_var + eps)
    per_channel = [1, -1] + [1] * (x.dim() - 2)
    rest = [0, *range(2, x.dim())]
    sums = go.sum(rest)
    grad_weight = ((go * x).sum(rest) - running_mean * sums) * rstd if mask[1] else None
    scale = rstd if w is None else rstd * w
    return go * scale.reshape(per_channel) if mask[0] else None, grad_weight, sums if mask[2] else None


def batch_norm(x: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Result, and mean and variance of each channel of the batch. Ioffe and Szegedy 2015, algorithm 1."""
    axes, per_channel = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    mean = x.mean(axes)
    centred = x - mean.reshape(per_channel)
    variance = (centred * centred).mean(axes)
    scale = w * torch.rsqrt(variance + eps)
    return x * scale.reshape(per_channel) + (b - mean * scale).reshape(per_channel), mean, variance


def batch_statistics_backward(
    go: Tensor, x: Tensor, w: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias of `batch_norm`; mean and variance: (channels,)."""
    axes, per_channel = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    rstd = torch.rsqrt(variance + eps)
    of_bias = go.mean(axes)
    of_weight = ((go * x).mean(axes) - mean * of_bias) * rstd
    scale = w * rstd
    along = scale * rstd * of_weight
    rest = (along * mean - scale * of_bias).reshape(per_channel)
    grad_input = go * scale.reshape(per_channel) - x * along.reshape(per_channel) + rest
    count = torch.ones_like(x[:, :1]).sum()  # a tensor: the batch size is not known while tracing
    return grad_input, of_weight * count, of_bias * count
