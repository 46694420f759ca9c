"""Classifiers of token sequences with BERT, DistilBERT, RoBERTa or OPT from the `transformers` library.

The library's parameters keep their names after the prefix `model.`: `model.distilbert.embeddings...` of
`DistilBertForSequenceClassification`, `model.roberta.encoder...` of `RobertaForSequenceClassification`. Its
checkpoints load with or without that prefix. Checkpoints of a language model need a new head (`--new-head`),
or `words`: ids of one word for each class, whose rows of the language model's own head become the head. Such
a network's prediction is read at the token `mask` (DistilBERT, RoBERTa) or after the last token (OPT).
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.parameters import Checkpoints

from .convolutional import mean_state, thirds
from .text_settings import FRAMING

LIBRARY = "transformers"
_MASKED = "mask is {}, expected the id of the mask token, at which the network answers with one of the words"


def bert(
    vocabulary: int = 30522,
    classes: int = 2,
    length: int = 512,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
) -> SequenceClassifier:
    """BERT (Devlin et al. 2019), whose head takes the mean over the tokens of the last layer.

    That is the sentence of sentence encoders (Reimers and Gurevych 2019), such as MiniLM; a file's pooler is
    not used. Everything else as in `distilbert`, without words.
    """
    library = _library()
    _check(depth, dim, heads)
    config = library.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=length, hidden_size=dim, num_hidden_layers=depth,
        num_attention_heads=heads, intermediate_size=4 * dim, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = nn.Module()
    model.bert = library.BertModel(config, add_pooling_layer=False)
    model.classifier = nn.Linear(dim, classes)
    spare = ("bert.pooler", "bert.embeddings.position_ids")
    places = ModelParts(
        ("bert.embeddings",), "bert.encoder.layer", (), "classifier", "bert.embeddings.word_embeddings",
        Checkpoints("model.", spare=spare, adapt=_bert_names),
    )  # fmt: skip
    return SequenceClassifier(model, places, _bert)


def distilbert(
    vocabulary: int = 30522,
    classes: int = 2,
    length: int = 512,
    dim: int = 768,
    depth: int = 6,
    heads: int = 12,
    words: str = "",
    mask: int = -1,
) -> SequenceClassifier:
    """DistilBERT (Sanh et al. 2019) for texts of up to `length` tokens, padded at the end with id 0.

    The MLP is four times as wide as a token. `words` are ids separated by commas. Random weights come from
    torch's global generator. Raises ExportError if transformers is not installed, ValueError for sizes or ids
    that do not fit.
    """
    library, ids = _library(), _words(words, classes, vocabulary, mask)
    _check(depth, dim, heads)
    config = library.DistilBertConfig(
        vocab_size=vocabulary, max_position_embeddings=length, dim=dim, n_layers=depth, n_heads=heads,
        hidden_dim=4 * dim, num_labels=classes, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    spare = ("distilbert.embeddings.position_ids",)
    places = ModelParts(
        ("distilbert.embeddings",), "distilbert.transformer.layer", ("pre_classifier",), "classifier",
        "distilbert.embeddings.word_embeddings", Checkpoints("model.", ("pre_classifier",), spare),
    )  # fmt: skip
    if not ids:
        model = library.DistilBertForSequenceClassification(config)
        return SequenceClassifier(model, places, _distilbert)
    places = replace(places, above=("vocab_transform", "vocab_layer_norm"), head="vocab_projector")
    places = _answering(places, ids, ("vocab_projector.bias",))
    model = library.DistilBertForMaskedLM(config)
    use_words_as_head(model, places, ids)
    return SequenceClassifier(model, places, partial(_distilbert_at, mask=mask))


def roberta(
    vocabulary: int = 50265,
    classes: int = 2,
    length: int = 512,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
    words: str = "",
    mask: int = -1,
) -> SequenceClassifier:
    """RoBERTa (Liu et al. 2019); texts are padded with id 1; everything else as in `distilbert`."""
    library, ids = _library(), _words(words, classes, vocabulary, mask)
    _check(depth, dim, heads)
    config = library.RobertaConfig(
        vocab_size=vocabulary, max_position_embeddings=length + 2, hidden_size=dim, num_labels=classes,
        num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * dim, type_vocab_size=1,
        layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    spare = ("roberta.embeddings.position_ids", "roberta.pooler")
    places = ModelParts(
        ("roberta.embeddings",), "roberta.encoder.layer", ("classifier.dense",), "classifier.out_proj",
        "roberta.embeddings.word_embeddings", Checkpoints("model.", ("classifier.dense",), spare),
    )  # fmt: skip
    if not ids:
        model = library.RobertaForSequenceClassification(config)
        return SequenceClassifier(model, places, _roberta)
    places = replace(places, above=("lm_head.dense", "lm_head.layer_norm"), head="lm_head.decoder")
    places = _answering(places, ids, ("lm_head.decoder.bias", "lm_head.bias"))
    model = library.RobertaForMaskedLM(config)
    use_words_as_head(model, places, ids)
    del model.lm_head.bias  # the same as that of its decoder
    return SequenceClassifier(model, places, partial(_roberta_at, mask=mask))


def opt(
    vocabulary: int = 50272,
    classes: int = 2,
    length: int = 2048,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
    words: str = "",
) -> SequenceClassifier:
    """OPT (Zhang et al. 2022): each token sees those before it; the head takes the state of the last token.

    Texts are padded at the end with id 1; everything else as in `distilbert`. The sizes are those of
    OPT-125M; OPT-350M, which normalises after its layers, is another network.
    """
    library, ids = _library(), _words(words, classes, vocabulary, 0)
    _check(depth, dim, heads)
    config = library.OPTConfig(
        vocab_size=vocabulary, max_position_embeddings=length, hidden_size=dim, word_embed_proj_dim=dim,
        num_hidden_layers=depth, num_attention_heads=heads, ffn_dim=4 * dim, num_labels=classes,
        pad_token_id=1, bos_token_id=2, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    parts = ("model.decoder.embed_tokens", "model.decoder.embed_positions")
    places = ModelParts(
        parts, "model.decoder.layers", ("model.decoder.final_layer_norm",), "score", parts[0],
        Checkpoints("model.", adapt=_opt_names),
    )  # fmt: skip
    if not ids:
        return SequenceClassifier(library.OPTForSequenceClassification(config), places, _opt)
    places = _answering(replace(places, head="lm_head"), ids, ())
    model = library.OPTForCausalLM(config)
    use_words_as_head(model, places, ids)
    return SequenceClassifier(model, places, _opt)


def _bert(model: Any, x: Tensor) -> Tensor:
    states = model.bert(
        input_ids=x, token_type_ids=torch.zeros_like(x), return_dict=False, **_bert_inputs(x)
    )[0]
    logits: Tensor = model.classifier(mean_state(states, x != FRAMING["bert"].padding))
    return logits


def _distilbert(model: Any, x: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=x, return_dict=False, **_bert_inputs(x))[0]
    return logits


def _distilbert_at(model: Any, x: Tensor, mask: int) -> Tensor:
    states = model.distilbert(input_ids=x, return_dict=False, **_bert_inputs(x))[0]
    inner = model.activation(
        model.vocab_transform(mean_state(states, mask_places(x, mask, FRAMING["distilbert"].padding)))
    )
    logits: Tensor = model.vocab_projector(model.vocab_layer_norm(inner))
    return logits


def _roberta(model: Any, x: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=x, return_dict=False, **_roberta_inputs(x))[0]
    return logits


def _roberta_at(model: Any, x: Tensor, mask: int) -> Tensor:
    states = model.roberta(input_ids=x, return_dict=False, **_roberta_inputs(x))[0]
    logits: Tensor = model.lm_head(mean_state(states, mask_places(x, mask, FRAMING["roberta"].padding)))
    return logits


def _opt(model: Any, x: Tensor) -> Tensor:
    padding = FRAMING["opt"].padding
    states = model.model(
        input_ids=x, attention_mask=mask(x, padding, causal=True), use_cache=False, return_dict=False,
        position_ids=_positions(x, padding) - 1,
    )[0]  # fmt: skip
    head = model.lm_head if hasattr(model, "lm_head") else model.score
    logits: Tensor = head(mean_state(states, last(x, padding)))
    return logits


def _bert_inputs(x: Tensor) -> dict[str, Tensor]:
    """Inputs of BERT and DistilBERT: positions count from 0, padding included."""
    positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    return {"attention_mask": mask(x, FRAMING["bert"].padding), "position_ids": positions}


def _roberta_inputs(x: Tensor) -> dict[str, Tensor]:
    """Inputs of RoBERTa: positions of real tokens count from 2, padding is at 1."""
    padding = FRAMING["roberta"].padding
    return {
        "attention_mask": mask(x, padding),
        "position_ids": _positions(x, padding) + padding,
        "token_type_ids": torch.zeros_like(x),
    }


def _positions(x: Tensor, padding: int) -> Tensor:
    """Positions of real tokens, from 1; 0 for padding."""
    real = (x != padding).to(x.dtype)
    return real.cumsum(1) * real


def _bert_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds `bert.` before the names of a bare encoder's file."""
    bare = ("embeddings.", "encoder.", "pooler.")
    return {f"bert.{n}" if n.startswith(bare) else n: value for n, value in tensors.items()}


def _opt_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds `model.` before `decoder.`, which the first published files lack."""
    return {f"model.{n}" if n.startswith("decoder.") else n: value for n, value in tensors.items()}


def _answering(places: ModelParts, ids: tuple[int, ...], biases: tuple[str, ...]) -> ModelParts:
    """The ModelParts for a checkpoint of a language model: the rows of `ids` of its head become the head."""
    before: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = places.files.adapt or dict

    def adapt(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return with_word_head(before(tensors), places, ids, biases)

    return replace(places, files=replace(places.files, absent=(), adapt=adapt))


def _words(words: str, classes: int, vocabulary: int, mask: int) -> tuple[int, ...]:
    """Parses and checks the ids of the words; empty for a new head. Raises ValueError."""
    ids = tuple(int(word) for word in str(words).split(",") if word)
    if ids and (len(set(ids)) != classes or len(ids) != classes):
        raise ValueError(f"words are {words} for {classes} classes: expected a different id for each")
    if any(not 0 <= number < vocabulary for number in ids):
        raise ValueError(f"words are {words}, expected ids from 0 to {vocabulary - 1}")
    if ids and not 0 <= mask < vocabulary:
        raise ValueError(_MASKED.format(mask))
    return ids


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


# Parts that all four networks share


@dataclass(frozen=True)
class ModelParts:
    """Names of the parts of a model of the library, without the prefix."""

    embeddings: Sequence[str]
    layers: str
    above: Sequence[str]  # between layers and head
    head: str
    words: str  # the embedding of words
    files: Checkpoints


class SequenceClassifier(nn.Module):
    """A classifier of token ids around a model of the library; `logits` computes (model, ids) -> logits.

    Levels are thirds of the layers, which `transformer_layers` names; the embeddings are low, parts between
    layers and head are up. There is no dropout, since a bundle is exported in eval mode, and no fused
    attention, since ONNX Runtime can train plain products and softmax only.
    """

    def __init__(self, model: nn.Module, places: ModelParts, logits: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.checkpoints, self._logits = places.files, logits
        depth = len(model.get_submodule(places.layers))
        self.transformer_layers = layers = [f"model.{places.layers}.{index}" for index in range(depth)]
        self.level_outputs, of_layers = thirds(layers)
        self.levels = {f"model.{part}": "low" for part in places.embeddings}
        self.levels |= {f"model.{part}": "up" for part in places.above}
        self.levels |= {**of_layers, f"model.{places.head}": "head"}

    def forward(self, x: Tensor) -> Tensor:
        """(n, length) int64 -> (n, classes)."""
        return self._logits(self.model, x)


def use_words_as_head(model: nn.Module, places: ModelParts, words: Sequence[int]) -> None:
    """Replaces the head over all words by its rows for these words.

    The labels are then words, and a text is classified as in MeZO (Malladi et al. 2023, appendix E).
    """
    whole = model.get_submodule(places.head)
    rows = nn.Linear(whole.in_features, len(words), whole.bias is not None)
    with torch.no_grad():
        rows.weight.copy_(model.get_submodule(places.words).weight[list(words)])
        if rows.bias is not None:
            rows.bias.zero_()
    model.set_submodule(places.head, rows)


def with_word_head(
    tensors: Mapping[str, Tensor], places: ModelParts, words: Sequence[int], biases: Sequence[str]
) -> dict[str, Tensor]:
    """The tensors of a language model's file, with the head replaced by its rows for these words.

    If the file has no head, the embedding of words is the head. `biases`: possible names of the head's bias.
    """
    state = {name: value for name, value in tensors.items() if name not in biases}
    weight = f"{places.head}.weight"
    whole = state.get(weight, state.get(f"{places.words}.weight"))
    bias = next((tensors[name] for name in biases if name in tensors), None)
    if whole is not None and len(whole) > max(words) and len(whole) != len(words):
        state[weight] = whole[list(words)].clone()
    if bias is not None:
        state[f"{places.head}.bias"] = bias[list(words)].clone() if len(bias) > max(words) else bias
    return state


def last(x: Tensor, padding: int) -> Tensor:
    """A mask that is True at the last token that is not padding, bool (n, length)."""
    real = (x != padding).to(torch.int64)
    return (real.cumsum(1) * real == real.sum(1, keepdim=True)) & (x != padding)


def mask_places(x: Tensor, mask: int, padding: int) -> Tensor:
    """The places of the id `mask`, or of the last token in a text without it, bool (n, length)."""
    masks = x == mask
    none = masks.to(torch.int64).sum(1, keepdim=True) == 0
    return masks | (none & last(x, padding))


def mask(x: Tensor, padding: int, causal: bool = False) -> Tensor:
    """The attention mask to add to the scores, (n, 1, 1 or length, length): 0, or the least float32.

    The library does not change a mask of this shape.
    """
    least = torch.finfo(torch.float32).min
    hidden = (x == padding).reshape(x.shape[0], 1, 1, x.shape[1])
    if causal:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = hidden | (places[None, :] > places[:, None])
    return hidden.to(torch.float32) * least
