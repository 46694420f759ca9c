"""Gradients, and a few forwards, written in operators that ONNX has.

Used while tracing, in place of torch's fused kernels. Shapes: x (n, channels, height, width), go the
gradient of an operator's output, w the weight (out, in / groups, kernel height, kernel width).
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

MEAN = 1  # torch's code for reduction="mean"
LARGE_AREA = 256  # places of a feature map from which on moving whole maps is cheaper than cutting taps


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
    """Gradients of input, weight and bias of a 2-d convolution, each None where `mask` says so."""
    if transposed or x.dim() != 4:
        raise NotImplementedError("only two-dimensional convolutions that are not transposed can be trained")
    shape = (tuple(stride), tuple(padding), tuple(dilation), groups)
    grad_input = _convolution_input(go, x, w, shape) if mask[0] else None
    grad_weight = _convolution_weight(go, x, w, shape) if mask[1] else None
    return grad_input, grad_weight, go.sum((0, 2, 3)) if mask[2] else None


def _convolution_input(go: Tensor, x: Tensor, w: Tensor, shape: Any) -> Tensor:
    """At stride 1 a convolution with the flipped kernel, faster on ONNX Runtime than ConvTranspose."""
    stride, padding, dilation, groups = shape
    out, inner, *kernel = w.shape
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if stride == (1, 1) and all(r >= p for r, p in zip(reach, padding, strict=True)):
        flipped = w.reshape(groups, out // groups, inner, *kernel).transpose(1, 2)
        flipped = flipped.reshape(groups * inner, out // groups, *kernel)
        if max(kernel) > 1:
            flipped = flipped.flip((2, 3))
        pad = [r - p for r, p in zip(reach, padding, strict=True)]
        return aten.convolution(go, flipped, None, [1, 1], pad, dilation, False, [0, 0], groups)
    covered = [
        (go.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + reach[i] + 1 for i in range(2)
    ]  # rows and columns of x that the kernel touched; the rest is output padding
    rest = [x.shape[2 + i] - covered[i] for i in range(2)]
    return aten.convolution(go, w, None, stride, padding, dilation, True, rest, groups)


def _convolution_weight(go: Tensor, x: Tensor, w: Tensor, shape: Any) -> Tensor:
    """One matrix product per kernel tap: on ONNX Runtime faster than im2col, and with less memory."""
    groups = shape[3]
    out, inner, rows, columns = w.shape
    large = go.shape[2] * go.shape[3] >= LARGE_AREA
    meetings = _shifted if shape[0] == (1, 1) else _taps
    if inner == 1 and out == groups:  # depthwise
        products = [(part * tap).sum((0, 2, 3)) for part, tap in meetings(go, x, w, shape)]
        return torch.stack(products, 1).reshape(w.shape)
    if large and groups == 1:  # without transposed copies
        pairs = meetings(go, x, w, shape)
        products = [torch.bmm(part.flatten(2), tap.flatten(2).transpose(1, 2)) for part, tap in pairs]
        product = torch.cat(products, 2).sum(0)
    else:
        pairs = meetings(go.transpose(0, 1), x.transpose(0, 1), w, shape)
        products = [
            torch.bmm(part.reshape(groups, out // groups, -1), tap.reshape(groups, inner, -1).transpose(1, 2))
            for part, tap in pairs
        ]
        product = torch.cat(products, 2).reshape(out, -1)
    return product.reshape(out, rows * columns, inner).transpose(1, 2).reshape(w.shape)


def _shifted(go: Tensor, x: Tensor, w: Tensor, shape: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What met at each place of the kernel, at stride 1: go moved by rows, x by columns, zeros for the rest.

    Of a kernel of 3x3 these are six tensors for nine taps.
    """
    _, padding, dilation, _ = shape
    tops = [i * dilation[0] - padding[0] for i in range(w.shape[2])]
    lefts = [j * dilation[1] - padding[1] for j in range(w.shape[3])]
    parts = [_moved(go, 2, -top, x.shape[2]) for top in tops]
    taps = [_moved(x, 3, left, go.shape[3]) for left in lefts]
    yield from ((part, tap) for part in parts for tap in taps)


def _moved(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    """`size` places of x from `start` on along a dimension, zeros where it has none."""
    if start == 0 and size == x.shape[dim]:
        return x
    pads = [0, 0] * (x.dim() - 1 - dim) + [-start, start + size - x.shape[dim]]
    return aten.constant_pad_nd(x, pads, 0.0)


def _taps(go: Tensor, x: Tensor, w: Tensor, shape: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What met at each place of the kernel: go, and a part of the padded x."""
    stride, padding, dilation, _ = shape
    if any(padding):
        x = aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]], 0.0)
    spans = [(go.shape[2 + i] - 1) * stride[i] + 1 for i in range(2)]
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            top, left = i * dilation[0], j * dilation[1]
            yield go, x[:, :, top : top + spans[0] : stride[0], left : left + spans[1] : stride[1]]


def max_pool_backward(go: Tensor, x: Tensor, *settings: Any) -> Tensor:
    """Adds each gradient to where its maximum was; the last of `settings` is torch's flat indices."""
    indices = settings[-1]
    zeros = torch.zeros_like(x).flatten(2)
    return zeros.scatter_add(2, indices.flatten(2), go.flatten(2)).reshape(x.shape)


def nll_loss(x: Tensor, y: Tensor, weight: Any, reduction: int, ignore: int) -> tuple[Tensor, Tensor]:
    """Mean of -x[i, y[i]]; x: (n, classes) log-probabilities, y: (n,). The second result is unused."""
    _only_plain_mean(weight, reduction)
    return -x.gather(1, y.unsqueeze(1)).squeeze(1).mean(), x.new_zeros(())


def nll_loss_backward(go: Tensor, x: Tensor, y: Tensor, weight: Any, *settings: Any) -> Tensor:
    """-1/n where y says so, else 0."""
    _only_plain_mean(weight, settings[0])
    one_hot = (y.unsqueeze(1) == torch.arange(x.shape[1]).unsqueeze(0)).to(x.dtype)
    return one_hot * (-go / x.shape[0])


def _only_plain_mean(weight: Any, reduction: int) -> None:
    if weight is not None or reduction != MEAN:
        raise NotImplementedError("only the plain mean cross-entropy can be trained")


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
    shift = -mean * scale
    if b is not None:
        shift = shift + b.reshape(per_channel)
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
    """Gradients of input, weight and bias; mean and rstd: (n, groups).

    All follow from two sums over each channel of a sample: of go, and of go * normalised x.
    """
    per_channel = [groups, channels // groups]
    mean, rstd = mean.unsqueeze(2), rstd.unsqueeze(2)
    sums = go.flatten(2).sum(2).reshape(n, *per_channel)
    products = ((go * x).flatten(2).sum(2).reshape(n, *per_channel) - mean * sums) * rstd
    grad_input = None
    if mask[0]:
        weight = go.new_ones(1, *per_channel) if w is None else w.reshape(1, *per_channel)
        per_value = rstd / (per_channel[1] * area)
        from_variance = -(products * weight).sum(2, keepdim=True) * per_value * rstd
        from_mean = -(sums * weight).sum(2, keepdim=True) * per_value
        along_x = _affine(x, from_variance, from_mean - from_variance * mean)
        grad_input = along_x + _affine(go, rstd * weight)
    grad_weight = products.sum(0).reshape(channels) if mask[1] else None
    return grad_input, grad_weight, sums.sum(0).reshape(channels) if mask[2] else None


def _affine(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """x (n, channels, ...) * scale + shift, both (n, groups, channels of a group) or one for each group."""
    flat = x.reshape(scale.shape[0], scale.shape[1] * scale.shape[2], -1)
    y = flat * scale.reshape(scale.shape[0], -1, 1)
    return (y if shift is None else y + shift.reshape(scale.shape[0], -1, 1)).reshape(x.shape)


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
    """Gradients of input, weight and bias where the running statistics, (channels,), are those used."""
    if training:
        raise NotImplementedError("batch statistics are differentiated in plain operators")
    rstd = torch.rsqrt(running_var + eps)
    per_channel = [1, -1] + [1] * (x.dim() - 2)
    rest = [0, *range(2, x.dim())]
    sums = go.sum(rest)
    grad_weight = ((go * x).sum(rest) - running_mean * sums) * rstd if mask[1] else None
    scale = rstd if w is None else rstd * w
    return go * scale.reshape(per_channel) if mask[0] else None, grad_weight, sums if mask[2] else None


def threshold_backward(go: Tensor, x: Tensor, threshold: float) -> Tensor:
    """Passes on what came from above the threshold; on ONNX Runtime a product is faster than a choice."""
    return go * (x > threshold).to(go.dtype)


def hardtanh_backward(go: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Passes on what came from between the bounds."""
    return go * ((x > low) & (x < high)).to(go.dtype)


def select_backward(go: Tensor, sizes: Sequence[Any], dim: int, index: int) -> Tensor:
    """Zeros, but for one slice along `dim`."""
    dim %= len(sizes)
    start = index % sizes[dim]
    return _embed(go.unsqueeze(dim), sizes, dim, start)


def slice_backward(go: Tensor, sizes: Sequence[Any], dim: int, start: int, end: int, step: int) -> Tensor:
    """Zeros, but for the range of the slice."""
    if step != 1:
        raise NotImplementedError(f"a slice of step {step} cannot be trained, step 1 can")
    dim %= len(sizes)
    return _embed(go, sizes, dim, start + sizes[dim] if start < 0 else start)


def _embed(go: Tensor, sizes: Sequence[Any], dim: int, start: int) -> Tensor:
    after = sizes[dim] - start - go.shape[dim]
    return aten.constant_pad_nd(go, [0, 0] * (len(sizes) - 1 - dim) + [start, after], 0.0)


def embedding_backward(go: Tensor, indices: Tensor, rows: int, padding_index: int, scale: bool) -> Tensor:
    """Adds each gradient to the row that was looked up; go: (..., width), result (rows, width)."""
    if scale:
        raise NotImplementedError("embeddings with gradients scaled by frequency cannot be trained")
    if padding_index >= 0:  # this row stays as it is
        go = go * (indices != padding_index).to(go.dtype).unsqueeze(-1)
    width = go.shape[-1]
    return torch.zeros(rows, width).scatter_add(
        0, indices.reshape(-1, 1).expand(-1, width), go.reshape(-1, width)
    )


# Where no gradient is asked for, ONNX's own normalisation serves better.
GRADIENTS_ONLY = (aten.native_group_norm.default,)

RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.threshold_backward.default: threshold_backward,
    aten.hardtanh_backward.default: hardtanh_backward,
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    aten.embedding_dense_backward.default: embedding_backward,
}
