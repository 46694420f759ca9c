"""Samples as numpy stores them: .npy, one or many; and how any array becomes a bundle's input."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .refusal import Refused

DAMAGED = (
    OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, ArithmeticError, MemoryError,
    SyntaxError, RecursionError, tokenize.TokenError,
)  # fmt: skip
"""What numpy raises for a file that is none of its own: it reads the header as Python."""


@dataclass(frozen=True)
class Stored:
    """values: one sample of the input's shape, or many (n, ..); an axis of one channel may be missing."""

    values: NDArray[Any]

    @property
    def form(self) -> str:
        return f"{self.values.dtype} {self.values.shape}"

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """(n, *shape). Raises Refused for another shape, or what are no numbers."""
        shapes = [given.shape, given.shape[1:]] if given.shape[:1] == (1,) else [given.shape]
        values = self.values
        if values.dtype.kind not in "buif":
            raise Refused("x is no array of numbers", f"{values.dtype}")
        if values.shape not in shapes and (values.ndim == 0 or values.shape[1:] not in shapes):
            raise Refused("another shape than the task's input", f"{values.shape}, expected {given.shape}")
        return values.reshape(-1, *given.shape)


def decode(data: bytes) -> Stored:
    """A .npy file. Raises Refused for what is none, ends too early or holds objects."""
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGED as error:
        raise Refused("not a .npy file", str(error)[:200]) from None
    if not isinstance(values, np.ndarray):
        raise Refused("not a .npy file", "an archive of several")
    return Stored(values)
