"""A worker process: takes training jobs from the shared queue and writes results to shared memory."""

from __future__ import annotations

import importlib
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.broker.servers.dependent_process import end_when_alone
from device_runtime.machine_readings import trim_heap
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.simulation.scenarios.clients import Clients
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

from . import packing
from .job import ExecutorInputs, FailedJob, Result, train
from .packing import Layout, Packed
from .processes_launch import LaunchOrder, fork_workers
from .processes_memory import SharedJobQueue, SharedMemory

TOUCHED_BYTES = 8 << 20
"""Bytes of memory-mapped samples that stay in a worker's memory; others stay in the page cache."""


class BasePlace(msgspec.Struct, frozen=True, array_like=True):
    """The byte that a base model begins at, and a version for each tensor, which changes with its content."""

    start: int
    versions: tuple[int, ...]
    layout: Layout

    @property
    def end(self) -> int:
        return self.start + packing.size_of(self.layout)


class JobBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of jobs, and where their data is.

    Result i is in slot i % slots, of `slot_bytes`; base b at `bases[b]`; the memory of job i in slot i %
    slots of the memories, of `memory_bytes`.
    """

    packed: Packed
    slots: int
    slot_bytes: int
    memory_bytes: int
    bases: dict[str, BasePlace]


def main(text: str) -> None:
    """Runs a worker; `text` has its LaunchOrder in JSON, or several, of which copies do the others."""
    orders = msgspec.json.decode(text, type=tuple[LaunchOrder, ...])
    if len(orders) > 1:
        importlib.import_module("device_runtime.models.torch_engine.engine")
    order = fork_workers(orders)
    end_when_alone(order.link, partial(_remove_clients, order))
    with suppress(EOFError, ConnectionError), Connection(order.link) as link:
        try:
            worker = SimulationWorker(order)
        except Exception as error:
            link.send_bytes(packing.pack(packing.worker_error(-1, error)))
            return
        trim_heap()
        link.send_bytes(packing.pack(packing.WorkerOpened(os.getpid())))
        while True:
            job = worker.take()
            if job is None:
                link.recv_bytes()
            else:
                for part in worker.do(job):
                    link.send_bytes(part)
    _remove_clients(order)  # only if the parent died: else it ends its workers by a signal


def _remove_clients(order: LaunchOrder) -> None:
    """Removes the clients' folder in place of the parent, which has ended."""
    if order.made:
        shutil.rmtree(order.clients, ignore_errors=True)


@dataclass
class LoadedModel:
    """A model, and the versions of the tensors that it has loaded."""

    model: DeviceModel
    loaded: tuple[int, ...] = ()


class SimulationWorker:
    """Does jobs of the shared queue, with one engine for each model of the family that they use."""

    def __init__(self, order: LaunchOrder) -> None:
        """Raises BundleError, EngineError, OSError."""
        self._number = order.number
        self._queue = SharedJobQueue(SharedMemory(order.queue))
        self._described, self._bases = SharedMemory(order.batch), SharedMemory(order.bases)
        self._results, self._memories = SharedMemory(order.results), SharedMemory(order.memories)
        bundle = Bundle.open(order.bundle)
        family = {name: Bundle.open(path) for name, path in order.family.items()}
        self._inputs = ExecutorInputs(bundle, Clients.open(Path(order.clients)), order.engine, family)
        self._models = {"": LoadedModel(open_model(bundle, order.engine))}
        self._batch_number, self._touched = 0, 0
        self._batch = JobBatch(Packed((), (), ()), 1, 0, 0, {})
        self._strategies: dict[int, AnyStrategy] = {}

    def take(self) -> int | None:
        """Takes the next job and returns its number; reads a new batch first."""
        text = b""
        with self._queue.locked():
            number, size = self._queue.batch
            if number != self._batch_number:
                text = self._described.read(size)
            job = self._queue.take(self._number)
        if text:
            self._batch = msgspec.msgpack.decode(text, type=JobBatch)
            self._strategies, self._batch_number = {}, number
        return job

    def do(self, number: int) -> Iterator[Any]:
        """Does a job of the batch and writes its tensors; yields its reply, then its memory if any."""
        packed = self._batch.packed.jobs[number]
        try:
            strategy = self._strategy(packed.strategy)
            model = self._holding(strategy.member, self._batch.bases[packed.base])
            job = packing.unpack_job(packed, strategy, self._memory(number))
            result = train(model, self._inputs, job, self._aside(packed.aside))
            self._leave(number, result)
            self._forget(packed.device)
        except Exception as error:
            yield packing.pack(packing.worker_error(number, error))
            return
        yield packing.pack(packing.reply_of(number, result))
        if not isinstance(result, FailedJob) and result.memory is not None:
            yield packing.joined(result.memory)

    def _strategy(self, number: int) -> AnyStrategy:
        if number not in self._strategies:
            self._strategies[number] = registry.read(self._batch.packed.kinds[number])
        return self._strategies[number]

    def _holding(self, member: str, base: BasePlace) -> DeviceModel:
        """The member's model with this base; loads only tensors of a new version.

        After an error all tensors are loaded again.
        """
        if member not in self._models:
            self._models[member] = LoadedModel(open_model(self._inputs.of(member), self._inputs.engine))
        opened = self._models[member]
        if base.versions == opened.loaded:
            return opened.model
        tensors = packing.views(self._bases.view(base.end), base.layout, base.start)
        before = opened.loaded or (0,) * len(base.layout)
        pairs = zip(base.layout, before, base.versions, strict=True)
        opened.loaded = ()
        opened.model.load({spec.name: tensors[spec.name] for spec, old, new in pairs if old != new})
        opened.loaded = base.versions
        return opened.model

    def _memory(self, number: int) -> Tensors:
        layout = self._batch.packed.layout(self._batch.packed.jobs[number])
        if not layout:
            return NO_TENSORS
        start = number % self._batch.slots * self._batch.memory_bytes
        return packing.views(self._memories.view(max(start + self._batch.memory_bytes, 1)), layout, start)

    def _aside(self, key: str) -> Tensors:
        if not key:
            return NO_TENSORS
        place = self._batch.bases[key]
        return packing.views(self._bases.view(max(place.end, 1)), place.layout, place.start)

    def _leave(self, number: int, result: Result) -> None:
        if isinstance(result, FailedJob):
            return
        start = number % self._batch.slots * self._batch.slot_bytes
        for spec, place in packing.places(packing.specs_of(result.tensors)):
            self._results.write(result.tensors[spec.name], start + place)

    def _forget(self, device: int) -> None:
        """Unmaps samples now and then: those that were read count as memory of this process until then."""
        x: Any = self._inputs.clients.x
        self._touched += len(self._inputs.clients.indices(device)) * (x.nbytes // max(len(x), 1))
        if self._touched > TOUCHED_BYTES:
            self._touched = 0
            _drop_pages(x)


def _drop_pages(x: Any) -> None:
    """Drops the pages of a memory-mapped array; the next reader finds them in the page cache."""
    mapped = getattr(x, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
