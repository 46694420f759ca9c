"""Stores many texts and their token ids compactly: as str objects they would take several times as much."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
"""Texts whose ids are made together."""
IN_MEMORY_BYTES = 1 << 20
"""Ids that take more are in a temporary file, which is mapped into memory."""

Ids = NDArray[np.int32]


class TextStore:
    """Texts one behind the other, as UTF-8."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].decode(errors="surrogatepass")

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Adds texts; their ids, which need a vocabulary, are made later: here each one's is its place."""
        first = len(self)
        for text in texts:
            self._text += text.encode(errors="surrogatepass")
            self._ends.append(len(self._text))
        return np.arange(first, len(self))[:, None]


class ChosenTexts:
    """Some texts of a store, by their numbers (n,); iterated, they are made when they are needed."""

    def __init__(self, store: TextStore, numbers: NDArray[np.integer]) -> None:
        self._store, self._numbers = store, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[list[str]]:
        """The texts, BLOCK together."""
        for first in range(0, len(self), BLOCK):
            yield [self._store[number] for number in self._numbers[first : first + BLOCK].tolist()]

    def at(self, places: NDArray[np.integer]) -> ChosenTexts:
        """The texts at these places."""
        return ChosenTexts(self._store, self._numbers[places])


def ids_of(texts: ChosenTexts, ids: Callable[[Sequence[str]], NDArray[np.integer]]) -> Ids:
    """What `ids` makes of the texts, (n, length); of many, memory-mapped, if the disk has room for it."""
    width = next((ids(block).shape[1] for block in texts.blocks()), 0)
    shape = (len(texts), width)
    if len(texts) * width * np.dtype(np.int32).itemsize > IN_MEMORY_BYTES:
        with suppress(OSError), tempfile.TemporaryFile() as file:
            for block in texts.blocks():
                file.write(ids(block).astype(np.int32).tobytes())
            file.flush()
            return np.memmap(file, np.int32, "c", shape=shape)
    every = np.empty(shape, np.int32)
    first = 0
    for block in texts.blocks():
        every[first : first + len(block)] = ids(block)
        first += len(block)
    return every
