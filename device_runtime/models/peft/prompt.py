"""Prompt tuning: trained tokens that are added to the input of every block, different in each.

VPT-deep (Jia et al. 2022, equations 6 and 7). A block gets its prompts after the other tokens, and its
outputs for them are dropped. Attention has no order, so this equals VPT's sequence, and the class token keeps
its place. No mask hides a prompt.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .places import BLOCKS, no_place_error, transformer_blocks
from .settings import Value

TRAINED = ("prompt_tokens",)


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds prompts (tokens, dim) to each block, uniform as in VPT. Raises ExportError if it has no blocks."""
    blocks = transformer_blocks(module)
    if not blocks:
        raise no_place_error(module, "prompt", BLOCKS)
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    for block in blocks.values():
        dim = next(layer.in_features for layer in block.modules() if isinstance(layer, nn.Linear))
        bound = (3 / dim) ** 0.5  # Glorot's, for dim inputs and outputs
        drawn = torch.empty(int(settings["tokens"]), dim).uniform_(-bound, bound, generator=generator)
        block.prompt_tokens = nn.Parameter(drawn)
        block.register_forward_pre_hook(_append, with_kwargs=True)
        block.register_forward_hook(_drop)


def _append(block: nn.Module, inputs: Any, named: Mapping[str, Any]) -> Any:
    """(n, tokens, dim) -> (n, tokens + prompts, dim), and masks to match."""
    prompts = block.prompt_tokens
    (x, *rest), count = inputs, len(prompts)
    x = torch.cat([x, prompts.expand(x.shape[0], -1, -1)], 1)
    return (x, *(_mask_with_prompts(argument, count) for argument in rest)), {
        name: _mask_with_prompts(argument, count) for name, argument in named.items()
    }


def _mask_with_prompts(value: Any, prompts: int) -> Any:
    """A mask (n, 1, 1 or tokens, tokens), with no prompt hidden; any other value as it is."""
    if not isinstance(value, Tensor) or value.dim() != 4:
        return value
    return pad(value, (0, prompts, 0, prompts if value.shape[2] > 1 else 0))


def _drop(block: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output[:, : output.shape[1] - block.prompt_tokens.shape[0]]
