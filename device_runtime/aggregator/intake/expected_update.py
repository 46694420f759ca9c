"""What the contributions of a run are held against, in memory as far as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors

from .check import Offered

BASES_HELD = 2
"""Bases in memory of each model, where contributions are held against them: the open round's, and one that a
late contribution was made for."""


class Standard:
    """Of one life of a task. `weights` reads the base of a round and a member of `manifests`."""

    def __init__(
        self,
        task: Task,
        run: str,
        manifests: Mapping[str, Manifest],
        weights: Callable[[int, str], Tensors],
    ) -> None:
        self._of = (task, run, manifests)
        self._base = lru_cache(BASES_HELD * len(manifests))(weights)
        self.offered = lru_cache(2 * BASES_HELD)(self._offered)
        self.needs_base = any(kind.max_norm is not None or kind.strategy.codec for kind in task.kinds)

    def _offered(self, number: int) -> Offered:
        """With the base of round `number`, 0 for none; it is read only where something is held against it."""
        needed = self.needs_base and number > 0
        return Offered(*self._of, lambda member: self._base(number, member) if needed else {})
