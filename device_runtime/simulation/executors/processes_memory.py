"""Memory that processes share without a name: nothing of it is left behind, however they end."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

WAVE_JOBS = 1 << 16
"""Jobs that are laid out at once; more are done in several waves."""
MOST_WORKERS = 1 << 10
FREE, DONE = -1, 0  # else 1 and more: the worker that has it, counted from 1
_WAVE, _SIZE, _FIRST, _END = range(4)
_WAITING = 64
_OWNERS = _WAITING + MOST_WORKERS


class SharedMemory:
    """A file without a name, in memory where the system has such (Linux), that workers inherit.

    It takes only the memory that was written to.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def make(cls) -> SharedMemory:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("device-runtime"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def grow(self, size: int) -> None:
        """To at least `size` bytes."""
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)

    def write(self, data: Any, start: int) -> None:
        """Bytes, or those of an array, at byte `start`; the writer's own memory does not grow."""
        flat: Any = data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        left = memoryview(flat)
        while len(left):
            written = os.pwrite(self.fd, left, start)
            left, start = left[written:], start + written

    def read(self, size: int) -> bytes:
        """The first `size` bytes."""
        return os.pread(self.fd, size, 0)

    def view(self, size: int) -> mmap.mmap:
        """The first `size` bytes, at least one, read-only; let go of when nothing refers to it any more."""
        return mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class JobBoard:
    """Who does which job of a wave. Workers take jobs by themselves, so none waits for the parent.

    Jobs may be taken from `first` up to `end`. A lock that dies with its holder guards every taking.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        size = 4 * (_OWNERS + WAVE_JOBS)
        shared.grow(size)
        self._cells = np.frombuffer(mmap.mmap(shared.fd, size), np.int32)
        self._owners = self._cells[_OWNERS:]
        self._waiting = self._cells[_WAITING:_OWNERS]

    def begin(self, jobs: int, size: int) -> None:
        """A new wave, described by `size` bytes, of which no job may be taken yet. By the parent, locked."""
        self._owners[:jobs] = FREE
        self._cells[_WAVE : _END + 1] = self._cells[_WAVE] + 1, size, 0, 0

    def open(self, first: int, end: int) -> list[int]:
        """Jobs from `first` up to `end` may be taken; gives the workers to be woken. By the parent."""
        with self.locked():
            self._cells[_FIRST], self._cells[_END] = first, end
            free = np.count_nonzero(self._owners[first:end] == FREE)
            woken = [int(worker) for worker in np.flatnonzero(self._waiting)[:free]]
            self._waiting[woken] = 0
        return woken

    def stop(self) -> None:
        """No further job may be taken. By the parent."""
        with self.locked():
            self._cells[_FIRST : _END + 1] = 0

    def take(self, worker: int) -> int | None:
        """The next job, which is now this worker's; None: wait to be woken. By a worker, locked."""
        first, end = int(self._cells[_FIRST]), int(self._cells[_END])
        free = self._owners[first:end] == FREE
        at = int(free.argmax()) if end > first else 0
        if end == first or not free[at]:
            self._waiting[worker] = 1
            return None
        self._owners[first + at] = worker + 1
        return first + at

    def done(self, job: int) -> None:
        """By the parent, when it has the reply."""
        self._owners[job] = DONE

    def give_back(self, worker: int) -> list[int]:
        """The jobs that a worker that is gone had taken and not done, now free again. By the parent."""
        with self.locked():
            lost = self.taken(worker)
            self._owners[lost] = FREE
            self._waiting[worker] = 0
        return lost

    def taken(self, worker: int | None = None) -> list[int]:
        """Jobs of the wave that a worker, or any, has taken and not done."""
        owners = self._owners
        return [int(job) for job in np.flatnonzero(owners > 0 if worker is None else owners == worker + 1)]

    @property
    def wave(self) -> tuple[int, int]:
        """The wave's number, and how many bytes describe it. Locked."""
        return int(self._cells[_WAVE]), int(self._cells[_SIZE])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process at a time, and by none that has ended."""
        fcntl.lockf(self._shared.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._shared.fd, fcntl.LOCK_UN)
