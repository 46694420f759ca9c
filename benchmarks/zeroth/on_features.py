"""An executor for heads on features: scalars by Heads, what trains or sums features by BatchedHeads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.executors.batched import BatchedHeads, Features
from device_runtime.simulation.executors.job import ExecutorInputs, Result, TrainingJob

from .heads import CACHE_BYTES, Heads


class OnFeatures:
    """See device_runtime.simulation.executors.job.Executor."""

    name = "on features"

    def __init__(self, inputs: ExecutorInputs) -> None:
        self._scalars = Heads(inputs)
        self._trained = BatchedHeads(inputs, Features(inputs, CACHE_BYTES))

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for (strategy, base), alike in groupby(jobs, key=lambda job: (job.strategy, job.base)):
            together = list(alike)
            if not self._trained.takes(strategy):
                yield from self._scalars.run(bases, together)
                continue
            for start in range(0, len(together), self._trained.together):
                some = together[start : start + self._trained.together]
                yield from self._trained.train(bases[base], some)

    def close(self) -> None:
        self._scalars.close()
        self._trained.close()
