"""Keeps a run within its privacy budget, where mask helpers add noise to sums.

A round counts as spent when it is opened: its masks, with the noise, are in the run's database before any
device is asked. So a round that a crash interrupts, or that is rolled back, counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.mask_settings import CentralNoise
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import Masks
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.interface.kind import inapplicable_reason
from device_runtime.strategies.masking.layout import layout_of


class NoiseBudget:
    """The noise of a run's sums, and what its rounds have spent. Raises RunFolderError."""

    def __init__(self, task: Task, store: Store, manifests: Mapping[str, Manifest]) -> None:
        """`manifests` by member, "" for the main model. Raises TaskError where there is no such noise."""
        self._task, self._store, self._manifests = task, store, manifests
        self._noise = CentralNoise.of(task.masks, task.rounds) if task.masks else None

    def noisy(self, masks: Masks) -> Masks:
        """The masks of an offer, with the noise of this run if it has any."""
        return masks if self._noise is None else self._noise.added_to(masks)

    def refusal(self, number: int) -> str:
        """Why round `number` must not be opened: it would exceed the budget; empty if it may be."""
        if self._noise is None:
            return ""
        return self._noise.refusal([noise for n, noise in self._opened().items() if n != number])

    def misfit(self, number: int, weights: Callable[[str], Tensors]) -> str:
        """Why devices must not be asked in the open round `number`; empty if they may be.

        It is that the fixed point of an update does not fit the noise. weights: gives those of a member that
        the round distributes, "" for the main model.
        """
        masks = self._store.sums.masks(number)
        if self._noise is None or masks is None:
            return ""
        for kind in self._task.offered(number):
            for form in kind.strategy.variants():
                manifest = self._manifests.get(form.member)
                if manifest is None or inapplicable_reason(form, manifest):
                    continue
                if why := self._noise.misfit(layout_of(form, manifest, weights(form.member), masks)):
                    return f"{kind.name}: {why}"
        return ""

    def spent(self, number: int) -> float:
        """Epsilon that all rounds up to `number` have spent; nan without noise."""
        if self._noise is None:
            return nan
        return self._noise.spent(noise for n, noise in self._opened().items() if n <= number)

    def _opened(self) -> dict[int, int]:
        """The noise multiplier, in thousandths, of each round that was opened with noise."""
        return self._store.sums.noise()
