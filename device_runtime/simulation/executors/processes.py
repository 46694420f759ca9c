"""The executor that trains in worker processes of one thread each, on the cores of this machine."""

from __future__ import annotations

import heapq
import itertools
import mmap
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_runtime.machine_readings import trim_heap
from device_runtime.models.available_engines.available import engine_choice
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.profiles.measure import usable_cores
from device_runtime.service_process import python_command
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError

from . import packing
from .job import ExecutorInputs, Result, TrainingJob
from .packing import ExpectedTensors, Layout, Packed, Reply, TrainedReply, WorkerException, WorkerOpened
from .processes_worker import BasePlace, SentJob, SentJobs, SharedMemory, WorkerInputs

MOST_WORKERS = 1 << 10
MOST_DEATHS = 3
AHEAD = 8
"""Jobs that a worker has at most, so that it does not wait for this process where that waits for a core."""
END_S = 5.0
LARGE_BYTES = 1 << 20
RESULTS_BYTES = 32 << 20
"""Approximate bytes of results that may wait for their turn; at least two of each worker may."""
MOST_SLOTS = 1024
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_PROGRAM = (
    "import sys; from device_runtime.simulation.executors.processes_worker import main; main(sys.argv[1])"
)


Answer = dict[int, tuple[Reply, bytes]]
"""A worker's replies by job, each with the memory of its result, if any; empty from one that has started."""


@dataclass
class _Worker:
    """A worker process, the pipe to it, and the numbers of the parts that it was sent, the oldest first."""

    process: subprocess.Popen[bytes]
    link: Connection
    parts: list[int] = field(default_factory=list)


@dataclass
class _Run:
    """The state of a run.

    Result i is in slot i % slots, of `slot_bytes`. parts: the jobs that are sent at once; waiting: the parts
    to do, a heap of numbers; replies: with the memory of each result; deaths: the workers that died on each.
    """

    jobs: Sequence[TrainingJob]
    parts: Sequence[range]
    packed: Packed
    slots: int
    slot_bytes: int
    places: dict[str, BasePlace] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    replies: dict[int, tuple[Reply, bytes]] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def start(self, number: int) -> int:
        """The byte at which the slot of a job begins."""
        return number % self.slots * self.slot_bytes


class Processes:
    """The executor of worker processes.

    The samples are memory-mapped; base models and results are in shared memory once. A worker that dies is
    replaced and its jobs are done again. Workers end with `close`, with this process, and when it is killed.
    """

    def __init__(
        self, inputs: ExecutorInputs, workers: int | None = None, together: int | None = None
    ) -> None:
        """`workers`: as many as usable cores if None. Clients that were opened from files are not copied.

        together: jobs that a worker trains at once; None: `packing.jobs_together`.

        Raises EngineError, BundleError, and ExecutorError for workers that cannot be started.
        """
        count = usable_cores() if workers is None else workers
        if not 1 <= count <= MOST_WORKERS:
            raise ExecutorError(f"workers is {count}, expected 1 to {MOST_WORKERS}")
        engine_choice(inputs.bundle, inputs.engine)
        self.name = f"processes ({count})"
        self._inputs, self._expected = inputs, ExpectedTensors(inputs)
        self._together = packing.jobs_together(inputs.engine) if together is None else together
        saved = _saved_in(inputs.clients)
        self._temporary = saved is None
        self._folder = Path(tempfile.mkdtemp(prefix="device-runtime-")) if saved is None else saved
        self._bases, self._results = SharedMemory.make(), SharedMemory.make()
        self._workers: dict[int, _Worker] = {}
        memories, folders = (self._bases, self._results), [self._folder] if self._temporary else []
        self._end = weakref.finalize(self, _close, self._workers, memories, folders)
        self._versions: dict[int, tuple[Any, int]] = {}
        self._numbers = itertools.count(1)
        self._written: dict[int, int] = {}
        self._going: _Run | None = None
        self._mapped: mmap.mmap | None = None
        try:
            if self._temporary:
                inputs.clients.save(self._folder)
            self._open(count)
        except BaseException:
            self.close()
            raise

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        run = self._begin(bases, jobs)
        try:
            buffer = self._view(run.slots * run.slot_bytes)
            for number, job in enumerate(jobs):
                self._feed(run, number)
                while number not in run.replies:
                    self._listen()
                    self._feed(run, number)
                reply, memory = run.replies.pop(number)
                yield self._expected.result(reply, job.strategy, buffer, run.start(number), memory)
                if run.slot_bytes >= LARGE_BYTES and hasattr(mmap, "MADV_DONTNEED"):
                    buffer.madvise(
                        mmap.MADV_DONTNEED, run.start(number), run.slot_bytes
                    )  # only unmaps it here
        finally:
            self._going = None

    def close(self) -> None:
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers.values())

    def _open(self, count: int) -> None:
        for number in range(count):
            self._start(number)
        ready = 0
        while ready < count:
            for number, answer in self._messages():
                if answer is None:
                    raise ExecutorError(f"worker {number} did not start: {_ended(self._workers.pop(number))}")
                ready += 1

    def _start(self, number: int) -> None:
        """Starts a worker, which ignores Ctrl-C: that reaches every process of a terminal."""
        inputs, (link, theirs) = self._inputs, Pipe()
        files = theirs.fileno(), self._bases.fd, self._results.fd
        arguments = WorkerInputs(
            number,
            *files,
            bundle=str(inputs.bundle.path.absolute()),
            family={name: str(bundle.path.absolute()) for name, bundle in inputs.family.items()},
            clients=str(self._folder.absolute()),
            temporary=self._temporary,
            engine=inputs.engine,
            together=self._together,
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the worker inherits this
        try:
            process = subprocess.Popen(
                python_command(_PROGRAM, msgspec.json.encode(arguments).decode()),
                pass_fds=files,
                env=os.environ | dict.fromkeys(THREADS, str(inputs.engine.threads)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._workers[number] = _Worker(process, link)

    def _begin(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> _Run:
        """Plans a run and writes its bases; waits for jobs that an abandoned run has left."""
        self._check_open()
        if self._going is not None:
            raise ExecutorError("a run is going on; its results must be taken first")
        while any(worker.parts for worker in self._workers.values()):
            self._listen()
        packed = packing.pack_jobs(jobs)
        sizes = [self._expected.size(job.strategy) for job in jobs] + [*map(packing.size_of, packed.layouts)]
        size = max(sizes, default=0)
        slot = max(size + -size % mmap.PAGESIZE, mmap.PAGESIZE)
        room = min(MOST_SLOTS, RESULTS_BYTES // slot)
        parts = packing.parts_of(jobs, self._together, len(self._workers))
        least = (2 * len(self._workers) + 1) * max(map(len, parts), default=1)
        run = _Run(jobs, parts, packed, min(max(least, room), max(len(jobs), 1)), slot)
        run.places = self._write(contents(self._inputs, bases, jobs))
        run.waiting = list(range(len(parts)))
        self._going = run
        if slot >= LARGE_BYTES:
            trim_heap()  # memory that merging the last round has left
        return run

    def _write(self, models: Mapping[str, BaseContent]) -> dict[str, BasePlace]:
        """Writes base models, but for tensors that are there already; returns the place of each, by key.

        The same array has the same version, in every base and run. Raises TensorError if tensors lack.
        """
        places, start, arrays, written = {}, 0, dict[int, tuple[Any, int]](), dict[int, int]()
        for key in sorted(models):
            tensors, layout = models[key].tensors, models[key].layout
            check(tensors, layout)
            self._bases.grow(start + packing.size_of(layout))
            versions = []
            for spec, offset in packing.places(layout):
                array, at = tensors[spec.name], start + offset
                entry = arrays.get(id(array)) or self._versions.get(id(array)) or (array, next(self._numbers))
                arrays[id(array)] = entry
                written[at] = entry[1]
                versions.append(entry[1])
                if self._written.get(at) != entry[1]:
                    self._bases.write(array, at)
            places[key] = BasePlace(start, tuple(versions), layout)
            start = places[key].end
        self._versions, self._written = arrays, written
        return places

    def _check_open(self) -> None:
        if not self._end.alive:
            raise ExecutorError("the executor is closed")

    def _view(self, size: int) -> mmap.mmap:
        """The memory of a run's results, mapped again only when it has grown."""
        if self._mapped is None or len(self._mapped) < size:
            self._results.grow(size)
            self._mapped = self._results.view(size)
        return self._mapped

    def _feed(self, run: _Run, first: int) -> None:
        """Sends jobs to the least busy workers while results have room; all jobs before `first` are done.

        Each worker has one part at work and up to AHEAD - 1 queued; the last parts are sent one to each.
        """
        self._check_open()
        while run.waiting and run.parts[run.waiting[0]].stop <= first + run.slots:
            worker = min(self._workers.values(), key=lambda each: len(each.parts))
            if len(worker.parts) >= max(1, min(AHEAD, len(run.waiting) // len(self._workers))):
                return
            number = heapq.heappop(run.waiting)
            worker.parts.append(number)
            with suppress(OSError):  # `_listen` notices a worker that has died
                worker.link.send_bytes(packing.pack(self._sent(run, run.parts[number])))

    def _sent(self, run: _Run, part: range) -> SentJobs:
        """The message of a part's jobs, whose memory is written to the places of their results."""
        sent = []
        for number in part:
            job, start = run.packed.jobs[number], run.start(number)
            layout = run.packed.layout(job)
            for spec, place in packing.places(layout):
                self._results.write(run.jobs[number].memory[spec.name], start + place)
            sent.append(SentJob(number, job, run.packed.kinds[job.strategy], start, layout))
        first = run.packed.jobs[part.start]
        aside = run.places[first.aside] if first.aside else None
        return SentJobs(tuple(sent), run.places[first.base], aside)

    def _listen(self) -> None:
        for number, answer in self._messages():
            if answer is None:
                self._replace(number)
            elif answer:
                self._workers[number].parts.pop(0)
                if self._going is not None:
                    self._going.replies.update(answer)

    def _messages(self) -> Iterator[tuple[int, Answer | None]]:
        """Waits for at least one message; yields the worker and its answer (None: it has died).

        Raises the error of a worker that cannot start.
        """
        links = {number: worker.link for number, worker in self._workers.items()}
        ready = wait(links.values())
        for number, link in links.items():
            if link not in ready:
                continue
            answer: Answer = {}
            try:
                for reply in packing.read_replies(link.recv_bytes()):
                    if isinstance(reply, WorkerException) and reply.job < 0:
                        raise packing.error_of(reply)
                    if not isinstance(reply, WorkerOpened):
                        has_memory = isinstance(reply, TrainedReply) and reply.memory is not None
                        answer[reply.job] = reply, link.recv_bytes() if has_memory else b""
                yield number, answer
            except (EOFError, OSError):
                yield number, None
            except msgspec.DecodeError as error:
                raise ExecutorError(f"worker {number} sent a message that cannot be read: {error}") from None

    def _replace(self, number: int) -> None:
        """Replaces a worker that died; its parts are done again, and the first of them is blamed."""
        worker, run = self._workers.pop(number), self._going
        how = _ended(worker)
        self._start(number)
        if run is None:
            return
        for orphan in worker.parts:
            heapq.heappush(run.waiting, orphan)
        blamed = next(iter(worker.parts), -1)
        run.deaths[blamed] += 1
        if run.deaths[blamed] >= MOST_DEATHS:
            work = packing.described([run.jobs[i] for i in run.parts[blamed]]) if blamed >= 0 else "starting"
            raise ExecutorError(f"{work} ended {MOST_DEATHS} workers; the last: {how}")


def _ended(worker: _Worker) -> str:
    """How a worker that has closed its pipe ended."""
    worker.link.close()
    worker.process.terminate()
    code = worker.process.wait()
    if code >= 0:
        return f"exit status {code}"
    cause = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{cause}"


def _close(workers: dict[int, _Worker], memories: Sequence[SharedMemory], folders: Sequence[Path]) -> None:
    """Ends all workers; frees memory and folder."""
    for worker in workers.values():
        worker.process.terminate()
    for worker in workers.values():
        try:
            worker.process.wait(END_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker.link.close()
    workers.clear()
    for memory in memories:
        memory.close()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _saved_in(clients: Clients) -> Path | None:
    """The folder that memory-mapped clients were opened from; None for clients in memory."""
    files = [Path(a.filename or "") for a in (clients.x, clients.order) if isinstance(a, np.memmap)]
    both = len(files) == 2 and [file.name for file in files] == ["x.npy", "order.npy"]
    return files[0].parent if both and files[0].parent == files[1].parent else None


@dataclass(frozen=True)
class BaseContent:
    """The tensors of a base model, or those sent with it, and the layout that they must have."""

    tensors: Tensors
    layout: Layout


def contents(
    inputs: ExecutorInputs, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]
) -> dict[str, BaseContent]:
    """The tensors of `bases` that the jobs use, by key."""
    members = {job.base: job.strategy.member for job in jobs}
    models = {
        key: BaseContent(bases[key], inputs.of(member).manifest.stored()) for key, member in members.items()
    }
    asides = {job.aside for job in jobs if job.aside}
    return models | {key: BaseContent(bases[key], packing.specs_of(bases[key])) for key in asides}
