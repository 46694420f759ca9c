"""Heads of many devices trained at once, and class sums, both on features that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.errors import TensorError
from device_runtime.models.training.heads import Lesson, joined, parted, train_heads
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.training.device_half import Contribution
from device_runtime.strategies.training.head_training import HeadTraining, TakesFeatures, TrainsHead

from .batched_features import Features, Known
from .job import Failed, Job, Result, World, run_of

TOGETHER_BYTES = 1 << 20
"""Of heads that are trained at once; more would leave a processor's cache and gain nothing."""
LEAST_TOGETHER = 8


class BatchedHeads:
    """Jobs of kinds that train the head alone, or need features alone."""

    def __init__(self, world: World, features: Features) -> None:
        self._manifest = world.bundle.manifest
        self._features = features
        head = self._manifest.head
        size = 4 * len(self._manifest.labels) * (head.features + 1)
        self.together = max(LEAST_TOGETHER, TOGETHER_BYTES // size)

    def takes(self, strategy: AnyStrategy) -> bool:
        """Whether jobs of this kind are done here, from what the kind says of itself."""
        if isinstance(strategy, TakesFeatures):
            return True
        return isinstance(strategy, TrainsHead) and strategy.trains_head(self._manifest)

    def train(self, base: Tensors, jobs: Sequence[Job]) -> list[Result]:
        """Of one strategy from one base, in order. Raises as `Features.of` does."""
        strategy = jobs[0].strategy
        known = self._features.of(base, [job.device for job in jobs])
        if isinstance(strategy, TakesFeatures):
            width = self._manifest.head.features
            results = [strategy.from_features(k.inputs[:, :width], k.y, self._manifest) for k in known]
            made = [replace(result, form=strategy.form) for result in results]
            return [_checked(result, self._manifest, strategy) for result in made]
        return self._trained(base, jobs, known)

    def close(self) -> None:
        self._features.forget()

    def _trained(self, base: Tensors, jobs: Sequence[Job], known: Sequence[Known]) -> list[Result]:
        plans = [_plan(job, k) for job, k in zip(jobs, known, strict=True)]
        lessons = [Lesson(k.inputs, k.y, p.batches, p.counted) for k, p in zip(known, plans, strict=True)]
        head, strategy = self._manifest.head, jobs[0].strategy
        learnt = train_heads(joined(base, head), lessons, plans[0].optimizer, plans[0].clip_norm)
        made = [
            Contribution(strategy.name, tensors, len(k.y), float(loss), strategy.form)
            for tensors, k, loss in zip(parted(learnt.heads, head), known, learnt.losses, strict=True)
        ]
        if np.isfinite(learnt.heads).all():
            return list(made)
        return [_checked(contribution, self._manifest, strategy) for contribution in made]


def _plan(job: Job, known: Known) -> HeadTraining:
    strategy: TrainsHead = job.strategy  # type: ignore[assignment]  # by `takes`
    return strategy.head_training(known.y, run_of(job))


def _checked(made: Contribution, manifest: Manifest, strategy: AnyStrategy) -> Result:
    try:
        check(made.tensors, strategy.expected(manifest))
    except TensorError as error:
        return Failed(str(error))
    return made
