"""Classifiers of token sequences around a model of the `transformers` library: what all of them share."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from device_runtime.models.export.weights import Checkpoints


@dataclass(frozen=True)
class Places:
    """Where a model of the library has what: module names, without the prefix."""

    embeddings: Sequence[str]
    layers: str
    above: Sequence[str]  # between layers and head
    head: str
    words: str  # the embedding of words
    files: Checkpoints


class SequenceClassifier(nn.Module):
    """Token ids to logits; `logits` makes them of the library's model and the ids.

    Levels are thirds of the layers, the embeddings are low, what lies between layers and head is up. Dropout
    and the library's fused attention are left out: a bundle is exported in eval mode, and plain products and
    softmax are what ONNX Runtime can train.
    """

    def __init__(self, model: nn.Module, places: Places, logits: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.checkpoints, self._logits = places.files, logits
        depth = len(model.get_submodule(places.layers))
        ends = (max(1, depth // 3), max(2, 2 * depth // 3), depth)
        layers = [f"model.{places.layers}.{index}" for index in range(depth)]
        names = ("low", "mid", "up")
        self.level_outputs = {level: layers[end - 1] for level, end in zip(names, ends, strict=True)}
        self.levels = {f"model.{part}": "low" for part in places.embeddings}
        self.levels |= {f"model.{part}": "up" for part in places.above}
        for index, layer in enumerate(layers):
            self.levels[layer] = names[sum(index >= end for end in ends[:2])]
        self.levels[f"model.{places.head}"] = "head"

    def forward(self, x: Tensor) -> Tensor:
        """(n, length) int64 -> (n, classes)."""
        return self._logits(self.model, x)


def answer_with(model: nn.Module, places: Places, words: Sequence[int]) -> None:
    """The head that gives a logit for every word becomes one for these words alone, their rows of it.

    With it the labels are words, and a text is classified as in MeZO (Malladi et al. 2023, appendix E).
    """
    whole = model.get_submodule(places.head)
    rows = nn.Linear(whole.in_features, len(words), whole.bias is not None)
    with torch.no_grad():
        rows.weight.copy_(model.get_submodule(places.words).weight[list(words)])
        if rows.bias is not None:
            rows.bias.zero_()
    model.set_submodule(places.head, rows)


def rows_of(
    tensors: Mapping[str, Tensor], places: Places, words: Sequence[int], biases: Sequence[str]
) -> dict[str, Tensor]:
    """The tensors of a language model's file, with the rows of these words in the place of its head.

    Where the file leaves the head out, it is the embedding of words. `biases`: names that its bias may have.
    """
    found = {name: value for name, value in tensors.items() if name not in biases}
    weight = f"{places.head}.weight"
    whole = found.get(weight, found.get(f"{places.words}.weight"))
    bias = next((tensors[name] for name in biases if name in tensors), None)
    if whole is not None and len(whole) > max(words) and len(whole) != len(words):
        found[weight] = whole[list(words)].clone()
    if bias is not None:
        found[f"{places.head}.bias"] = bias[list(words)].clone() if len(bias) > max(words) else bias
    return found


def taken(states: Tensor, where: Tensor) -> Tensor:
    """The mean state of the places, (n, length, width), bool (n, length) -> (n, width); zeros for none."""
    chosen = where.to(states.dtype)
    share = chosen / chosen.sum(1, keepdim=True).clamp(min=1.0)
    return torch.bmm(share.unsqueeze(1), states).squeeze(1)


def last(x: Tensor, padding: int) -> Tensor:
    """Where the last token that is no padding stands, bool (n, length)."""
    real = (x != padding).to(torch.int64)
    return (real.cumsum(1) * real == real.sum(1, keepdim=True)) & (x != padding)


def masked(x: Tensor, mask: int, padding: int) -> Tensor:
    """Where the id `mask` stands; in a text without one the last token, bool (n, length)."""
    found = x == mask
    none = found.to(torch.int64).sum(1, keepdim=True) == 0
    return found | (none & last(x, padding))


def mask(x: Tensor, padding: int, causal: bool = False) -> Tensor:
    """What is added to the attention scores, (n, 1, 1 or length, length).

    Given so, the library leaves it as it is.
    """
    least = torch.finfo(torch.float32).min
    hidden = (x == padding).reshape(x.shape[0], 1, 1, x.shape[1])
    if causal:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = hidden | (places[None, :] > places[:, None])
    return hidden.to(torch.float32) * least
