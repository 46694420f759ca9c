"""Normalisation and its gradients in few passes over memory.

Shapes: x (n, channels, ...), go the gradient of the result, w and b (channels,).
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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
    """Gradients of input, weight and bias; mean and rstd: (n, groups).

    All follow from two sums over each channel of a sample: of go, and of go * normalised x.
    """
    per_channel = [groups, channels // groups]
    mean, rstd = mean.unsqueeze(2), rstd.unsqueeze(2)
    places = list(range(2, x.dim()))
    sums = go.sum(places).reshape(n, *per_channel)
    products = ((go * x).sum(places).reshape(n, *per_channel) - mean * sums) * rstd
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
