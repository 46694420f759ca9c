"""Writes some functions of torch in others that ONNX has, and whose gradients are known.

They act while a module is traced. The parity gate compares the graphs with torch's own functions.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Callable, Sequence
from math import log, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LEAST = -3e38
"""Below every value of float32 that a sum may have, but finite."""


class Substitutes(TorchFunctionMode):
    """Calls a function's substitute, if it has one that fits the arguments."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (substitute := SUBSTITUTES.get(func)) is not None:
            result = substitute(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """A group norm with a group for each channel, or a batch norm by running statistics."""
    if use_input_stats:
        return functional.group_norm(x, x.shape[1], weight, bias, eps)
    return functional.batch_norm(x, running_mean, running_var, weight, bias, False, 0.0, eps)


def pad(x: Tensor, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor | None:
    """Padding by copies: parts of x beside x, axis by axis. None for a constant, which ONNX pads itself."""
    if mode == "constant":
        return None
    for place in range(len(pads) // 2):
        before, after = pads[2 * place : 2 * place + 2]
        axis = x.dim() - 1 - place
        size = int(x.shape[axis])
        parts = [x]
        if before > 0:
            parts.insert(0, _beside(x, axis, before, mode, first=True))
        if after > 0:
            parts.append(_beside(x, axis, after, mode, first=False))
        x = torch.cat(parts, axis)
        if min(before, after) < 0:
            start = max(0, -before)
            x = x.narrow(axis, start, size + before + after)
    return x


def _beside(x: Tensor, axis: int, count: int, mode: str, first: bool) -> Tensor:
    """The `count` values that come before the first one along `axis`, or after the last one."""
    size = int(x.shape[axis])
    if mode == "circular":
        return x.narrow(axis, size - count if first else 0, count)
    if mode == "reflect":
        return x.narrow(axis, 1 if first else size - 1 - count, count).flip(axis)
    edge = x.narrow(axis, 0 if first else size - 1, 1)
    return torch.cat([edge] * count, axis)


def adaptive_avg_pool(x: Tensor, output_size: Any) -> Tensor | None:
    """A product with a matrix of shares for each axis. None where the sizes divide those before."""
    axes = range(2, x.dim())
    sizes = [output_size] * len(axes) if isinstance(output_size, int) else list(output_size)
    new_sizes = [int(x.shape[axis]) if size is None else size for axis, size in zip(axes, sizes, strict=True)]
    if all(int(x.shape[axis]) % size == 0 for axis, size in zip(axes, new_sizes, strict=True)):
        return None
    for axis, size in zip(axes, new_sizes, strict=True):
        length = int(x.shape[axis])
        bounds = [(place * length // size, -(-(place + 1) * length // size)) for place in range(size)]
        shares = torch.tensor(
            [[(start <= row < end) / (end - start) for start, end in bounds] for row in range(length)]
        )
        x = (x.movedim(axis, -1) @ shares).movedim(-1, axis)
    return x


def bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (.., i), weight (o, i, j), b (.., j) -> (.., o)."""
    outs, left, right = weight.shape
    along = (a @ weight.permute(1, 0, 2).reshape(left, outs * right)).unflatten(-1, (outs, right))
    y = (along * b.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + bias


def embedding_bag(  # the arguments of torch's function
    x: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """The mean, sum or maximum of the words of each row. None for bags of other lengths than the row."""
    if offsets is not None or x.dim() != 2 or max_norm is not None:
        return None
    words = functional.embedding(x, weight)
    if per_sample_weights is not None:
        words = words * per_sample_weights.unsqueeze(2)
    if padding_idx is None:
        return words.amax(1) if mode == "max" else words.sum(1) if mode == "sum" else words.mean(1)
    counts = (x != padding_idx % weight.shape[0]).to(words.dtype).unsqueeze(2)  # 0 for padding
    if mode == "max":
        most = torch.where(counts > 0, words, torch.full((), LEAST)).amax(1)
        return most * counts.amax(1)  # 0 for padding alone
    total = (words * counts).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp(min=1)


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor | None:
    """A leaky ReLU with the mean slope. None in training, where slopes are drawn."""
    return None if training else functional.leaky_relu(x, (lower + upper) / 2)


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor | None:
    """Euclidean distances of the rows of a (.., n, width) and b (.., m, width); None for others."""
    if p != 2.0:
        return None
    squares = ((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0).to(a.dtype)


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x divided by (k + alpha * mean of squares over `size` channels around) ** beta (Krizhevsky 2012)."""
    channels = int(x.shape[1])
    around = functional.pad((x * x).movedim(1, -1), (size // 2, (size - 1) // 2)).movedim(-1, 1)
    total = around.narrow(1, 0, channels)
    for shift in range(1, size):
        total = total + around.narrow(1, shift, channels)
    return x / (k + alpha / size * total) ** beta


def one_hot(y: Tensor, num_classes: int = -1) -> Tensor | None:
    """1 at the label, else 0, without torch's look at the values. None if these say how many classes."""
    if num_classes < 0:
        return None
    return (y.unsqueeze(-1) == torch.arange(num_classes)).to(torch.int64)


def gaussian_nll_loss(
    outputs: Tensor,
    targets: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Half of log(var) + (output - target)^2 / var, without torch's look at whether variances are below 0."""
    var = torch.as_tensor(var, dtype=outputs.dtype)
    if var.shape != outputs.shape and var.dim() and var.dim() == outputs.dim() - 1:
        var = var.unsqueeze(-1)
    bounded = var + (var.clamp(min=eps) - var).detach()
    off = outputs - targets
    losses = 0.5 * (torch.log(bounded) + off * off / bounded) + (0.5 * log(2 * pi) if full else 0.0)
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


SUBSTITUTES: dict[Any, Callable[..., Tensor | None]] = {
    functional.instance_norm: instance_norm,
    functional.pad: pad,
    functional.adaptive_avg_pool1d: adaptive_avg_pool,
    functional.adaptive_avg_pool2d: adaptive_avg_pool,
    functional.bilinear: bilinear,
    functional.embedding_bag: embedding_bag,
    functional.local_response_norm: local_response_norm,
    functional.one_hot: one_hot,
    functional.rrelu: rrelu,
    torch.cdist: cdist,
    functional.gaussian_nll_loss: gaussian_nll_loss,
}
