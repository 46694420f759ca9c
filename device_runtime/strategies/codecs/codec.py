"""What the parts of a codec are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Parts = Mapping[str, NDArray[Any]]
"""The arrays that stand for one tensor on the wire: the main one by "", others by a short name."""

MAIN = ""


class CodecError(ValueError):
    """A word that names no codec. The message says what was expected."""


class Numbers(Protocol):
    """A shorter way to write float32 numbers, with a loss. Equal numbers give equal bits everywhere."""

    name: str
    beside: tuple[str, ...]
    """The parts beside the main one."""

    def write(self, values: NDArray[np.float32]) -> Parts | None:
        """`values`, finite, at least one; None where they cannot be written, or nothing is gained by it."""

    def read(self, parts: Parts, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """What was written, as near as it is kept; not finite where the parts are not what `write` makes.

        Raises TensorError for parts of other names, shapes or dtypes.
        """

    def size(self, values: int) -> float:
        """Bytes of so many numbers, in one tensor, before anything packs them."""


class Packing(Protocol):
    """Fewer bytes for the same bytes."""

    name: str

    def pack(self, data: bytes) -> bytes:
        """The same content in fewer bytes, if there is anything to gain."""

    def unpack(self, data: bytes, most: int) -> bytes:
        """What was packed. Raises TensorError for what was not, and as soon as over `most` bytes come."""

    def most(self, size: int) -> int:
        """How many bytes the packing of `size` bytes may have."""
