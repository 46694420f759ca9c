"""Turns texts into the input of a network, as a bundle's manifest specifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.text.file import Tokenizer

if TYPE_CHECKING:
    from device_runtime.models.bundles.inputs import TextInput

LONGEST = 1 << 16
"""Characters of a text that are read; they more than fill the input of any network here."""


@dataclass(frozen=True)
class Texts:
    """Makes inputs of texts. length: tokens of an input, including the fixed ones around a text."""

    spec: TextInput
    tokenizer: Tokenizer
    length: int

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Token ids (n, length): the fixed ones before, the text cut to fit, the fixed ones after, padding.

        Whitespace around a text is removed.
        """
        made = np.full((len(texts), self.length), self.spec.padding, np.int64)
        room = self.length - len(self.spec.before) - len(self.spec.after)
        for row, text in zip(made, texts, strict=True):
            found = (
                *self.spec.before,
                *islice(self.tokenizer.ids(text.strip()[:LONGEST]), room),
                *self.spec.after,
            )
            row[: len(found)] = found
        return made
