"""DistilBERT and RoBERTa for sequences of tokens, as the `transformers` library builds them.

The library's parameters keep their names behind the prefix `model.`: `model.distilbert.embeddings...` of
`DistilBertForSequenceClassification`, `model.roberta.encoder...` of `RobertaForSequenceClassification`. Its
checkpoints load with or without that prefix; those of a language model want a new head (`--new-head`).
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import ExportError
from models.torch_weights import Checkpoints

LIBRARY = "transformers"
DISTILBERT_PADDING = 0
ROBERTA_PADDING = 1


@dataclass(frozen=True)
class Places:
    """Where a model of the library has what: module names, without the prefix."""

    embeddings: str
    layers: str
    before_head: str  # one linear layer, which checkpoints of the bare network lack
    head: str
    spare: tuple[str, ...]  # in checkpoints, and of no use here


class SequenceClassifier(nn.Module):
    """Token ids to logits. The head takes what the library makes of the first token.

    Levels are thirds of the layers, the embeddings are low, what lies between layers and head is up. Dropout
    and the library's fused attention are left out: a bundle is exported in eval mode, and plain products and
    softmax are what ONNX Runtime can train.
    """

    def __init__(
        self, model: nn.Module, places: Places, given: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        super().__init__()
        self.model = model
        self.given = given
        self.checkpoints = Checkpoints("model.", (places.before_head,), places.spare)
        depth = len(model.get_submodule(places.layers))
        ends = (max(1, depth // 3), max(2, 2 * depth // 3), depth)
        layers = [f"model.{places.layers}.{index}" for index in range(depth)]
        names = ("low", "mid", "up")
        self.level_outputs = {level: layers[end - 1] for level, end in zip(names, ends, strict=True)}
        self.levels = {f"model.{places.embeddings}": "low", f"model.{places.before_head}": "up"}
        for index, layer in enumerate(layers):
            self.levels[layer] = names[sum(index >= end for end in ends[:2])]
        self.levels[f"model.{places.head}"] = "head"

    def forward(self, x: Tensor) -> Tensor:
        """(n, length) int64 -> (n, classes)."""
        return self.model(input_ids=x, return_dict=False, **self.given(x))[0]


def distilbert(
    vocabulary: int = 30522,
    classes: int = 2,
    length: int = 512,
    dim: int = 768,
    depth: int = 6,
    heads: int = 12,
) -> SequenceClassifier:
    """DistilBERT (Sanh et al. 2019) for texts of up to `length` tokens, filled up behind with id 0.

    The MLP is four times as wide as a token. Random weights come from torch's global generator. Raises
    ExportError if transformers is not installed, ValueError for sizes that do not fit.
    """
    library = _library()
    _check(depth, dim, heads)
    config = library.DistilBertConfig(
        vocab_size=vocabulary, max_position_embeddings=length, dim=dim, n_layers=depth, n_heads=heads,
        hidden_dim=4 * dim, num_labels=classes, pad_token_id=DISTILBERT_PADDING, attn_implementation="eager",
    )  # fmt: skip
    model = library.DistilBertForSequenceClassification(config)
    places = Places(
        "distilbert.embeddings", "distilbert.transformer.layer", "pre_classifier", "classifier",
        spare=("distilbert.embeddings.position_ids",),
    )  # fmt: skip
    return SequenceClassifier(model, places, _distilbert_inputs)


def roberta(
    vocabulary: int = 50265,
    classes: int = 2,
    length: int = 512,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
) -> SequenceClassifier:
    """RoBERTa (Liu et al. 2019); texts are filled up with id 1; everything else as in `distilbert`."""
    library = _library()
    _check(depth, dim, heads)
    config = library.RobertaConfig(
        vocab_size=vocabulary, max_position_embeddings=length + ROBERTA_PADDING + 1, hidden_size=dim,
        num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * dim, num_labels=classes,
        type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=ROBERTA_PADDING, bos_token_id=0, eos_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    model = library.RobertaForSequenceClassification(config)
    places = Places(
        "roberta.embeddings", "roberta.encoder.layer", "classifier.dense", "classifier.out_proj",
        spare=("roberta.embeddings.position_ids", "roberta.pooler"),
    )  # fmt: skip
    return SequenceClassifier(model, places, _roberta_inputs)


def _distilbert_inputs(x: Tensor) -> dict[str, Tensor]:
    positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    return {"attention_mask": _mask(x, DISTILBERT_PADDING), "position_ids": positions}


def _roberta_inputs(x: Tensor) -> dict[str, Tensor]:
    """Real tokens are counted from 2, padding is at 1."""
    real = (x != ROBERTA_PADDING).to(x.dtype)
    return {
        "attention_mask": _mask(x, ROBERTA_PADDING),
        "position_ids": real.cumsum(1) * real + ROBERTA_PADDING,
        "token_type_ids": torch.zeros_like(x),
    }


def _mask(x: Tensor, padding: int) -> Tensor:
    """What is added to the attention scores, (n, 1, 1, length); given so, the library leaves it as it is."""
    least = torch.finfo(torch.float32).min
    return ((x == padding).to(torch.float32) * least).reshape(x.shape[0], 1, 1, x.shape[1])


def _library() -> Any:
    try:
        return importlib.import_module(LIBRARY)
    except ImportError as error:
        raise ExportError(f"this network needs {LIBRARY}; pip install {LIBRARY}") from error


def _check(depth: int, dim: int, heads: int) -> None:
    if depth < 3:
        raise ValueError(f"depth is {depth}, expected at least 3, one layer for each level")
    if dim % heads:
        raise ValueError(f"{heads} heads do not divide a width of {dim}")
