"""Sparse fine-tuning through one random mask, the same on every device.

Stage 1 of SLoRA (Babakniya et al. 2023): the weight of each layer stays as it was, plus k trained values at k
places that are drawn once.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .places import no_place_error, weighted_layers
from .settings import Value

TRAINED = ("sparse_values",)


class Sparse(nn.Module):
    """A layer whose weight has the trained values added, wherever it is read."""

    @property
    def weight(self) -> Tensor:
        """The sum, with the shape of the layer's own weight, which is not changed."""
        own = self._parameters["weight"]
        summed = own.flatten().scatter_add(0, self.sparse_indices, self.sparse_values)
        return summed.reshape(own.shape)


def add(module: nn.Module, settings: Mapping[str, Value], head: str) -> None:
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
