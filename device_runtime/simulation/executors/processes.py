"""The executor that trains in worker processes of one thread each, on the cores of this machine."""

from __future__ import annotations

import mmap
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from device_runtime.machine_readings import trim_heap
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.profiles.machine import usable_cores
from device_runtime.simulation.errors import ExecutorError

from . import packing
from .job import ExecutorInputs, Result, TrainingJob
from .packing import ExpectedTensors, Packed, WorkerException, WorkerOpened
from .processes_memory import BATCH_JOBS, MOST_WORKERS, SharedJobQueue, SharedMemory
from .processes_pool import BaseContent, BasesInMemory, WorkerMessage, WorkerPool
from .processes_worker import JobBatch

LARGE_BYTES = 1 << 20
MOST_DEATHS = 3


class Processes:
    """The executor of worker processes, which take jobs by themselves while there is room for results.

    The samples are memory-mapped; base models and results are in shared memory once. A worker that dies is
    replaced and its job is done again. Workers end with `close`, with this process, and when it is killed.
    """

    def __init__(self, inputs: ExecutorInputs, workers: int | None = None) -> None:
        """`workers`: as many as usable cores if None. Clients that were opened from files are not copied.

        Raises EngineError, BundleError, and ExecutorError for workers that cannot be started.
        """
        count = usable_cores() if workers is None else workers
        if not 1 <= count <= MOST_WORKERS:
            raise ExecutorError(f"workers is {count}, expected 1 to {MOST_WORKERS}")
        self.name = f"processes ({count})"
        self._inputs = inputs
        self._pool = WorkerPool(inputs)
        self._end = weakref.finalize(self, self._pool.close)
        self._queue = SharedJobQueue(self._pool.queue)
        self._bases = BasesInMemory(self._pool.bases)
        self._going: RunningBatch | None = None
        self._opened = 0
        self._mapped: mmap.mmap | None = None
        try:
            self._start(count)
        except BaseException:
            self.close()
            raise

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for start in range(0, len(jobs), BATCH_JOBS):
            yield from self._run_batch(bases, jobs[start : start + BATCH_JOBS])

    def close(self) -> None:
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers that have sent theirs."""
        return tuple(filter(None, self._pool.pids.values()))

    def _start(self, count: int) -> None:
        self._pool.start_workers(*range(count))
        ready = 0
        while ready < count:
            for message in self._pool.listen():
                if message.reply is None:
                    how = self._pool.remove_worker(message.worker)
                    raise ExecutorError(f"worker {message.worker} did not start: {how}")
                if isinstance(message.reply, WorkerException):
                    raise packing.error_of(message.reply)
                ready += 1

    def _run_batch(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        going = self._begin(bases, jobs)
        try:
            buffer = self._results(going.slots * going.slot_bytes)
            for number, job in enumerate(jobs):
                self._check_open()
                self._open(going, number)
                while number not in going.replies:
                    self._listen()
                start = number % going.slots * going.slot_bytes
                message = going.replies.pop(number)
                if message.reply is not None:
                    yield going.expected.result(message.reply, job.strategy, buffer, start, message.memory)
                _let_go(buffer, start, going.slot_bytes)
        finally:
            if self._end.alive:
                self._queue.stop()
            self._going = None

    def _begin(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> RunningBatch:
        """Writes a batch of jobs, none of which may be taken yet; waits for jobs left by an abandoned run."""
        self._check_open()
        if self._going is not None:
            raise ExecutorError("a run is going on; its results must be taken first")
        while self._queue.taken():
            self._listen()
        going = plan_batch(self._inputs, jobs, len(self._pool.pids))
        places = self._bases.places(contents(self._inputs, bases, jobs))
        self._pool.memories.grow(max(going.slots * going.memory_bytes, 1))
        batch = JobBatch(going.packed, going.slots, going.slot_bytes, going.memory_bytes, places)
        text = packing.pack(batch)
        with self._queue.locked():
            self._pool.batch.write(text, 0)
            self._queue.begin(len(jobs), len(text))
        self._going, self._opened = going, 0
        if going.slot_bytes >= LARGE_BYTES:
            trim_heap()  # memory that merging the last round has left
        return going

    def _open(self, going: RunningBatch, first: int) -> None:
        """Lets workers take as many jobs as results have room for; all jobs before `first` are done."""
        end = min(first + going.slots, len(going.jobs))
        if end > self._opened:
            for number in range(self._opened, end):
                going.remember(number, self._pool.memories)
            self._opened = end
            self._pool.wake(self._queue.open(first, end))

    def _check_open(self) -> None:
        if not self._end.alive:
            raise ExecutorError("the executor is closed")

    def _results(self, size: int) -> mmap.mmap:
        """The memory of a batch's results, mapped again only when it has grown."""
        if self._mapped is None or len(self._mapped) < size:
            self._pool.results.grow(max(size, 1))
            self._mapped = self._pool.results.view(max(size, 1))
        return self._mapped

    def _listen(self) -> None:
        for message in self._pool.listen():
            if message.reply is None:
                self._replace(message.worker)
            elif isinstance(message.reply, WorkerException) and message.reply.job < 0:
                raise packing.error_of(message.reply)
            elif not isinstance(message.reply, WorkerOpened):
                self._queue.done(message.reply.job)
                if self._going is not None:
                    self._going.replies[message.reply.job] = message

    def _replace(self, worker: int) -> None:
        """Replaces a worker that died, and frees its job."""
        how, going = self._pool.remove_worker(worker), self._going
        orphans = self._queue.give_back(worker)
        blamed = orphans[-1] if orphans else -1
        if going is not None:
            going.deaths[blamed] += 1
        hopeless = going is not None and going.deaths[blamed] >= MOST_DEATHS
        if hopeless:
            self._queue.stop()
        self._pool.start_workers(worker)
        if going is not None and hopeless:
            work = _job_text(going.jobs, blamed)
            raise ExecutorError(f"{work} ended {MOST_DEATHS} workers; the last: {how}")


def _let_go(buffer: mmap.mmap, start: int, size: int) -> None:
    """Unmaps a used result from this process; its pages stay in shared memory."""
    if size >= LARGE_BYTES and hasattr(mmap, "MADV_DONTNEED"):
        buffer.madvise(mmap.MADV_DONTNEED, start, size)


def _job_text(jobs: Sequence[TrainingJob], number: int) -> str:
    if number < 0:
        return "starting"
    return f"{jobs[number].strategy.name} for {jobs[number].name} (seed {jobs[number].seed})"


RESULTS_BYTES = 32 << 20
"""Approximate bytes of results that may wait for their turn; at least two of each worker may."""
MOST_SLOTS = 1024


@dataclass(frozen=True)
class RunningBatch:
    """The state of one batch of jobs in the parent process.

    Result i is in slot i % slots, of `slot_bytes`; the memory of job i in that slot of the memories, of
    `memory_bytes`. `replies`: the messages by job; `deaths`: the workers that died on each job.
    """

    jobs: Sequence[TrainingJob]
    packed: Packed
    expected: ExpectedTensors
    slots: int
    slot_bytes: int
    memory_bytes: int
    replies: dict[int, WorkerMessage] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def remember(self, number: int, memories: SharedMemory) -> None:
        """Writes a job's memory (its device's strategy state) to its slot, where its worker reads it."""
        start = number % self.slots * self.memory_bytes
        for spec, place in packing.places(self.packed.layout(self.packed.jobs[number])):
            memories.write(self.jobs[number].memory[spec.name], start + place)


def plan_batch(inputs: ExecutorInputs, jobs: Sequence[TrainingJob], workers: int) -> RunningBatch:
    """Plans a batch, with as many slots as there is room for results. Raises ExecutorError, ModelError."""
    expected, packed = ExpectedTensors(inputs), packing.pack_jobs(jobs)
    size = max(expected.size(job.strategy) for job in jobs)
    slot = size + -size % mmap.PAGESIZE
    memory = max((packing.size_of(layout) for layout in packed.layouts), default=0)
    room = RESULTS_BYTES // max(slot + memory, 1)
    slots = min(max(2 * workers + 1, min(MOST_SLOTS, room)), len(jobs))
    return RunningBatch(jobs, packed, expected, slots, slot, memory)


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
