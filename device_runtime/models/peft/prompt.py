"""Prompt tuning: trained tokens that are added to the input of every block, different in each.

VPT-deep (Jia et al. 2022, equations 6 and 7). A block gets its prompts after the other tokens, and its
outputs for them are dropped. Attention has no order, so this equals VPT's sequence, and the class token keeps
its place.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .places import no_place_error, transformer_blocks
from .settings import Value

TRAINED = ("prompt_tokens",)
BLOCKS = "blocks with attn.qkv, attn.proj, attn.num_heads and mlp, as in timm's VisionTransformer"


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds prompts (tokens, dim) to each block, uniform as in VPT. Raises ExportError if it has no blocks."""
    blocks = transformer_blocks(module)
    if not blocks:
        raise no_place_error(module, "prompt", BLOCKS)
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    for block in blocks.values():
        dim = block.attn.qkv.in_features
        bound = (3 / dim) ** 0.5  # Glorot's, for dim inputs and outputs
        drawn = torch.empty(int(settings["tokens"]), dim).uniform_(-bound, bound, generator=generator)
        block.prompt_tokens = nn.Parameter(drawn)
        block.register_forward_pre_hook(_append)
        block.register_forward_hook(_drop)


def _append(block: nn.Module, inputs: Any) -> Any:
    """(n, tokens, dim) -> (n, tokens + prompts, dim)."""
    x, *rest = inputs
    return torch.cat([x, block.prompt_tokens.expand(x.shape[0], -1, -1)], 1), *rest


def _drop(block: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output[:, : output.shape[1] - block.prompt_tokens.shape[0]]
