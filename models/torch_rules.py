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
    if inner == 1 and out == groups:  # depthwise
        products = [(tap * go).sum((0, 2, 3)) for tap in _taps(go, x, w, shape)]
        return torch.stack(products, 1).reshape(w.shape)
    channels_first = x.transpose(0, 1)
    if groups == 1:
        flat = go.transpose(0, 1).reshape(out, -1)
        products = [torch.mm(flat, tap.reshape(inner, -1).t()) for tap in _taps(go, channels_first, w, shape)]
    else:
        flat = go.transpose(0, 1).reshape(groups, out // groups, -1)
        products = [
            torch.bmm(flat, tap.reshape(groups, inner, -1).transpose(1, 2)).reshape(out, inner)
            for tap in _taps(go, channels_first, w, shape)
        ]
    return torch.cat(products, 1).reshape(out, rows * columns, inner).transpose(1, 2).reshape(w.shape)


def _taps(go: Tensor, x: Tensor, w: Tensor, shape: Any) -> Iterator[Tensor]:
    """For each place of the kernel, the part of the padded input that it met: (.., .., *area of go)."""
    stride, padding, dilation, _ = shape
    if any(padding):
        x = aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]], 0.0)
    spans = [(go.shape[2 + i] - 1) * stride[i] + 1 for i in range(2)]
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            top, left = i * dilation[0], j * dilation[1]
            yield x[:, :, top : top + spans[0] : stride[0], left : left + spans[1] : stride[1]]


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
    y = (centred * rstd).reshape(x.shape)
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    if w is not None:
        y = y * w.reshape(per_channel)
    if b is not None:
        y = y + b.reshape(per_channel)
    return y, mean.squeeze(2), rstd.squeeze(2)


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
    """Gradients of input, weight and bias; mean and rstd: (n, groups)."""
    scale = rstd.unsqueeze(2)
    normal = (x.reshape(n, groups, -1) - mean.unsqueeze(2)) * scale
    rest = [0, *range(2, x.dim())]
    grad_input = None
    if mask[0]:
        g = go if w is None else go * w.reshape([1, channels] + [1] * (x.dim() - 2))
        g = g.reshape(n, groups, -1)
        slope = g - g.mean(2, keepdim=True) - normal * (g * normal).mean(2, keepdim=True)
        grad_input = (scale * slope).reshape(x.shape)
    grad_weight = (go * normal.reshape(x.shape)).sum(rest) if mask[1] else None
    return grad_input, grad_weight, go.sum(rest) if mask[2] else None


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
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    aten.embedding_dense_backward.default: embedding_backward,
}
