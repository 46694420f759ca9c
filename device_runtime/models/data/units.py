"""Units of local data (a file or database), the formats that read them, and what is skipped and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .sample_source import SampleSource

log = logging.getLogger(__name__)

# Files and samples that are skipped, and why.

EXAMPLES = 3
"""The number of examples that are named for each reason."""
REASONS = 30
OTHER = "other reasons"
EMPTY = "a file without samples"
"""The only reason that goes away as the file grows."""


class Refused(Exception):
    """Raised for a file or sample that is skipped.

    reason: the same for all that are skipped for this reason.
    detail: of this file or sample.
    """

    def __init__(self, reason: str, detail: object = "") -> None:
        self.reason, self.detail = reason, " ".join(str(detail).split())
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


class TemporarilyRefused(Refused):
    """Raised if reading may succeed later although the file is the same; it is tried again."""


class Skip(NamedTuple):
    """One sample or file that was skipped; `where` names it, with details."""

    reason: str
    where: str

    @classmethod
    def of(cls, error: Refused, name: str) -> Skip:
        return cls(error.reason, f"{name}: {error.detail}" if error.detail else name)


@dataclass(frozen=True)
class SkippedSamples:
    """The number of samples or files skipped for one reason, and the first few of them."""

    reason: str
    count: int
    examples: tuple[str, ...]

    @property
    def named(self) -> str:
        """The examples, with ".." if there are more."""
        more = ", .." if self.count > len(self.examples) else ""
        return ", ".join(self.examples) + more

    def __str__(self) -> str:
        return f"{self.reason}: {self.count} ({self.named})"


class SkippedTally:
    """Counts skipped samples and files by reason; beyond REASONS reasons, the rest count as OTHER."""

    def __init__(self) -> None:
        self._by_reason: dict[str, SkippedSamples] = {}

    def add(self, entry: Skip | SkippedSamples) -> None:
        if isinstance(entry, Skip):
            entry = SkippedSamples(entry.reason, 1, (entry.where,))
        reason = entry.reason if entry.reason in self._by_reason or len(self._by_reason) < REASONS else OTHER
        before = self._by_reason.get(reason, SkippedSamples(reason, 0, ()))
        examples = (*before.examples, *entry.examples)[:EXAMPLES]
        self._by_reason[reason] = SkippedSamples(reason, before.count + entry.count, examples)

    def __iter__(self) -> Iterator[SkippedSamples]:
        """The most frequent first."""
        return iter(sorted(self._by_reason.values(), key=lambda entry: (-entry.count, entry.reason)))


# Units and the formats that read them.

ONE_SAMPLE_BYTES = 64 << 20
"""The largest file of one sample, or blob, that is read."""
TOO_LARGE = "too large for one sample"


class RawSamples(NamedTuple):
    """Some samples as they were read.

    x: (n, *input) raw, before `InputSpec.prepare`.
    labels: names, or class numbers int (n,), or None if the unit has one label for all. Where targets have
    columns: their numbers, joined by commas, or as an array (n, columns).
    form: how they were stored.
    together: all are for training, or all are held out, because they overlap or are of one recording.
    clients: whose each sample is, (n,), if that is known.
    notes: what the reader decided by default, for people.
    expected: the most samples that its unit may have, so that they get room at once; 0 if that is not known.
    rows: the number of each sample's row in its file, from 1, if it is of a table.
    """

    x: NDArray[Any]
    labels: Sequence[str] | NDArray[Any] | None
    form: str
    together: bool = False
    clients: Sequence[str] | None = None
    notes: tuple[str, ...] = ()
    expected: int = 0
    rows: Sequence[int] | None = None

    def place(self, number: int, name: str) -> str:
        """Where sample `number` stands in the file called `name`, for people."""
        return name if self.rows is None else f"{name} row {self.rows[number]}"


class TokenIds(Protocol):
    """Makes token ids (n, length) of texts, as `Texts` does."""

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class WantedSamples:
    """What a reader needs to know: the task's input, and the source with its settings.

    room_bytes: the most that all samples may take; None sets no limit.
    texts: turns texts into the input, if the input is text.
    """

    input: InputSpec
    source: SampleSource
    room_bytes: int | None = None
    texts: TokenIds | None = None


@dataclass(frozen=True)
class SampleFormat:
    """One way to store samples.

    read: gives the samples of a unit, or a Skip for a sample that is skipped; raises Refused for the whole
    unit.
    stored: gives the samples as they are stored, whatever the task, in one array (n, ..) or several; raises
    Refused.
    grows: rows may be read while others are appended.
    """

    read: Callable[[Unit, WantedSamples], Iterator[RawSamples | Skip]]
    stored: Callable[[Unit, SampleSource], Iterator[NDArray[Any]]]
    grows: bool = False


@dataclass(frozen=True)
class Unit:
    """A file or database that is read, and read again when it changes, as a whole.

    name: unique in its source.
    stamp: size in bytes, and time of the last change in ns.
    label: of all its samples, if their folder or a list gives it.
    client: whose they are, if a list says it.
    """

    name: str
    path: Path
    stamp: tuple[int, int]
    sample_format: SampleFormat
    label: str | None = None
    client: str = ""

    def read(self, request: WantedSamples) -> Iterator[RawSamples | Skip]:
        """The samples, and what is skipped. Raises Refused, whatever the reader raises, and MemoryError."""
        with refusing():
            yield from self.sample_format.read(self, request)

    def stored(self, source: SampleSource) -> Iterator[NDArray[Any]]:
        """The samples as they are stored. Raises Refused and MemoryError, as `read`."""
        with refusing():
            yield from self.sample_format.stored(self, source)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns anything that a reader raises into Refused: a file may be damaged in ways that no reader expects.

    Refused and MemoryError pass.
    """
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:
        log.debug("a reader failed", exc_info=True)
        why = " ".join(str(error).split())[:200]
        raise Refused(
            "cannot be read", f"{type(error).__name__}: {why}" if why else type(error).__name__
        ) from None


def file_stamp(path: Path) -> tuple[int, int]:
    """The size of a file in bytes, and the time of its last change in ns. Raises OSError."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def read_file(path: Path) -> bytes:
    """The bytes of a file of one sample. Raises Refused."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # as many bytes are set aside as are asked for
            data = file.read(min(size, ONE_SAMPLE_BYTES) + 1)
    except OSError as error:
        raise TemporarilyRefused("cannot be read", error.strerror) from None
    if len(data) > ONE_SAMPLE_BYTES:
        raise Refused(TOO_LARGE, f"more than {ONE_SAMPLE_BYTES >> 20} MB")
    return data


def one_stored(data: bytes) -> NDArray[np.uint8]:
    """The bytes of one sample, as `SampleFormat.stored` gives them."""
    return np.frombuffer(data, np.uint8)[None]
