"""What each network of texts wants around a text; known without torch."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framing:
    """Special tokens around a text, and the id that fills up behind it.

    causal: each token sees those before it alone, and the network answers at the last; others at a mask.
    """

    padding: int
    start: bool = True  # [CLS] or <s>; of a causal network </s>
    end: bool = True  # [SEP] or </s>
    causal: bool = False


FRAMING: Mapping[str, Framing] = {
    "lstm": Framing(padding=0, start=False, end=False),
    "gru": Framing(padding=0, start=False, end=False),
    "distilbert": Framing(padding=0),
    "roberta": Framing(padding=1),
    "opt": Framing(padding=1, end=False, causal=True),
}
"""By short name."""
