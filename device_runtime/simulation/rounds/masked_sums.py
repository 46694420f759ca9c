"""Masked sums in a simulated run: groups that are too small, clipping, and central noise.

Updates are clipped as on devices, and the noise in a sum has the deviation that mask helpers add. Left out
are the masks, which cancel, and rounding to fixed point, which moves the mean change of 100 devices by about
2e-5 of its size. Noise is a Gaussian, drawn by the run's seed, so that a run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan

import numpy as np

from device_runtime.aggregator.tasks.mask_settings import CentralNoise, most_weight_of
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import Masks
from device_runtime.device.masking.upload_terms import upload_terms
from device_runtime.device.selection.choose import UploadTerms
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.clock.sampling import PendingUpdate
from device_runtime.simulation.data.loading import Clients
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update
from device_runtime.strategies.interface.kind import AnyStrategy, variant_named
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import SumLayout, layout_of

NOISE_DRAW = 0x6A55
"""Keeps the draws of central noise apart from all others of the same seed."""
Group = tuple[str, int, str, object]
"""Updates that are summed: their kind, the round that they were made for, the model, and the signature."""


class SimulatedSums:
    """Applies what masks change in a run's results: which updates count, clipping, and central noise."""

    def __init__(
        self, task: Task, masks: Masks, noise: CentralNoise | None, manifests: Mapping[str, Manifest]
    ) -> None:
        """`masks`: those of every offer of the run. `manifests` by member, the main model's by ""."""
        self._masks, self._noise, self._seed = masks, noise, task.seed
        self._kinds = {kind.name: kind.strategy for kind in task.kinds}
        self._manifests = manifests
        self._number, self._noisy = 0, set[Group]()
        self._signature = lru_cache(256)(lambda kind, form: self._layout(kind, form, NO_TENSORS).signature)

    @classmethod
    def of(cls, task: Task, clients: Clients, manifests: Mapping[str, Manifest]) -> SimulatedSums | None:
        """The masked sums of a run; None without masks. Raises TaskError."""
        if task.masks is None:
            return None
        devices = min(len(clients), task.devices_per_round or len(clients))
        masks = task.masks.offered(devices, most_weight_of(clients.sizes().tolist()))
        noise = CentralNoise.of(task.masks, task.rounds)
        return cls(task, noise.added_to(masks) if noise else masks, noise, manifests)

    def divide(
        self, number: int, flights: Sequence[PendingUpdate]
    ) -> tuple[list[PendingUpdate], list[PendingUpdate], tuple[str, ...]]:
        """Divides the updates of round `number`: those in opened sums, the others, kinds only among these.

        A training that then fails still counts in its group.
        """
        self._number, self._noisy = number, set()
        sizes = Counter(map(self._group, flights))
        parts: tuple[list[PendingUpdate], list[PendingUpdate]] = [], []
        for flight in flights:
            parts[sizes[self._group(flight)] < self._masks.min_group].append(flight)
        opened, unopened = parts
        fresh = [{flight.kind for flight in part if flight.round == number} for part in (unopened, opened)]
        return opened, unopened, tuple(sorted(fresh[0] - fresh[1]))

    @property
    def upload_terms(self) -> UploadTerms:
        """How devices send updates while no kind was alone."""
        terms = upload_terms(self._masks, tuple(self._kinds.values()), self._manifests.__getitem__)
        sizes = lru_cache(256)(lambda kind, form: terms.bytes_up(variant_named(self._kinds[kind], form)))
        return replace(terms, bytes_up=lambda form: sizes(form.name, form.variant))

    @property
    def reason(self) -> str:
        """Why an update was not opened."""
        return f"fewer than {self._masks.min_group} devices sent updates that can be summed with it"

    def bounded(self, update: Update, flight: PendingUpdate, base: Tensors) -> Update:
        """The update as it counts in its sum, with clipped changes; `base` is that of its own round.

        The first one of a sum has the noise of the whole sum.
        """
        layout = self._layout(flight.kind, update.variant, base)
        update, _ = sums.shortened(update, layout, self._masks.clip_milli / 1000)
        if self._noise is None:
            return update
        update, group = replace(update, train_loss=nan), self._group(flight)
        if group in self._noisy:
            return update
        rng = np.random.default_rng([self._seed, NOISE_DRAW, self._number, len(self._noisy)])
        self._noisy.add(group)
        sd = self._noise.deviation / sums.weight_share(
            self._kinds[flight.kind].weight(update), self._masks.most_weight
        )
        noisy = {
            part.name: update.tensors[part.name] + rng.normal(0.0, sd, part.shape).astype(np.float32)
            for part in layout.tensors
        }
        return replace(update, tensors={**update.tensors, **noisy})

    def spent(self, rounds: int) -> float:
        """Epsilon that so many rounds spend by their noise; nan without noise. Raises PrivacyUnavailable."""
        return nan if self._noise is None else self._noise.spent([self._noise.noise_milli] * rounds)

    def _group(self, flight: PendingUpdate) -> Group:
        form, member = (
            ("", "") if flight.strategy is None else (flight.strategy.variant, flight.strategy.member)
        )
        return flight.kind, flight.round, member, self._signature(flight.kind, form)

    def _layout(self, kind: str, form: str, base: Tensors) -> SumLayout:
        strategy: AnyStrategy = variant_named(self._kinds[kind], form)
        return layout_of(strategy, self._manifests[strategy.member], base, self._masks)
