"""From texts to the input of a network, as a bundle's manifest says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .file import Tokenizer

if TYPE_CHECKING:
    from device_runtime.models.bundles.inputs import TextInput

LONGEST = 1 << 16
"""Characters of a text that are looked at: more than fill the input of any network here."""


@dataclass(frozen=True)
class Texts:
    """`length`: tokens of the input, the fixed ones around a text among them."""

    spec: TextInput
    tokenizer: Tokenizer
    length: int

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(n, length): what stands before, the text as far as there is room, what stands behind, padding.

        Spaces and ends of lines around a text are no part of it.
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
