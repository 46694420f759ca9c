"""A worker process: does the training jobs that it is sent, and writes results to shared memory."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_runtime.broker.servers.dependent_process import end_when_alone
from device_runtime.broker.wire.messages import Kind
from device_runtime.machine_readings import trim_heap
from device_runtime.models.available_engines.available import in_turn, open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.simulation.data.loading import Clients
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

from . import packing
from .job import ExecutorInputs, FailedJob, train
from .packing import Layout, PackedJob

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
            link.send_bytes(packing.pack(packing.worker_error(-1, error)))
            return
        trim_heap()
        link.send_bytes(packing.pack(packing.WorkerOpened(os.getpid())))
        while True:
            for part in worker.do(link.recv_bytes()):
                link.send_bytes(part)
    remove_clients()  # only if the parent died: else it ends its workers by a signal


class SimulationWorker:
    """Does jobs, with one engine for each model of the family that they use."""

    def __init__(self, inputs: WorkerInputs) -> None:
        """Raises BundleError, EngineError, OSError."""
        self._bases, self._results = SharedMemory(inputs.bases), SharedMemory(inputs.results)
        family = {name: Bundle.open(path) for name, path in inputs.family.items()}
        clients = Clients.open(Path(inputs.clients))
        engine = in_turn(inputs.engine, inputs.number)
        self._inputs = ExecutorInputs(Bundle.open(inputs.bundle), clients, engine, family)
        self._models = {"": open_model(self._inputs.bundle, engine)}
        self._versions: dict[str, tuple[int, ...]] = {}  # of the tensors that each model has loaded
        self._strategies: dict[tuple[str, bytes], AnyStrategy] = {}
        self._touched = 0

    def do(self, text: bytes) -> Iterator[Any]:
        """Does a SentJob and writes its tensors; yields its reply, then its memory if any."""
        sent = msgspec.msgpack.decode(text, type=SentJob)
        try:
            strategy = self._strategy(sent.kind)
            model = self._holding(strategy.member, sent.base)
            size = packing.size_of(sent.memory)
            memory = packing.views(os.pread(self._results.fd, size, sent.start), sent.memory)
            aside = NO_TENSORS if sent.aside is None else self._tensors(sent.aside)
            result = train(model, self._inputs, packing.unpack_job(sent.job, strategy, memory), aside)
            if not isinstance(result, FailedJob):
                for spec, place in packing.places(packing.specs_of(result.tensors)):
                    self._results.write(result.tensors[spec.name], sent.start + place)
            self._forget(sent.job.device)
        except Exception as error:
            yield packing.pack(packing.worker_error(sent.number, error))
            return
        yield packing.pack(packing.reply_of(sent.number, result))
        if not isinstance(result, FailedJob) and result.memory is not None:
            yield packing.joined(result.memory)

    def _strategy(self, kind: Kind) -> AnyStrategy:
        key = kind.name, bytes(kind.settings)
        if key not in self._strategies:
            self._strategies[key] = registry.read(kind)
        return self._strategies[key]

    def _holding(self, member: str, base: BasePlace) -> DeviceModel:
        """The member's model with this base; loads only tensors of a new version.

        After an error all tensors are loaded again.
        """
        if member not in self._models:
            self._models[member] = open_model(self._inputs.of(member), self._inputs.engine)
        before = self._versions.pop(member, (0,) * len(base.layout))
        if before != base.versions:
            pairs = zip(base.layout, before, base.versions, strict=True)
            changed = [spec.name for spec, old, new in pairs if old != new]
            tensors = self._tensors(base)
            self._models[member].load({name: tensors[name] for name in changed})
        self._versions[member] = base.versions
        return self._models[member]

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
