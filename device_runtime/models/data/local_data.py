"""Prepared samples in memory: inputs and labels, a growing buffer, which are held out; a limit of memory."""

from __future__ import annotations

import hashlib
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.machine_readings import resident_bytes
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec


@dataclass(frozen=True)
class LocalData:
    """Samples to train or evaluate on: prepared inputs (n, *input), and their targets.

    x: float32, or token ids in a dtype that holds them; engines take both as they are.
    y: class numbers (n,), integers, or float32 (n, columns) as the graphs take it; see `TargetSpec`.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def class_counts(self, labels: int) -> tuple[int, ...]:
        """Samples of each class, shape (labels,); where targets have columns, of all, shape (1,)."""
        if self.y.ndim > 1:
            return (len(self.y),)
        return tuple(int(n) for n in np.bincount(self.y, minlength=labels))


LEAST = 64
CLASSES = np.int32
"""The dtype in which class numbers are kept: half of what the graphs take, which engines make of them."""


class Rows:
    """Prepared samples in one buffer, to which new ones are added without copying the others.

    x: (n, *shape), of the dtype given; y: (n, *targets), class numbers as int32. Free rows take address
    space, but no memory.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: str | np.dtype[Any], target: TargetSpec = CROSS_ENTROPY
    ) -> None:
        self._x: NDArray[Any] = np.empty((0, *shape), dtype)
        self._y: NDArray[Any] = np.empty((0, *target.shape), target.dtype if target.has_columns else CLASSES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def data(self) -> LocalData:
        """All rows as views, which are valid until the next `cut` or `keep`."""
        return LocalData(self._x[: self._count], self._y[: self._count])

    @property
    def room(self) -> int:
        """The number of rows that fit before the buffer must be moved."""
        return len(self._y)

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample with its label."""
        return sum(int(np.prod(array.shape[1:])) * array.itemsize for array in (self._x, self._y))

    def append(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Copies samples to the end."""
        end = self._count + len(y)
        self.reserve(end)
        self._x[self._count : end], self._y[self._count : end] = x, y
        self._count = end

    def reserve(self, count: int, exactly: bool = False) -> None:
        """Makes room for `count` rows in all; if the buffer must move, it gets room for twice as many.

        exactly: not twice, because more are not expected.
        """
        if count > len(self._y):
            self._grow(max(LEAST, count if exactly else 2 * count))

    def cut(self, count: int) -> None:
        """Keeps only the first `count` rows."""
        self._count = count

    def keep(self, stays: NDArray[np.bool_]) -> None:
        """Keeps the rows for which `stays` (n,) is true, in their order, and closes the gaps."""
        step = max(1, (1 << 20) // self.row_bytes)
        end = 0
        for start in range(0, self._count, step):
            chosen = start + np.flatnonzero(stays[start : start + step])
            stop = end + len(chosen)
            if len(chosen) and chosen[-1] >= stop:  # else they are in place already
                self._x[end:stop], self._y[end:stop] = self._x[chosen], self._y[chosen]
            end = stop
        self._count = end

    def _grow(self, room: int) -> None:
        x, y = (np.empty((room, *array.shape[1:]), array.dtype) for array in (self._x, self._y))
        x[: self._count], y[: self._count] = self._x[: self._count], self._y[: self._count]
        self._x, self._y = x, y


WORDS = 1 << 64
SHARE, LEAST_HELD_OUT = 0.1, 10
"""The default share of samples held out, and the least number of them.

Fewer would say little about a model, and would be missed in training all the same.
"""


def is_held_out(x: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Whether each sample of x (n, ..) is held out of training, for evaluation; shape (n,).

    About `share` of all are. It depends only on the sample's content and `seed`, so that it never changes for
    a sample, and equal samples are on the same side.
    """
    if not share:
        return np.zeros(len(x), bool)
    key = seed.to_bytes(8, "little")
    below = int(share * WORDS)
    flags = np.empty(len(x), bool)
    for number, sample in enumerate(np.ascontiguousarray(x)):
        digest = hashlib.blake2b(sample.tobytes(), digest_size=8, key=key).digest()
        flags[number] = int.from_bytes(digest, "little") < below
    return flags


STATUS = Path("/proc/self/status")
SLACK = 16 << 20
"""Bytes that a process may always allocate beyond the limit.

Not all that is allocated is used: an engine allocates powers of two, up to 1.6 times what it then holds.
"""


@contextmanager
def memory_limit(room_bytes: int | None) -> Iterator[None]:
    """Inside, MemoryError is raised if the process would hold more than 2 * room_bytes + SLACK (Linux).

    room_bytes: bytes that samples may take, half of what the process may hold; None sets no limit.
    """
    if room_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(max(0, 2 * room_bytes - resident_bytes()) + SLACK)
    try:
        yield
    finally:
        unlimit_memory(before)


def unlimit_memory(before: tuple[int, int]) -> None:
    """Sets the limit (RLIMIT_DATA) that there was before."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_memory(more: int) -> None:
    """Limits this process to `more` bytes beyond what it has allocated. Does nothing without /proc."""
    try:
        line = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return
    if line is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = 1024 * int(line[1]) + more
    with suppress(OSError, ValueError):  # a sandbox that does not let limits be set
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
