"""Word vectors as in the files of GloVe (Pennington et al. 2014): a word and its values in each line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError


def words(file: Path) -> frozenset[str]:
    """Those that have a vector. Raises DataSetError."""
    return frozenset(word for word, _ in _lines(file))


def matrix(vocabulary: tuple[str, ...], file: Path) -> NDArray[np.float32]:
    """The vector of each token id, (len(vocabulary), width), for `export --set vectors=FILE.npy`.

    Row 0, padding, is zero. Unknown words, and those that the file does not have, get the mean of the vectors
    found. Raises DataSetError.
    """
    numbers = {word: number for number, word in enumerate(vocabulary)}
    found: dict[int, NDArray[np.float32]] = {}
    for word, values in _lines(file):
        if word in numbers:
            found[numbers[word]] = _vector(values, word, file)
    if not found:
        raise DataSetError(f"{file} has none of the {len(vocabulary)} words")
    widths = {len(vector) for vector in found.values()}
    if len(widths) > 1:
        raise DataSetError(f"{file} has vectors of {' and '.join(map(str, sorted(widths)))} values")
    table = np.tile(np.mean(list(found.values()), axis=0, dtype=np.float32), (len(vocabulary), 1))
    for number, vector in found.items():
        table[number] = vector
    table[0] = 0
    return table


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Each word and its values; a first line of two counts, as word2vec has it, is left out."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream):
                word, _, values = line.rstrip("\n").partition(" ")
                if number or values.count(" "):
                    yield word, values
    except OSError as error:
        raise DataSetError(f"{file} cannot be read: {error.strerror}") from None


def _vector(values: str, word: str, file: Path) -> NDArray[np.float32]:
    try:
        return np.array(values.split(), np.float32)
    except ValueError:
        raise DataSetError(f"{file}: the vector of {word!r} holds what is no number") from None
