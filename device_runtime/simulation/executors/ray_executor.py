"""The executor that trains on a Ray cluster, whose nodes may disappear during a round."""

from __future__ import annotations

import heapq
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.simulation.errors import ExecutorError

from . import packing
from .job import ExecutorInputs, Result, TrainingJob
from .packing import ExpectedTensors, Layout, Packed, Reply, WorkerException
from .processes import contents
from .ray_cluster import NOTHING, Bytes, Cluster, RayAnswer, RayJob, RayJobs

AHEAD = 4
"""Results for each worker that may wait for their turn, in the cluster's object store."""
MOST_LOSSES = 4


@dataclass(frozen=True)
class _Stored:
    """Tensors in the object store, a key that stands for their content, and their layout."""

    tensors: Tensors
    key: int
    layout: Layout
    ref: Any


_NONE = _Stored({}, 0, (), NOTHING)


@dataclass(frozen=True)
class _Running:
    """The state of a run.

    parts: the jobs that are sent at once; waiting: the parts to do, a heap of numbers; came: by job; losses:
    of each part; ticket: that of the first part.
    """

    ticket: int
    jobs: Sequence[TrainingJob]
    parts: Sequence[range]
    packed: Packed
    waiting: list[int]
    came: dict[int, tuple[Reply, Bytes, Bytes]]
    losses: Counter[int]


class RayExecutor:
    """The executor of a Ray cluster. Each node has the samples and base models once, in its object store.

    Another worker repeats the job of a worker that was lost. A new worker is asked for in its place, which
    starts when a core is free on any node. Nodes that join are used from the next run on.
    """

    def __init__(
        self,
        inputs: ExecutorInputs,
        address: str | None = None,
        workers: int | None = None,
        together: int | None = None,
    ) -> None:
        """`address`: "host:port", or "auto" for this machine's cluster; None starts a new cluster.

        together: jobs that a worker trains at once; None: `packing.jobs_together`.

        Raises ExecutorError without Ray or a cluster, and the errors of `PlainExecutor`.
        """
        if workers is not None and workers < 1:
            raise ExecutorError(f"workers is {workers}, expected at least 1")
        self._inputs, self._worker_count = inputs, workers
        self._together = packing.jobs_together(inputs.engine) if together is None else together
        self._cluster = Cluster(inputs, address, workers, self._together)
        self._end = weakref.finalize(self, self._cluster.close)
        self._load: Counter[int] = Counter()  # parts of each worker that is ready
        self._coming: set[int] = set()
        self._stored: dict[str, _Stored] = {}
        self._keys, self._tickets = 0, 0
        self._going: _Running | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return f"ray ({len(self._load)})"

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        going = self._begin(bases, jobs)
        expected = ExpectedTensors(self._inputs)
        try:
            for number, job in enumerate(jobs):
                self._feed(going, number)
                while number not in going.came:
                    self._listen()
                    self._feed(going, number)
                reply, tensors, memory = going.came.pop(number)
                yield expected.result(reply, job.strategy, tensors, 0, memory)
        finally:
            self._going = None

    def close(self) -> None:
        self._end()

    def _start(self) -> None:
        self._start_workers()
        expected = min(len(self._coming), max(1, self._cluster.cores()))
        while len(self._load) < expected:
            before = len(self._load)
            self._listen()
            if len(self._load) == before:
                return  # others have the cores; the workers that are ready begin

    def _start_workers(self) -> None:
        """Asks for workers up to the wanted number, or up to the cluster's present cores or GPUs."""
        target = self._worker_count or self._cluster.places()
        for _ in range(target - len(self._load) - len(self._coming)):
            self._coming.add(self._cluster.start_worker(target))

    def _begin(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> _Running:
        if not self._end.alive:
            raise ExecutorError("the executor is closed")
        if self._going is not None:
            raise ExecutorError("a run is going on; its results must be taken first")
        packed = packing.pack_jobs(jobs)
        self._put(bases, jobs)
        self._start_workers()
        parts = packing.parts_of(jobs, self._together, self._worker_count or self._cluster.places())
        self._going = _Running(self._tickets, jobs, parts, packed, list(range(len(parts))), {}, Counter())
        self._tickets += len(parts)
        return self._going

    def _put(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> None:
        """Puts the tensors that the jobs use into the object store, unless they are there."""
        entries: dict[str, _Stored] = {}
        for key, content in contents(self._inputs, bases, jobs).items():
            tensors, layout = content.tensors, content.layout
            entry = next((earlier for earlier in self._stored.values() if earlier.tensors is tensors), None)
            if entry is None:
                check(tensors, layout)
                self._keys += 1
                ordered = {spec.name: tensors[spec.name] for spec in layout}
                ref = self._cluster.ray.put(packing.joined(ordered))
                entry = _Stored(tensors, self._keys, layout, ref)
            entries[key] = entry
        self._stored = entries

    def _feed(self, going: _Running, first: int) -> None:
        """Sends parts to the least busy workers.

        Each has one at work and one queued; the last parts are sent one to each.
        """
        ahead = AHEAD * max(1, len(self._load)) * max(map(len, going.parts), default=1)
        while self._load and going.waiting and going.parts[going.waiting[0]].start < first + ahead:
            worker, busy = min(self._load.items(), key=lambda item: item[1])
            if busy >= (2 if len(going.waiting) > len(self._load) else 1):
                return
            self._send(worker, going, heapq.heappop(going.waiting))

    def _send(self, worker: int, going: _Running, number: int) -> None:
        jobs, memories = [], []
        for place in going.parts[number]:
            job = going.packed.jobs[place]
            layout = going.packed.layout(job)
            jobs.append(RayJob(place, going.packed.kinds[job.strategy], job, layout))
            memories.append(packing.joined(going.jobs[place].memory) if layout else NOTHING)
        first = going.packed.jobs[going.parts[number].start]
        base, aside = self._stored[first.base], self._stored[first.aside] if first.aside else _NONE
        sent = RayJobs(tuple(jobs), base.key, aside.layout)
        self._load[worker] += 1
        self._cluster.send(worker, going.ticket + number, sent, base.ref, aside.ref, *memories)

    def _listen(self) -> None:
        came = self._cluster.next()
        if not came and not self._load:
            raise ExecutorError("no worker of the Ray cluster is ready: has it a free core?")
        for returned in came:
            if returned.ticket < 0:
                self._arrived(returned)
            else:
                self._answered(returned)

    def _answered(self, returned: RayAnswer) -> None:
        going = self._going
        if returned.worker in self._load:
            self._load[returned.worker] -= 1
        if returned.replies is None:
            self._gone(returned.worker)
        if going is None or returned.ticket < going.ticket:
            return  # an answer for a run that was abandoned
        number = returned.ticket - going.ticket
        if returned.replies is not None:
            going.came.update(zip(going.parts[number], returned.replies, strict=True))
        else:
            self._again(going, number, returned.why)

    def _arrived(self, returned: RayAnswer) -> None:
        """Takes a new worker that is ready; raises the error of one that failed.

        One that is lost as it starts is replaced in the next round, unless it was the only one.
        """
        self._coming.discard(returned.worker)
        reply = returned.replies[0][0] if returned.replies else None
        if isinstance(reply, WorkerException):
            raise packing.error_of(reply)
        if reply is None:
            self._cluster.remove_worker(returned.worker)
            if not self._load and not self._coming:
                raise ExecutorError(f"a Ray worker did not start: {returned.why}")
        else:
            self._load[returned.worker] = 0

    def _gone(self, worker: int) -> None:
        if worker in self._load:
            del self._load[worker]
            self._cluster.remove_worker(worker)
            self._coming.add(self._cluster.start_worker(self._worker_count or self._cluster.places()))

    def _again(self, going: _Running, number: int, why: str) -> None:
        going.losses[number] += 1
        if going.losses[number] >= MOST_LOSSES:
            work = packing.described([going.jobs[place] for place in going.parts[number]])
            raise ExecutorError(f"{work} was lost with {MOST_LOSSES} workers; the last: {why}")
        heapq.heappush(going.waiting, number)
