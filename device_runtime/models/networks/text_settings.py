"""Special tokens and published sizes of the text networks; does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from device_runtime.models.errors import ExportError


@dataclass(frozen=True)
class Framing:
    """Special tokens around a text, and the id of the padding after it.

    causal: each token sees only those before it, and the prediction is read at the last token; that of other
    networks is read at a mask.
    """

    padding: int
    start: bool = True  # [CLS] or <s>; of a causal network </s>
    end: bool = True  # [SEP] or </s>
    causal: bool = False


FRAMING: Mapping[str, Framing] = {
    "lstm": Framing(padding=0, start=False, end=False),
    "gru": Framing(padding=0, start=False, end=False),
    "bert": Framing(padding=0),
    "distilbert": Framing(padding=0),
    "roberta": Framing(padding=1),
    "opt": Framing(padding=1, end=False, causal=True),
}
"""Short name of a network -> special tokens."""


# Sizes of networks in folders of the `transformers` library

_LIKE_BERT = {
    "vocabulary": "vocab_size",
    "length": "max_position_embeddings",
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "bert": _LIKE_BERT,
    "distilbert": {**_LIKE_BERT, "dim": "dim", "depth": "n_layers", "heads": "n_heads"},
    "roberta": _LIKE_BERT,
    "opt": _LIKE_BERT,
}
"""Short name -> our settings, with their names in config.json."""
INNER = {
    "bert": "intermediate_size",
    "distilbert": "hidden_dim",
    "roberta": "intermediate_size",
    "opt": "ffn_dim",
}
"""Short name -> name in config.json of the MLP's width, which must be four times that of a token."""


def sizes_of(name: str, config: Mapping[str, Any]) -> dict[str, int]:
    """Our settings of the network `name`, from a config.json of `transformers`.

    Raises ExportError for a network of another kind or proportions.
    """
    if name not in SETTINGS:
        raise ExportError(f"{name} is not read from a folder; {', '.join(SETTINGS)} are")
    if config.get("model_type") != name:
        raise ExportError(f"config.json is of model_type {config.get('model_type')!r}, expected {name}")
    names, inner = SETTINGS[name], INNER[name]
    if missing := [theirs for theirs in (*names.values(), inner) if not isinstance(config.get(theirs), int)]:
        raise ExportError(f"config.json has no number {missing[0]}")
    sizes = {ours: int(config[theirs]) for ours, theirs in names.items()}
    width = sizes["dim"]
    if config[inner] != 4 * width or config.get("word_embed_proj_dim", width) != width:
        raise ExportError(
            f"config.json is of a {name} of other proportions: {inner} {config[inner]}, {width} wide"
        )
    if name == "roberta":
        sizes["length"] -= 2  # positions begin after that of padding, at 2
    return sizes
