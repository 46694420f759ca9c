"""Prefix tuning: trained keys and values that every attention layer has in addition to those of its tokens.

Li and Liang 2021, but trained directly, without the network that computes prefixes there.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from device_runtime.models.errors import ExportError

from .places import BLOCKS, no_place_error, transformer_blocks
from .settings import Value

TRAINED = ("prefix_keys", "prefix_values")
ATTENTION = "device_runtime_prefixed"
"""The name of `prefixed_attention` among the attention functions of the library `transformers`."""


class Prefixed(nn.Module):
    """Multi-head self-attention with additional keys and values; replaces timm's forward."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(n, tokens, dim) -> the same shape."""
        if attn_mask is not None or is_causal:
            raise ValueError("attention with prefixes takes no mask")
        n, tokens, _ = x.shape
        heads, width = self.num_heads, self.qkv.out_features // 3 // self.num_heads
        parts = self.qkv(x).reshape(n, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        q, k, v = parts.reshape(3, n * heads, tokens, width).unbind(0)
        k = torch.cat([k, _for_batch(self.prefix_keys, n)], 1)
        v = torch.cat([v, _for_batch(self.prefix_values, n)], 1)
        weights = torch.bmm(q * width**-0.5, k.transpose(1, 2)).softmax(2)
        mixed = torch.bmm(weights, v).reshape(n, heads, tokens, width).transpose(1, 2)
        return self.proj(mixed.reshape(n, tokens, heads * width))


def _for_batch(prefix: Tensor, n: int) -> Tensor:
    """(heads, prefixes, width) -> (n * heads, prefixes, width)."""
    return prefix.expand(n, -1, -1, -1).reshape(-1, *prefix.shape[1:])


def prefixed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention of a text network, with the prefixes of `module` if it has any.

    query, key, value: (n, heads, tokens, width). mask: (n, 1, 1 or tokens, tokens), added to the scores.
    Returns (n, tokens, heads, width).
    """
    if hasattr(module, "prefix_keys"):
        n, count = query.shape[0], module.prefix_keys.shape[1]
        key = torch.cat([key, module.prefix_keys.expand(n, -1, -1, -1)], 2)
        value = torch.cat([value, module.prefix_values.expand(n, -1, -1, -1)], 2)
        mask = pad(mask, (0, count))
    weights = (torch.matmul(query, key.transpose(2, 3)) * scaling + mask).softmax(3)
    return torch.matmul(weights, value).transpose(1, 2), None


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds keys and values (heads, tokens, width) to each of the first `blocks` blocks; 0: to all.

    Raises ExportError for a network without such blocks, or whose attention does more than timm's default.
    """
    blocks = transformer_blocks(module)
    if not blocks:
        raise no_place_error(module, "prefix", BLOCKS)
    chosen = dict(islice(blocks.items(), int(settings["blocks"]) or None))
    attentions = [_attention(name, block) for name, block in chosen.items()]
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    for attention, heads, dim in attentions:
        shape = (heads, int(settings["tokens"]), dim // heads)
        bound = (3 / dim) ** 0.5  # as for prompts
        for trained in TRAINED:
            drawn = torch.empty(shape).uniform_(-bound, bound, generator=generator)
            attention.register_parameter(trained, nn.Parameter(drawn))
        if hasattr(attention, "qkv"):
            own = type(attention)
            attention.__class__ = type(f"Prefixed{own.__name__}", (Prefixed, own), {})
        else:
            _use_prefixed_attention(attention)


def _attention(name: str, block: nn.Module) -> tuple[nn.Module, int, int]:
    """The attention of a block, its number of heads, and the width of all together."""
    if hasattr(block, "attn"):
        _check_plain(f"{name}.attn", block.attn)
        return block.attn, block.attn.num_heads, block.attn.qkv.out_features // 3
    attention: Any = next(part for part in block.modules() if hasattr(part, "scaling"))
    return attention, attention.config.num_attention_heads, attention.config.hidden_size


def _use_prefixed_attention(attention: Any) -> None:
    from transformers import AttentionInterface  # only where the network is one of this library

    AttentionInterface.register(ATTENTION, prefixed_attention)
    attention.config._attn_implementation = ATTENTION


def _check_plain(name: str, attention: nn.Module) -> None:
    for part in ("q_norm", "k_norm", "norm", "gate"):
        extra = getattr(attention, part, None)
        if extra is not None and not isinstance(extra, nn.Identity):
            raise ExportError(f"tunable set prefix needs plain attention; {name} has {part}")
