"""LoRA: a layer's weight W becomes W + alpha / rank * B A with small A and B.

Hu et al. 2022, equation 3. For a convolution, A is a convolution with the same kernel and `rank` channels,
and B one with a kernel of 1.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .places import CONVOLUTIONS, no_place_error, weighted_layers
from .settings import Value

TRAINED = ("lora_a", "lora_b")
ATTENTION = ("qkv", "q", "v", "q_lin", "v_lin", "q_proj", "v_proj", "query", "value", "to_q", "to_v")
"""Last parts of layer names: timm's joint projection, or queries and values only, as Hu et al. advise."""


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
    """Adds a random A and a B of 0 to each layer. Raises ExportError if no layer can have them."""
    layers = _layers(module, head)
    if settings["targets"] == "attention":
        layers = {n: m for n, m in layers.items() if n.rpartition(".")[2] in ATTENTION} or layers
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
