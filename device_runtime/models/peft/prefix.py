"""Prefix tuning: trained keys and values that every attention layer has in addition to those of its tokens.

Li and Liang 2021, but trained directly, without the network that computes prefixes there.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from device_runtime.models.errors import ExportError

from .places import no_place_error, transformer_blocks
from .prompt import BLOCKS
from .settings import Value

TRAINED = ("prefix_keys", "prefix_values")


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


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds keys and values (heads, tokens, width) to each of the first `blocks` blocks; 0: to all.

    Raises ExportError for a network without such blocks, or whose attention does more than timm's default.
    """
    blocks = transformer_blocks(module)
    if not blocks:
        raise no_place_error(module, "prefix", BLOCKS)
    blocks = dict(islice(blocks.items(), int(settings["blocks"]) or None))
    for name, block in blocks.items():
        _check_plain(f"{name}.attn", block.attn)
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    for block in blocks.values():
        attention = block.attn
        dim = attention.qkv.out_features // 3
        shape = (attention.num_heads, int(settings["tokens"]), dim // attention.num_heads)
        bound = (3 / dim) ** 0.5  # as for prompts
        for trained in TRAINED:
            drawn = torch.empty(shape).uniform_(-bound, bound, generator=generator)
            attention.register_parameter(trained, nn.Parameter(drawn))
        own = type(attention)
        attention.__class__ = type(f"Prefixed{own.__name__}", (Prefixed, own), {})


def _check_plain(name: str, attention: nn.Module) -> None:
    for part in ("q_norm", "k_norm", "norm", "gate"):
        extra = getattr(attention, part, None)
        if extra is not None and not isinstance(extra, nn.Identity):
            raise ExportError(f"tunable set prefix needs plain attention; {name} has {part}")
