"""Where a device's samples are, as `--data` names it."""

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

# FROM refusal: What is left out of the local data, and why.

EXAMPLES = 3
"""Of each reason that are named."""
REASONS = 30
OTHER = "other reasons"


class Refused(Exception):
    """A file or a sample that is not taken: `reason` is common to all of its sort, `detail` of this one."""

    def __init__(self, reason: str, detail: object = "") -> None:
        self.reason, self.detail = reason, " ".join(str(detail).split())
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


class Passing(Refused):
    """What may be otherwise the next time, though its file is the same: it is tried again."""


class Skip(NamedTuple):
    """One sample or file that was left out; `where` names it, and says more of it."""

    reason: str
    where: str

    @classmethod
    def of(cls, error: Refused, name: str) -> Skip:
        return cls(error.reason, f"{name}: {error.detail}" if error.detail else name)


@dataclass(frozen=True)
class SkippedSamples:
    """How many were left out for one reason, and the first few of them."""

    reason: str
    count: int
    examples: tuple[str, ...]

    @property
    def named(self) -> str:
        """The examples, and whether there are more."""
        more = ", .." if self.count > len(self.examples) else ""
        return ", ".join(self.examples) + more

    def __str__(self) -> str:
        return f"{self.reason}: {self.count} ({self.named})"


class SkippedTally:
    """Counts by reason; beyond `REASONS` of them the rest are one."""

    def __init__(self) -> None:
        self._found: dict[str, SkippedSamples] = {}

    def add(self, one: Skip | SkippedSamples) -> None:
        if isinstance(one, Skip):
            one = SkippedSamples(one.reason, 1, (one.where,))
        reason = one.reason if one.reason in self._found or len(self._found) < REASONS else OTHER
        before = self._found.get(reason, SkippedSamples(reason, 0, ()))
        examples = (*before.examples, *one.examples)[:EXAMPLES]
        self._found[reason] = SkippedSamples(reason, before.count + one.count, examples)

    def __iter__(self) -> Iterator[SkippedSamples]:
        """The most frequent first."""
        return iter(sorted(self._found.values(), key=lambda one: (-one.count, one.reason)))


# FROM unit: What is read, and read again when it changes, as one; and what reading it gives.

ONE_SAMPLE_BYTES = 64 << 20
"""A file of one sample is at most this large, and so is a blob."""
TOO_LARGE = "too large for one sample"


class RawSamples(NamedTuple):
    """Some samples: x (n, *input) raw, before `InputSpec.prepare`; their labels as names, or as class numbers
    int (n,), or None where the unit has one for all. `form` says how they were stored.
    """

    x: NDArray[Any]
    labels: Sequence[str] | NDArray[np.integer[Any]] | None
    form: str


@dataclass(frozen=True)
class WantedSamples:
    """What a task wants of the samples, how the place stores them, and the bytes that all may take here.

    `texts` makes its input of texts, where it is that.
    """

    input: InputSpec
    place: Place
    room_bytes: int | None = None
    texts: Texts | None = None


@dataclass(frozen=True)
class SampleFormat:
    """One way to store samples: `read` may leave out single ones, and raises Refused for the whole unit.

    `stored` gives them as they are stored, one array (n, ..) or several, whatever the task; raises Refused.
    `grows`: rows that are there are good while others are written behind them.
    """

    read: Callable[[Unit, WantedSamples], Iterator[RawSamples | Skip]]
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
    source: SampleFormat
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
