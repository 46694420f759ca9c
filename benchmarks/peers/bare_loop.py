"""The yardstick: federated averaging in plain torch, without any framework.

Two processes with one thread each, the first of which also averages. The weights lie in shared memory; each
process takes the next user of the cohort until none is left, trains from a copy of the weights and adds the
result to its own sum in shared memory; the sums are then added and divided. A network's parameters are views
of one vector, so that copying and adding are one operation each. SGD without momentum is one call of
torch._foreach_add_ on what torch.autograd.grad gives. Processes are forked, as Python does here by default.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from networks import Trainer
from work import WORKS, Job, report, weights


class Shared:
    """Memory of all processes: the weights, a sum for each process, the cohort and its next user."""

    def __init__(self, job: Job, values: int) -> None:
        context = multiprocessing.get_context("fork")
        self.base = _vector(context.RawArray("f", values))
        self.sums = [_vector(context.RawArray("f", values)) for _ in range(job.workers)]
        self.cohort = context.RawArray("q", job.cohort)
        self.next = context.Value("q", 0)

    def users(self) -> Iterator[int]:
        """Those of the round that no other process has taken."""
        while True:
            with self.next.get_lock():
                index = self.next.value
                self.next.value = index + 1
            if index >= len(self.cohort):
                return
            yield self.cohort[index]

    def average(self, members: int) -> None:
        """The processes' sums become the weights."""
        first, *others = self.sums
        self.base.copy_(first)
        for other in others:
            self.base.add_(other)
        self.base.div_(members)


def _vector(memory: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(memory, np.float32))


def part_of_round(trainer: Trainer, shared: Shared, rank: int, round_: int) -> None:
    """Trains users as long as there are any, into this process's sum."""
    total = shared.sums[rank].zero_()
    for user in shared.users():
        trainer.flat.copy_(shared.base)
        trainer.train(user, round_)
        total.add_(trainer.flat)


def follow(job: Job, shared: Shared, rank: int, line: Connection) -> None:
    """A process beside the first: a part of each round, when told to."""
    trainer = Trainer(job, WORKS[job.work])
    for round_ in range(job.rounds):
        line.recv_bytes()
        part_of_round(trainer, shared, rank, round_)
        line.send_bytes(b"done")


def main() -> None:
    job = Job.read(__doc__)
    torch.set_num_threads(1)
    start = np.concatenate([value.ravel() for value in weights(job).values()])
    shared = Shared(job, len(start))
    shared.base.copy_(torch.from_numpy(start))
    context, lines = multiprocessing.get_context("fork"), []
    for rank in range(1, job.workers):
        line, other = context.Pipe()
        context.Process(target=follow, args=(job, shared, rank, other), daemon=True).start()
        lines.append(line)
    trainer = Trainer(job, WORKS[job.work])
    marks = [time.perf_counter()]
    for round_, cohort in enumerate(job.cohorts()):
        shared.cohort[:] = cohort
        shared.next.value = 0
        for line in lines:
            line.send_bytes(b"go")
        part_of_round(trainer, shared, 0, round_)
        for line in lines:
            line.recv_bytes()
        shared.average(job.cohort)
        marks.append(time.perf_counter())
    trainer.flat.copy_(shared.base)
    report(job, marks, lambda: trainer.views, ("torch", "numpy"))


if __name__ == "__main__":
    main()
