"""Large linear layers whose weight gradient is written where it is wanted, not into new memory first.

Memory of megabytes that is taken and given back in each step is taken from the system anew each time, which
may cost more than the gradient itself; and the copy is saved.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Slots = dict[str, Tensor]
"""Name of a weight -> where its gradient shall be; a layer takes out the one it has filled."""

LARGE = 1 << 16
"""Values of a weight: 256 KiB. Smaller blocks the C library keeps."""


def write_gradients(module: nn.Module, slots: Slots) -> None:
    """Changes the module's large linear layers so that they fill `slots`, which may be empty at any call.

    A layer that is run more than once in a pass fills its slot once; the other gradients are added to that
    by torch, in new memory.
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
    """x (n, in), weight (out, in), bias (out,) or None -> (n, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, where: tuple[str, Slots]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.where = where
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        name, slots = ctx.where
        grad = None
        if for_weight:
            slot = slots.pop(name, None)
            grad = slope.t() @ x if slot is None else torch.mm(slope.t(), x, out=slot)
        return slope @ weight if for_x else None, grad, slope.sum(0) if for_bias else None, None
