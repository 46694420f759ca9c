"""A worker process: does the training jobs that it is sent, and writes results to shared memory."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_runtime.broker.servers.dependent_process import end_when_alone
from device_runtime.broker.wire.messages import Kind
from device_runtime.machine_readings import trim_heap
from device_runtime.models.available_engines.available import in_turn
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.data.loading import Clients
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

from . import packing
from .batched import Batched
from .job import Executor, ExecutorInputs, FailedJob, PlainExecutor, Result, TrainingJob
from .packing import Layout, PackedJob, Reply

TOUCHED_BYTES = 8 << 20
"""Bytes of memory-mapped samples that stay in a worker's memory; others stay in the page cache."""


class SharedMemory:
    """An unnamed file that workers inherit, in memory where the system can do that (Linux).

    It takes only the memory that was written to, and is freed however the processes end.
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

    def write(self, array: Any, start: int) -> None:
        """Writes the bytes of an array at byte `start`; this process's own memory does not grow."""
        flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        left = memoryview(flat)
        while len(left):
            written = os.pwrite(self.fd, left, start)
            left, start = left[written:], start + written

    def view(self, size: int) -> mmap.mmap:
        """Maps the first `size` bytes, at least one, read-only; unmapped when nothing refers to them."""
        return mmap.mmap(self.fd, max(size, 1), mmap.MAP_SHARED, mmap.PROT_READ)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class WorkerInputs(msgspec.Struct, frozen=True):
    """The arguments of a worker: its number, file descriptors, which it inherits, paths, and the engine.

    clients: the folder that `Clients.save` wrote; temporary: it is removed where the parent dies.
    together: the most jobs that it is sent, and trains, at once.
    """

    number: int
    link: int
    bases: int
    results: int
    bundle: str
    family: dict[str, str]
    clients: str
    temporary: bool
    engine: EngineSettings
    together: int = 1


class BasePlace(msgspec.Struct, frozen=True, array_like=True):
    """The byte that a base model begins at, and a version for each tensor, which changes with its content."""

    start: int
    versions: tuple[int, ...]
    layout: Layout

    @property
    def end(self) -> int:
        return self.start + packing.size_of(self.layout)


class SentJob(msgspec.Struct, frozen=True, array_like=True):
    """Job `number` of a run, and where its data is.

    The result goes to byte `start` of the results, where the job's memory is before.
    """

    number: int
    job: PackedJob
    kind: Kind
    start: int
    memory: Layout


class SentJobs(msgspec.Struct, frozen=True, array_like=True):
    """Jobs that are trained at once, and where their base, and the tensors sent with it, are."""

    jobs: tuple[SentJob, ...]
    base: BasePlace
    aside: BasePlace | None


def main(text: str) -> None:
    """Runs a worker; `text` has its WorkerInputs in JSON."""
    inputs = msgspec.json.decode(text, type=WorkerInputs)

    def remove_clients() -> None:
        if inputs.temporary:
            shutil.rmtree(inputs.clients, ignore_errors=True)

    end_when_alone(inputs.link, remove_clients)
    with suppress(EOFError, ConnectionError), Connection(inputs.link) as link:
        try:
            worker = SimulationWorker(inputs)
        except Exception as error:
            link.send_bytes(packing.pack([packing.worker_error(-1, error)]))
            return
        trim_heap()
        link.send_bytes(packing.pack([packing.WorkerOpened(os.getpid())]))
        while True:
            for part in worker.do(link.recv_bytes()):
                link.send_bytes(part)
    remove_clients()  # only if the parent died: else it ends its workers by a signal


class WorkerExecutor:
    """Trains the jobs of a worker: one after another, or with `together` above 1 many at once."""

    def __init__(self, inputs: ExecutorInputs, together: int) -> None:
        """Raises EngineError, BundleError."""
        plain = PlainExecutor(inputs)
        self._executor: Executor = plain if together == 1 else Batched(inputs, plain)
        self._strategies: dict[tuple[str, bytes], AnyStrategy] = {}

    def strategy(self, kind: Kind) -> AnyStrategy:
        """The strategy that a kind of the wire stands for, the same object each time."""
        key = kind.name, bytes(kind.settings)
        if key not in self._strategies:
            self._strategies[key] = registry.read(kind)
        return self._strategies[key]

    def run(self, base: Tensors, aside: Tensors, jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        """Trains jobs of one base; as `Executor.run`.

        A tensor that has not changed since the last base of its member is the same array in this one.
        """
        return self._executor.run({jobs[0].base: base, jobs[0].aside: aside}, jobs)


class SimulationWorker:
    """Does jobs, with one engine for each model of the family that they use."""

    def __init__(self, inputs: WorkerInputs) -> None:
        """Raises BundleError, EngineError, OSError."""
        self._bases, self._results = SharedMemory(inputs.bases), SharedMemory(inputs.results)
        family = {name: Bundle.open(path) for name, path in inputs.family.items()}
        clients = Clients.open(Path(inputs.clients))
        engine = in_turn(inputs.engine, inputs.number)
        self._inputs = ExecutorInputs(Bundle.open(inputs.bundle), clients, engine, family)
        self._executor, self._together = WorkerExecutor(self._inputs, inputs.together), inputs.together > 1
        self._loaded: dict[str, tuple[tuple[int, ...], Tensors]] = {}  # versions and tensors, by member
        self._touched = 0

    def do(self, text: bytes) -> Iterator[Any]:
        """Does SentJobs and writes the tensors; yields all replies, then the memory of each that has one."""
        sent = msgspec.msgpack.decode(text, type=SentJobs)
        replies: list[Reply] = []
        memories: list[Any] = []
        try:
            for each, result in zip(sent.jobs, self._trained(sent), strict=True):
                replies.append(packing.reply_of(each.number, result))
                if isinstance(result, FailedJob):
                    continue
                for spec, place in packing.places(packing.specs_of(result.tensors)):
                    self._results.write(result.tensors[spec.name], each.start + place)
                if result.memory is not None:
                    memories.append(packing.joined(result.memory))
        except Exception as error:
            replies, memories = [packing.worker_error(each.number, error) for each in sent.jobs], []
        for each in sent.jobs:
            self._forget(each.job.device)
        yield packing.pack(replies)
        yield from memories

    def _trained(self, sent: SentJobs) -> Iterator[Result]:
        jobs = []
        for each in sent.jobs:
            size = packing.size_of(each.memory)
            memory = packing.views(os.pread(self._results.fd, size, each.start), each.memory)
            jobs.append(packing.unpack_job(each.job, self._executor.strategy(each.kind), memory))
        aside = NO_TENSORS if sent.aside is None else self._tensors(sent.aside)
        return self._executor.run(self._base(jobs[0].strategy.member, sent.base), aside, jobs)

    def _base(self, member: str, place: BasePlace) -> Tensors:
        """The tensors of a member's base; one of the same version as in the last is the same array.

        Jobs that are trained together have copies: later bases are written to the same memory.
        """
        versions, before = self._loaded.get(member, ((0,) * len(place.versions), NO_TENSORS))
        if versions != place.versions:
            tensors = dict(self._tensors(place))
            for spec, old, new in zip(place.layout, versions, place.versions, strict=True):
                if old == new:
                    tensors[spec.name] = before[spec.name]
                elif self._together:
                    tensors[spec.name] = tensors[spec.name].copy()
            self._loaded[member] = place.versions, tensors
        return self._loaded[member][1]

    def _tensors(self, place: BasePlace) -> Tensors:
        return packing.views(self._bases.view(place.end), place.layout, place.start)

    def _forget(self, device: int) -> None:
        """Unmaps samples now and then: those that were read count as memory of this process until then."""
        x: Any = self._inputs.clients.x
        self._touched += len(self._inputs.clients.indices(device)) * (x.nbytes // max(len(x), 1))
        mapped = getattr(x, "_mmap", None)
        if self._touched > TOUCHED_BYTES and isinstance(mapped, mmap.mmap):
            self._touched = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
