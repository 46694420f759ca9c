"""The worker processes of an executor and the base models in the memory that they share.

Workers are started, listened to and replaced, and they end however this process ends. Of each base model
there is one copy for all workers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import msgspec
import numpy as np

from device_runtime.models.available_engines.available import engine_choice
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.simulation.errors import ExecutorError
from device_runtime.simulation.scenarios.clients import Clients

from . import packing
from .job import ExecutorInputs
from .packing import Layout, Reply, TrainedReply, WorkerOpened, read_reply
from .processes_launch import LaunchOrder, launch
from .processes_memory import SharedMemory
from .processes_worker import BasePlace

END_S = 5.0
SHARED = ("queue", "batch", "bases", "results", "memories")


@dataclass
class WorkerProcess:
    """A worker process and the pipe to it.

    `pid` is 0 until the worker is ready. `process` is None for a copy of another worker, which is not a child
    of this process.
    """

    link: Connection
    process: subprocess.Popen[bytes] | None
    pid: int = 0


@dataclass(frozen=True)
class WorkerMessage:
    """A message of a worker, with the memory of its result; `reply` is None when the worker has died."""

    worker: int
    reply: Reply | None
    memory: bytes = b""


class WorkerPool:
    """The pool of workers by number, the memory that they share with this process, the clients' folder."""

    def __init__(self, inputs: ExecutorInputs) -> None:
        """Saves the clients, unless they are in files already. Raises EngineError for a missing engine."""
        on_torch = engine_choice(inputs.bundle, inputs.engine.engine).name == "torch"
        self._copied = on_torch and inputs.engine.device == "cpu"
        saved = saved_in(inputs.clients)
        self._own_folder = saved is None
        self.folder = Path(tempfile.mkdtemp(prefix="device-runtime-")) if saved is None else saved
        self.queue, self.batch, self.bases, self.results, self.memories = (
            SharedMemory.make() for _ in range(5)
        )
        self._inputs = inputs
        self._workers: dict[int, WorkerProcess] = {}
        self._selector = DefaultSelector()
        if self._own_folder:
            inputs.clients.save(self.folder)

    def start_workers(self, *numbers: int) -> None:
        """Starts workers with these numbers; each sends WorkerOpened when it is ready."""
        pipes = {number: Pipe() for number in numbers}
        orders = [self._order(number, theirs.fileno()) for number, (_, theirs) in pipes.items()]
        started = [orders] if self._copied else [[order] for order in orders]
        processes = {group[0].number: launch(group) for group in started}
        for number, (link, theirs) in pipes.items():
            theirs.close()
            self._workers[number] = WorkerProcess(link, processes.get(number))
            self._selector.register(link, EVENT_READ, number)

    def _order(self, number: int, link: int) -> LaunchOrder:
        inputs = self._inputs
        return LaunchOrder(
            number=number,
            link=link,
            bundle=str(inputs.bundle.path.absolute()),
            family={name: str(bundle.path.absolute()) for name, bundle in inputs.family.items()},
            clients=str(self.folder.absolute()),
            made=self._own_folder,
            engine=inputs.engine,
            **{name: getattr(self, name).fd for name in SHARED},
        )

    def wake(self, workers: list[int]) -> None:
        """Tells workers to look at the queue; `listen` notices those that have died."""
        for number in workers:
            with suppress(OSError):
                self._workers[number].link.send_bytes(b"")

    def listen(self) -> list[WorkerMessage]:
        """Waits for at least one message and returns those that are there."""
        return [self._hear(key.data) for key, _ in self._selector.select()]

    def remove_worker(self, number: int) -> str:
        """Removes a worker that has died, and returns how it ended."""
        worker = self._workers.pop(number)
        self._selector.unregister(worker.link)
        worker.link.close()
        if worker.process is None:
            return "ended"
        worker.process.terminate()
        code = worker.process.wait()
        if code >= 0:
            return f"exit status {code}"
        cause = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{cause}"

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each worker."""
        return {number: worker.pid for number, worker in list(self._workers.items())}

    def close(self) -> None:
        """Ends all workers; frees memory and folder. May be called twice."""
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            _signal(worker, signal.SIGTERM)
        for worker in workers:
            _wait(worker)
        self._selector.close()
        for name in SHARED:
            getattr(self, name).close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _hear(self, number: int) -> WorkerMessage:
        try:
            link = self._workers[number].link
            reply = read_reply(link.recv_bytes())
            if isinstance(reply, WorkerOpened):
                self._workers[number].pid = reply.pid
            if isinstance(reply, TrainedReply) and reply.memory is not None:
                return WorkerMessage(number, reply, link.recv_bytes())
            return WorkerMessage(number, reply)
        except (EOFError, OSError):
            return WorkerMessage(number, None)
        except msgspec.DecodeError as error:
            raise ExecutorError(f"worker {number} sent a message that cannot be read: {error}") from None


def saved_in(clients: Clients) -> Path | None:
    """The folder that memory-mapped clients were opened from; None for clients in memory."""
    files = [Path(a.filename or "") for a in (clients.x, clients.order) if isinstance(a, np.memmap)]
    both = len(files) == 2 and [file.name for file in files] == ["x.npy", "order.npy"]
    return files[0].parent if both and files[0].parent == files[1].parent else None


def _signal(worker: WorkerProcess, number: signal.Signals) -> None:
    """Sends a signal to a worker that still runs; one that has ended has closed its pipe."""
    if worker.process is not None:
        worker.process.send_signal(number)
    elif worker.pid and not _ended(worker, 0):
        with suppress(ProcessLookupError):
            os.kill(worker.pid, number)


def _ended(worker: WorkerProcess, seconds: float) -> bool:
    """Whether the worker closes its pipe within this time, or has done so."""
    try:
        while worker.link.poll(seconds):
            worker.link.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


def _wait(worker: WorkerProcess) -> None:
    """Waits until the worker has ended, and kills it after END_S seconds."""
    if not _ended(worker, END_S):
        _signal(worker, signal.SIGKILL)
    worker.link.close()
    if worker.process is not None:
        worker.process.wait()


@dataclass(frozen=True)
class BaseContent:
    """The tensors of a base model, or those sent with it, and the layout that they must have."""

    tensors: Tensors
    layout: Layout


@dataclass(frozen=True, eq=False)
class _Slot:
    """`room` bytes of shared memory from `start` on, their content, and the version of each tensor."""

    start: int
    room: int
    content: BaseContent
    versions: tuple[int, ...]

    @property
    def place(self) -> BasePlace:
        return BasePlace(self.start, self.versions, self.content.layout)


class BasesInMemory:
    """Base models in shared memory; tensors that are there already are not written again."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._slots: list[_Slot] = []
        self._versions = 0

    def places(self, contents: Mapping[str, BaseContent]) -> dict[str, BasePlace]:
        """Writes the contents and returns the place of each, by key. Raises TensorError if tensors lack."""
        slots = {id(slot.content.tensors): slot for slot in self._slots}
        places = {key: slots[id(new.tensors)] for key, new in contents.items() if id(new.tensors) in slots}
        for key in sorted(contents.keys() - places.keys()):
            places[key] = self._put(contents[key], places.values())
        return {key: slot.place for key, slot in places.items()}

    def _put(self, new: BaseContent, occupied: Iterable[_Slot]) -> _Slot:
        """Writes `new` to a slot. A tensor that is the same array as in another slot has the same version."""
        check(new.tensors, new.layout)
        names = [spec.name for spec in new.layout]
        versions_of = {
            id(slot.content.tensors[spec.name]): version
            for slot in self._slots
            for spec, version in zip(slot.content.layout, slot.versions, strict=True)
        }
        fresh = iter(range(self._versions + 1, self._versions + 1 + len(names)))
        versions = tuple(versions_of.get(id(new.tensors[name])) or next(fresh) for name in names)
        self._versions += len(names)
        old = self._free_slot(new.layout, {id(slot) for slot in occupied})
        slot = _Slot(old.start, old.room, new, versions) if old else self._new_slot(new, versions)
        same_layout = old is not None and old.content.layout == new.layout
        before = old.versions if old is not None and same_layout else (0,) * len(names)
        for (spec, place), was, version in zip(packing.places(new.layout), before, versions, strict=True):
            if was != version:
                self._shared.write(new.tensors[spec.name], slot.start + place)
        self._slots = [*(other for other in self._slots if other is not old), slot]
        return slot

    def _free_slot(self, layout: Layout, occupied: set[int]) -> _Slot | None:
        """A slot that is not in use: with the same layout if possible, else the smallest that fits."""
        free = [slot for slot in self._slots if id(slot) not in occupied]
        alike = next((slot for slot in free if slot.content.layout == layout), None)
        size = packing.size_of(layout)
        return alike or min((slot for slot in free if slot.room >= size), key=lambda s: s.room, default=None)

    def _new_slot(self, new: BaseContent, versions: tuple[int, ...]) -> _Slot:
        """A new slot, after all others."""
        start = max((slot.start + slot.room for slot in self._slots), default=0)
        room = packing.size_of(new.layout)
        self._shared.grow(start + room)
        return _Slot(start, room, new, versions)
