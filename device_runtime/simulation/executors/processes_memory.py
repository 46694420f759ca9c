"""Shared memory of processes, freed however they end, and the job queue in it."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

BATCH_JOBS = 1 << 16
"""The most jobs of one batch; more are done in several batches."""
MOST_WORKERS = 1 << 10
FREE, DONE = -1, 0  # otherwise the number of the worker that has the job, counted from 1
_BATCH, _SIZE, _FIRST, _END = range(4)
_WAITING = 64
_OWNERS = _WAITING + MOST_WORKERS


class SharedMemory:
    """An unnamed file that workers inherit, in memory where the system can do that (Linux).

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
        """Grows to at least `size` bytes."""
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)

    def write(self, data: Any, start: int) -> None:
        """Writes bytes, or those of an array, at byte `start`; this process's own memory does not grow."""
        flat: Any = data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        left = memoryview(flat)
        while len(left):
            written = os.pwrite(self.fd, left, start)
            left, start = left[written:], start + written

    def read(self, size: int) -> bytes:
        """The first `size` bytes."""
        return os.pread(self.fd, size, 0)

    def view(self, size: int) -> mmap.mmap:
        """Maps the first `size` bytes, at least one, read-only; unmapped when nothing refers to them."""
        return mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedJobQueue:
    """The jobs of a batch and the workers that have them, in shared memory.

    Workers take jobs by themselves, so none waits for the parent. Jobs may be taken from `first` up to `end`.
    A lock guards this; it is released when its holder dies.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        size = 4 * (_OWNERS + BATCH_JOBS)
        shared.grow(size)
        self._cells = np.frombuffer(mmap.mmap(shared.fd, size), np.int32)
        self._owners = self._cells[_OWNERS:]
        self._waiting = self._cells[_WAITING:_OWNERS]

    def begin(self, jobs: int, size: int) -> None:
        """Begins a batch that `size` bytes describe, without jobs to take yet. For the parent, locked."""
        self._owners[:jobs] = FREE
        self._cells[_BATCH : _END + 1] = self._cells[_BATCH] + 1, size, 0, 0

    def open(self, first: int, end: int) -> list[int]:
        """Lets workers take jobs from `first` up to `end`; returns the workers to wake. For the parent."""
        with self.locked():
            self._cells[_FIRST], self._cells[_END] = first, end
            free = np.count_nonzero(self._owners[first:end] == FREE)
            woken = [int(worker) for worker in np.flatnonzero(self._waiting)[:free]]
            self._waiting[woken] = 0
        return woken

    def stop(self) -> None:
        """Lets workers take no further job. For the parent."""
        with self.locked():
            self._cells[_FIRST : _END + 1] = 0

    def take(self, worker: int) -> int | None:
        """Takes the next job for this worker; None: wait to be woken. For a worker, locked."""
        first, end = int(self._cells[_FIRST]), int(self._cells[_END])
        free = self._owners[first:end] == FREE
        at = int(free.argmax()) if end > first else 0
        if end == first or not free[at]:
            self._waiting[worker] = 1
            return None
        self._owners[first + at] = worker + 1
        return first + at

    def done(self, job: int) -> None:
        """Marks a job as done. For the parent, when it has the reply."""
        self._owners[job] = DONE

    def give_back(self, worker: int) -> list[int]:
        """Frees and returns the jobs that a dead worker had taken and not done. For the parent."""
        with self.locked():
            jobs = self.taken(worker)
            self._owners[jobs] = FREE
            self._waiting[worker] = 0
        return jobs

    def taken(self, worker: int | None = None) -> list[int]:
        """The jobs of the batch that this worker (None: any) has taken and not done."""
        owners = self._owners
        return [int(job) for job in np.flatnonzero(owners > 0 if worker is None else owners == worker + 1)]

    @property
    def batch(self) -> tuple[int, int]:
        """The batch's number, and the bytes that describe it. Locked."""
        return int(self._cells[_BATCH]), int(self._cells[_SIZE])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The queue's lock, held by one process at a time; it is released when the process ends."""
        fcntl.lockf(self._shared.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._shared.fd, fcntl.LOCK_UN)
