"""The parameters that each method adds to a network.

Adapters: a residual bottleneck after each feed-forward block.

Houlsby et al. 2019; FedPEFT, section 4. An adapter computes h + up(GELU(down(h))) on the block's result h,
before its shortcut is added, as in FedPEFT's algorithm 3. Convolutional networks have adapters of
convolutions with a kernel of 1 after each residual block. The bottleneck is width // reduction wide. FedPEFT
states a reduction of 8, but its 0.23 million parameters for ViT-B are those of bottlenecks that are 8 wide:
reduction 96.

LoRA: a layer's weight W becomes W + alpha / rank * B A with small A and B.

Hu et al. 2022, equation 3. For a convolution, A is a convolution with the same kernel and `rank` channels,
and B one with a kernel of 1.

Sparse fine-tuning through one random mask, the same on every device.

Stage 1 of SLoRA (Babakniya et al. 2023): the weight of each layer stays as it was, plus k trained values at k
places that are drawn once.

Prompt tuning: trained tokens that are added to the input of every block, different in each.

VPT-deep (Jia et al. 2022, equations 6 and 7). A block gets its prompts after the other tokens, and its
outputs for them are dropped. Attention has no order, so this equals VPT's sequence, and the class token keeps
its place. No mask hides a prompt.

Prefix tuning: trained keys and values that every attention layer has in addition to those of its tokens.

Li and Liang 2021, but trained directly, without the network that computes prefixes there.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import pad

from device_runtime.models.errors import ExportError

from .places import (
    BLOCKS,
    CONVOLUTIONS,
    PeftPlace,
    Value,
    convolutional_blocks,
    feed_forward_blocks,
    no_place_error,
    transformer_blocks,
    weighted_layers,
)

ADAPTER_TRAINED = ("adapter_down", "adapter_down_bias", "adapter_up", "adapter_up_bias")


def add_adapter(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
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
    for name, value in zip(ADAPTER_TRAINED, values, strict=True):
        place.module.register_parameter(name, nn.Parameter(value))
    place.module.register_forward_hook(_adapt)


def _adapt(block: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    apply = (functional.linear, functional.conv1d, functional.conv2d)[block.adapter_down.dim() - 2]
    inner = functional.gelu(apply(output, block.adapter_down, block.adapter_down_bias))
    return output + apply(inner, block.adapter_up, block.adapter_up_bias)


LORA_TRAINED = ("lora_a", "lora_b")
LORA_ATTENTION = ("qkv", "q", "v", "q_lin", "v_lin", "q_proj", "v_proj", "query", "value", "to_q", "to_v")
"""Last parts of layer names: timm's joint projection, or queries and values only, as Hu et al. advise."""


def add_lora(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds a random A and a B of 0 to each layer. Raises ExportError if no layer can have them."""
    layers = _layers(module, head)
    if settings["targets"] == "attention":
        layers = {n: m for n, m in layers.items() if n.rpartition(".")[2] in LORA_ATTENTION} or layers
    if not layers:
        raise no_place_error(module, "lora", "a linear layer or ungrouped convolution besides its head")
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    rank = int(settings["rank"])
    for layer in layers.values():
        out, *inner = layer.weight.shape
        bound = prod(inner) ** -0.5  # as in the authors' code
        drawn = torch.empty(rank, *inner).uniform_(-bound, bound, generator=generator)
        layer.lora_a = nn.Parameter(drawn)
        layer.lora_b = nn.Parameter(torch.zeros(out, rank, *[1 for _ in inner[1:]]))
        layer.lora_scale = float(settings["alpha"]) / rank
        layer.register_forward_hook(_add_low_rank)


def _layers(module: nn.Module, head: str) -> dict[str, nn.Module]:
    """Layers that can have LoRA, by name.

    Not included are layers whose weight other modules read, classes with their own forward, grouped
    convolutions, and patch embeddings.
    """
    read_by_others = {
        f"{name}.out_proj" for name, m in module.named_modules() if isinstance(m, nn.MultiheadAttention)
    }
    return {
        name: layer
        for name, layer in weighted_layers(module, head).items()
        if type(layer).forward in (nn.Linear.forward, *(kind.forward for kind in CONVOLUTIONS))
        and getattr(layer, "groups", 1) == 1
        and name not in read_by_others
        and "patch_embed" not in name.split(".")
    }


def _add_low_rank(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    if isinstance(layer, CONVOLUTIONS):
        inner = layer._conv_forward(inputs[0], layer.lora_a, None)
        convolve = functional.conv1d if isinstance(layer, nn.Conv1d) else functional.conv2d
        return output + convolve(inner * layer.lora_scale, layer.lora_b)
    inner = functional.linear(inputs[0], layer.lora_a)
    return output + functional.linear(inner * layer.lora_scale, layer.lora_b)


SPARSE_TRAINED = ("sparse_values",)


class Sparse(nn.Module):
    """A layer whose weight has the trained values added, wherever it is read."""

    @property
    def weight(self) -> Tensor:
        """The sum, with the shape of the layer's own weight, which is not changed."""
        own = self._parameters["weight"]
        summed = own.flatten().scatter_add(0, self.sparse_indices, self.sparse_values)
        return summed.reshape(own.shape)


def add_sparse(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds to each layer values of 0, float32 (k,), and their places, a buffer of int64 (k,).

    A layer so small that k rounds to 0 gets none. Raises ExportError if no layer gets any.
    """
    density, seed = float(settings["density"]), int(settings["seed"])
    layers = weighted_layers(module, head).values()
    chosen = [(layer, indices(layer.weight.numel(), density, (seed, i))) for i, layer in enumerate(layers)]
    chosen = [(layer, places) for layer, places in chosen if places.size]
    if not chosen:
        needed = f"an nn.Linear, nn.Conv1d or nn.Conv2d besides its head with a place at density {density:g}"
        raise no_place_error(module, "sparse", needed)
    for layer, places in chosen:
        layer.register_buffer("sparse_indices", torch.from_numpy(places))
        layer.register_parameter("sparse_values", nn.Parameter(torch.zeros(len(places))))
        own = type(layer)
        layer.__class__ = type(f"Sparse{own.__name__}", (Sparse, own), {})


def indices(size: int, density: float, key: tuple[int, int]) -> NDArray[np.int64]:
    """round(density * size) random places of range(size), ascending, the same on every platform.

    They are the places of the smallest words of Philox4x64-10 (Salmon et al. 2011) with this key and counters
    from 1.
    """
    count = round(density * size)
    if count == 0:
        return np.empty(0, np.int64)
    words = np.random.Philox(key=np.array(key, np.uint64)).random_raw(size)
    largest = np.partition(words, count - 1)[count - 1]
    return np.flatnonzero(words <= largest)[:count].astype(np.int64)


PROMPT_TRAINED = ("prompt_tokens",)


def add_prompt(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
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


PREFIX_TRAINED = ("prefix_keys", "prefix_values")
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


def add_prefix(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
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
        for trained in PREFIX_TRAINED:
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
