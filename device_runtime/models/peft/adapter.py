"""Adapters: a residual bottleneck after each feed-forward block.

Houlsby et al. 2019; FedPEFT, section 4. An adapter computes h + up(GELU(down(h))) on the block's result h,
before its shortcut is added, as in FedPEFT's algorithm 3. Convolutional networks have adapters of
convolutions with a kernel of 1 after each residual block. The bottleneck is width // reduction wide. FedPEFT
states a reduction of 8, but its 0.23 million parameters for ViT-B are those of bottlenecks that are 8 wide:
reduction 96.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .places import PeftPlace, convolutional_blocks, feed_forward_blocks, no_place_error
from .settings import Value

TRAINED = ("adapter_down", "adapter_down_bias", "adapter_up", "adapter_up_bias")


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds random down-projections and up-projections of 0. Raises ExportError if there are no blocks."""
    places = feed_forward_blocks(module, head) or convolutional_blocks(module, head)
    if not places:
        raise no_place_error(
            module,
            "adapter",
            "modules named mlp, ffn or output.dense, or blocks of convolutions listed in a Sequential",
        )
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    for place in places:
        _add(place, max(1, place.width // int(settings["reduction"])), generator)


def _add(place: PeftPlace, inner: int, generator: torch.Generator) -> None:
    area = (1,) * place.axes
    bound = place.width**-0.5
    down = torch.empty(inner, place.width, *area).uniform_(-bound, bound, generator=generator)
    values = (down, torch.zeros(inner), torch.zeros(place.width, inner, *area), torch.zeros(place.width))
    for name, value in zip(TRAINED, values, strict=True):
        place.module.register_parameter(name, nn.Parameter(value))
    place.module.register_forward_hook(_adapt)


def _adapt(block: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    apply = (functional.linear, functional.conv1d, functional.conv2d)[block.adapter_down.dim() - 2]
    inner = functional.gelu(apply(output, block.adapter_down, block.adapter_down_bias))
    return output + apply(inner, block.adapter_up, block.adapter_up_bias)
