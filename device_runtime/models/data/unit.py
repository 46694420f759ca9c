"""What is read, and read again when it changes, as one; and what reading it gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.text.texts import Texts

from .place import Place
from .refusal import Passing, Refused, Skip

ONE_SAMPLE_BYTES = 64 << 20
"""A file of one sample is at most this large, and so is a blob."""
TOO_LARGE = "too large for one sample"


class Batch(NamedTuple):
    """Some samples: x (n, *input) raw, before `InputSpec.prepare`; their labels as names, or as class numbers
    int (n,), or None where the unit has one for all. `form` says how they were stored.
    """

    x: NDArray[Any]
    labels: Sequence[str] | NDArray[np.integer[Any]] | None
    form: str


@dataclass(frozen=True)
class Wanted:
    """What a task wants of the samples, how the place stores them, and the bytes that all may take here.

    `texts` makes its input of texts, where it is that.
    """

    input: InputSpec
    place: Place
    room_bytes: int | None = None
    texts: Texts | None = None


@dataclass(frozen=True)
class Source:
    """One way to store samples: `read` may leave out single ones, and raises Refused for the whole unit.

    `stored` gives them as they are stored, one array (n, ..) or several, whatever the task; raises Refused.
    `grows`: rows that are there are good while others are written behind them.
    """

    read: Callable[[Unit, Wanted], Iterator[Batch | Skip]]
    stored: Callable[[Unit, Place], Iterator[NDArray[Any]]]
    grows: bool = False


@dataclass(frozen=True)
class Unit:
    """`name` is unique in its place, `stamp` its size in bytes and the time of its last change in ns.

    `label` is that of all its samples, where their folder or a list says it.
    """

    name: str
    path: Path
    stamp: tuple[int, int]
    source: Source
    label: str | None = None


def stamp_of(path: Path) -> tuple[int, int]:
    """Raises OSError."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def whole(path: Path) -> bytes:
    """The bytes of a file of one sample. Raises Refused."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # as many bytes are set aside as are asked for
            data = file.read(min(size, ONE_SAMPLE_BYTES) + 1)
    except OSError as error:
        raise Passing("cannot be read", error.strerror) from None
    if len(data) > ONE_SAMPLE_BYTES:
        raise Refused(TOO_LARGE, f"more than {ONE_SAMPLE_BYTES >> 20} MB")
    return data


def one_stored(data: bytes) -> NDArray[np.uint8]:
    """The bytes of one sample, as `Source.stored` gives them."""
    return np.frombuffer(data, np.uint8)[None]
