"""Channels innermost: how images lie in memory where torch trains them fastest on a CPU.

Convolutions, pooling and norms keep the layout of their input. Against channels outermost a training step
takes 0.8 to 0.9 of the time (WRN, SqueezeNet, MobileNetV2, DS-CNN, two plain convolutions; on ViT the same).
"""
# mypy: allow-untyped-calls, allow-any-unimported

from typing import Any

import torch
from torch import Tensor, nn

INNERMOST = torch.channels_last
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def channels_innermost(x: Tensor) -> Tensor:
    """Images (n, c, h, w) copied to that layout, strides of a single channel included; all else as it is."""
    if x.dim() != 4 or not x.is_floating_point():
        return x
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=INNERMOST).copy_(x)


def keep_layout(module: nn.Module) -> None:
    """Changes the module's poolings so that they hand gradients on in the layout of what they gave.

    What flattens a map behind them hands back gradients with channels outermost, and everything below, which
    is larger, would be copied from one layout to the other. A group norm that nothing is trained below works
    on channels outermost: torch 2.13 reads a null pointer where the gradient of its input is not wanted.
    """
    for part in module.modules():
        if isinstance(part, POOLS):
            part.register_forward_hook(_keep)
        elif isinstance(part, nn.GroupNorm):
            part.register_forward_pre_hook(_outermost)
            part.register_forward_hook(_back)


def _outermost(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    return None if inputs[0].requires_grad else (inputs[0].contiguous(), *inputs[1:])


def _back(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
    return output.contiguous(memory_format=INNERMOST) if output.dim() == 4 else None


def _keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
    if output.requires_grad and output.is_contiguous(memory_format=INNERMOST):
        output.register_hook(_innermost)


def _innermost(grad: Tensor) -> Tensor:
    return grad.contiguous(memory_format=INNERMOST)
