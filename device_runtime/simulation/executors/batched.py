"""The batched executor: many devices' training in a few large products, where it is known to be the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.errors import TensorError
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.statistics.class_statistics import (
    Measured,
    beside,
    measured,
    parted,
    specs,
    wished,
)

from .batched_features import Features, Known
from .batched_heads import BatchedHeads
from .batched_many import BatchedNetworks
from .job import Executor, Failed, Job, Result, World, run_of

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
    networks by one call of torch for a step of all, where that is the engine. Class statistics are of the
    features that are kept.

    Results are those of the plain executor to rounding. Jobs that gain nothing, those of smaller models or
    with samples held out, and devices without samples go to `fallback`, which is closed with this one.
    """

    def __init__(
        self, world: World, fallback: Executor, cache_bytes: int = CACHE_BYTES, networks: bool | None = None
    ) -> None:
        """`cache_bytes`: of features that are kept, about. `networks`: whether whole networks are trained
        together on engine torch; by a rule where it is None.
        """
        self.name = f"batched, {fallback.name}"
        self._world, self._fallback = world, fallback
        self._features = Features(world, cache_bytes)
        self._ways: tuple[Way, ...] = (BatchedHeads(world, self._features), BatchedNetworks(world, networks))
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
                results = self._trained(way, bases[jobs[i].base], [jobs[n] for n in chosen])
                ready.update(zip(chosen, results, strict=True))
            yield ready.pop(i)

    def close(self) -> None:
        for way in self._ways:
            way.close()
        self._features.forget()
        self._fallback.close()

    def _trained(self, way: Way, base: Tensors, jobs: Sequence[Job]) -> list[Result]:
        """Of one strategy from one base, in order, with the class statistics that it asks for."""
        results = way.train(base, jobs)
        if wished(jobs[0].strategy) is None:
            return results
        known = self._features.of(base, [job.device for job in jobs])
        manifest = self._world.bundle.manifest
        return [_with_statistics(*each, manifest) for each in zip(results, jobs, known, strict=True)]

    def _way(self, job: Job) -> Way | None:
        if job.strategy.member or not len(self._world.clients.indices(job.device)):
            return None
        if (asked := wished(job.strategy)) is not None and asked.hold_out:
            return None
        if job.strategy not in self._chosen:
            takers = (way for way in self._ways if way.takes(job.strategy))
            self._chosen[job.strategy] = next(takers, None)
        return self._chosen[job.strategy]


def _alike(job: Job, other: Job) -> bool:
    return job.base == other.base and job.strategy == other.strategy


def _with_statistics(made: Result, job: Job, known: Known, manifest: Manifest) -> Result:
    """As `class_statistics.train` makes them, and draws for them."""
    if isinstance(made, Failed):
        return made
    strategy, run = job.strategy, run_of(job)
    rows = measured(strategy, len(known.y), run)
    features, y = known.inputs[:, : manifest.head.features], known.y
    if rows is not None:
        features, y = features[rows], y[rows]
    try:
        whole = beside(strategy, made, Measured(features, y, len(manifest.labels)), run)
        check(parted(whole.tensors)[1], specs(strategy, manifest))
    except TensorError as error:
        return Failed(str(error))
    return whole
