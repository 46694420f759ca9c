"""The batched executor: many devices' training in a few large products, where it is known to be the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from models.tensors import Tensors
from strategies.class_statistics import wished
from strategies.kind import AnyStrategy

from .batched_heads import BatchedHeads
from .batched_many import BatchedNetworks
from .job import Executor, Job, Result, World

CACHE_BYTES = 256 << 20


class Way(Protocol):
    """Trains jobs of one strategy from one base together, `together` of them at most."""

    together: int

    def takes(self, strategy: AnyStrategy) -> bool:
        """Whether it does jobs of this strategy."""

    def train(self, base: Tensors, jobs: Sequence[Job]) -> list[Result]:
        """In order; each as if it were alone. Raises ModelError."""

    def close(self) -> None:
        """Gives memory back. May be called twice."""


class Batched:
    """See `Executor`. Heads are trained on features that are kept while the extractor stays the same, whole
    networks by one call of torch for a step of all, where that is the engine.

    Results are those of the plain executor to rounding. Jobs that gain nothing, those of smaller models, and
    devices without samples go to `fallback`, which is closed with this one.
    """

    def __init__(
        self, world: World, fallback: Executor, cache_bytes: int = CACHE_BYTES, networks: bool | None = None
    ) -> None:
        """`cache_bytes`: of features that are kept, about. `networks`: whether whole networks are trained
        together on engine torch; by a rule where it is None.
        """
        self.name = f"batched, {fallback.name}"
        self._world, self._fallback = world, fallback
        self._ways: tuple[Way, ...] = (BatchedHeads(world, cache_bytes), BatchedNetworks(world, networks))
        self._chosen: dict[AnyStrategy, Way | None] = {}

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[Job]) -> Iterator[Result]:
        ways = [self._way(job) for job in jobs]
        others = [job for job, way in zip(jobs, ways, strict=True) if way is None]
        rest = self._fallback.run(bases, others) if others else iter(())
        ready: dict[int, Result] = {}
        for i, way in enumerate(ways):
            if way is None:
                yield next(rest)
                continue
            if i not in ready:
                alike = (n for n in range(i, len(jobs)) if ways[n] is way and _alike(jobs[n], jobs[i]))
                chosen = list(islice(alike, way.together))
                results = way.train(bases[jobs[i].base], [jobs[n] for n in chosen])
                ready.update(zip(chosen, results, strict=True))
            yield ready.pop(i)

    def close(self) -> None:
        for way in self._ways:
            way.close()
        self._fallback.close()

    def _way(self, job: Job) -> Way | None:
        if job.strategy.member or not len(self._world.clients.indices(job.device)):
            return None
        if job.strategy not in self._chosen:
            alone = wished(job.strategy) is not None  # features of the base are measured beside it
            takers = (way for way in self._ways if not alone and way.takes(job.strategy))
            self._chosen[job.strategy] = next(takers, None)
        return self._chosen[job.strategy]


def _alike(job: Job, other: Job) -> bool:
    return job.base == other.base and job.strategy == other.strategy
