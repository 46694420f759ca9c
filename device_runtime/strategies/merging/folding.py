"""Folds the updates of a round one by one, and merges them; only sums are held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from device_runtime.models.bundles.tensors import Tensors, all_finite
from device_runtime.models.errors import TensorError
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface.aggregator_half import CarriedState, KindResult, RoundModel
from device_runtime.strategies.interface.capabilities import DerivesMembers
from device_runtime.strategies.interface.device_half import NO_TENSORS, Late, Update
from device_runtime.strategies.interface.kind import AnyStrategy, inapplicable_reason, variant_named
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.statistics import bounds, closed_form, held_out, shortages
from device_runtime.strategies.statistics.class_statistics import Statistics, is_from_site
from device_runtime.strategies.statistics.kind_statistics import samples_per_measured

from .merge import FEDAVG, NOTHING_CARRIED, Merged, merge
from .server_optimizer import ServerOptimizer, squared_changes


class Folding:
    """Turns a round's contributions into the next base.

    Add contributions in a fixed order, so that sums have the same bits.
    """

    def __init__(
        self,
        kinds: Mapping[str, AnyStrategy],
        model: RoundModel,
        carried: CarriedState = NOTHING_CARRIED,
        optimizer: ServerOptimizer = FEDAVG,
        rests: bool = False,
    ) -> None:
        """`kinds` is by name, in the order of preference; `carried` is from the round before.

        rests: remember which classes were trained on, so that offers can say what is wanted.
        Kinds that do not apply to the bundle's loss are left out: there are no updates of them.
        """
        kinds = {name: kind for name, kind in kinds.items() if not inapplicable_reason(kind, model.manifest)}
        self._kinds, self._model, self._carried, self._optimizer = kinds, model, carried, optimizer
        self._models = {
            name: replace(model, family=carried.family, memory=carried.memory.get(name, NO_TENSORS))
            for name in kinds
        }
        self._states = {name: _started(strategy, self._models[name]) for name, strategy in kinds.items()}
        spec = next((kind.statistics for kind in kinds.values() if kind.statistics is not None), None)
        self._hold_out = bool(spec and spec.hold_out)
        self._statistics = (
            closed_form.RoundStatistics(model.manifest, model.weights, spec, model.round) if spec else None
        )
        self._trained = shortages.TrainedClasses(model.manifest.strata) if rests else None
        self._mixed = len(kinds) > 1 and self._statistics is not None
        self._squares: dict[str, dict[str, float]] = {}

    def parted(self, update: Update) -> tuple[Update, Statistics | None]:
        """Split an update into its tensors, for `add`, and its class statistics, for `pool`.

        The statistics are scaled to all samples and rounds that they stand for; None if it has none.
        """
        if self._statistics is None:
            return update, None
        rest, statistics = self._statistics.parted(update)
        strategy = variant_named(self._kinds[update.kind], update.variant)
        if statistics is None:
            return rest, None
        self.trained_on(update.kind, update.variant, statistics)
        times = 1.0
        if not is_from_site(update.tensors):
            times = samples_per_measured(strategy, update.num_examples, statistics.sums.counts.sum())
        times *= update.late.times if update.late else 1.0
        return rest, statistics if times == 1 else statistics.standing_for(times)

    def largest_size(self, sizes: Sequence[float]) -> float:
        """The most samples that a device counts for in a round of devices of these sizes; inf for any."""
        memory = self.remembered(closed_form.MEMORY)
        return bounds.largest_size(sizes, memory.get("usual", bounds.no_rounds()))

    def remembered(self, name: str) -> Tensors:
        """What the round before kept under this name, as in `CarriedState.memory`; empty for nothing."""
        return self._carried.memory.get(name, NO_TENSORS)

    def keep_in(self, scratch: Path | None) -> None:
        """Use this folder for class statistics that do not fit in memory; None: the system's."""
        if self._statistics is not None:
            self._statistics.keep_in(scratch)

    def pool(self, statistics: Statistics | None, late: Late | None, devices: int = 1) -> None:
        """Add the class statistics of a device, or of a sum of `devices`, if there are any. Raises OSError.

        `late` is that of the update.
        """
        if self._statistics is not None and statistics is not None:
            self._statistics.add(statistics, late, devices)

    def trained_on(self, kind: str, form: str, statistics: Statistics, devices: int = 1) -> None:
        """Note the classes that a device, or a sum of `devices`, trained on with this form of a kind."""
        strategy = variant_named(self._kinds[kind], form)
        if self._trained is not None and strategy.traits.trains_extractor:
            richest = next(iter(next(iter(self._kinds.values())).variants()))
            self._trained.add(statistics.sums.counts, devices, strategy == richest)

    def add(self, update: Update, weight: float) -> None:
        """Add one update with a weight of more than 0; it is not held afterwards."""
        kind = update.kind
        strategy = self._kinds[kind]
        with np.errstate(over="ignore", invalid="ignore"), own_code(type(strategy)):
            if self._optimizer.extrapolates:
                sums = self._squares.setdefault(kind, {})
                for name, square in squared_changes(self._model.weights, update.tensors).items():
                    sums[name] = sums.get(name, 0.0) + weight * square
            self._states[kind] = strategy.fold(self._states[kind], update, weight)

    def trained(self, update: Update) -> tuple[str, Tensors]:
        """The member of the family that an update trained ("": the main model), and that member's base."""
        member = variant_named(self._kinds[update.kind], update.variant).member
        return member, self._carried.family[member] if member else self._model.weights

    def strategy(self, kind: str) -> AnyStrategy:
        """The offered kind of this name."""
        return self._kinds[kind]

    def counted(self, update: Update) -> float:
        """The update's weight in the mean, in samples, as its kind says."""
        strategy = self._kinds[update.kind]
        with own_code(type(strategy)):
            return float(strategy.weight(update))

    def merged(self) -> tuple[Merged, str]:
        """The result of the round, and a note about anything unusual.

        If the result is not finite, or a kind cannot go on with its updates, everything stays as it was.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return self._merged()
        except (TensorError, OwnCodeError) as error:
            weights = self._model.weights
            memory = closed_form.without_held_out(self._carried.memory)
            carried = replace(self._carried, memory=memory, aside=held_out.without_head(self._carried.aside))
            unchanged = Merged(weights, weights, steps=(), replayable=True, carried=carried)
            return unchanged, f"{error}: the base stays as it was"

    def _merged(self) -> tuple[Merged, str]:
        """As `merged`, but raises TensorError."""
        effects, failures = {}, []
        for name in self._kinds:
            try:
                effects[name] = self._finished(name)
            except OwnCodeError as error:
                effects[name] = KindResult()
                failures.append(f"{name} is left out: {error}")
        merged, odd = self._pooled(
            merge(self._model, effects, self._optimizer, self._carried, self._mixed, self._squares)
        )
        odd = "; ".join([*failures, *([odd] if odd else [])])
        if not all(all_finite(weights) for weights in (merged.base, merged.served, *merged.carried.all())):
            raise TensorError("the merged model is not finite")
        return self._derived(merged), odd

    def _finished(self, name: str) -> KindResult:
        """The result of a kind. Raises OwnCodeError for an own kind that fails."""
        strategy = self._kinds[name]
        with own_code(type(strategy)):
            result = strategy.finish(self._states[name], self._models[name])
            if not isinstance(result, KindResult):
                raise TypeError(f"finish returned {result!r:.80}, expected a KindResult")
            return result

    def _pooled(self, merged: Merged) -> tuple[Merged, str]:
        """Serve the closed-form head if the round's kinds send class statistics; a note, as `merged`.

        If devices hold samples out, the head is also sent to them with the next base, and the base is
        served with its trained head if that is better on those samples. Without a head none is sent, and
        devices count nothing.
        """
        if self._statistics is None:
            return merged, ""
        memory = dict(merged.carried.memory)
        pool, served, why = self._statistics.closed(memory.get(closed_form.MEMORY, NO_TENSORS))
        memory = {**memory, closed_form.MEMORY: pool.kept()}
        if self._trained is not None:
            memory[shortages.MEMORY] = self._trained.after(self.remembered(shortages.MEMORY))
        carried = replace(merged.carried, memory=memory, aside=held_out.without_head(merged.carried.aside))
        merged = replace(merged, carried=carried, closed_form=served)
        if not served or not self._hold_out:
            return replace(merged, served=served or merged.served), why
        beside = held_out.head_tensors(served, merged.base, self._model.manifest)
        merged = replace(merged, carried=replace(carried, aside={**carried.aside, **beside}))
        better = held_out.trained_is_better(pool.statistics.right)
        notes = "; ".join(note for note in (why, better) if note)
        return replace(merged, served=merged.base if better else served), notes

    def _derived(self, merged: Merged) -> Merged:
        """Add the bases of members that are parts of the main model."""
        bases = derived_bases(self._kinds.values(), merged.base, self._model)
        if not bases:
            return merged
        family = {**merged.carried.family, **bases}
        return replace(merged, carried=replace(merged.carried, family=family))


def _started(strategy: AnyStrategy, model: RoundModel) -> Any:
    """The empty state of a kind. Raises OwnCodeError for an own kind that fails."""
    with own_code(type(strategy)):
        return strategy.start(model)


def derived_bases(kinds: Iterable[AnyStrategy], base: Tensors, model: RoundModel) -> dict[str, Tensors]:
    """The bases of members that are parts of the main model, by name."""
    bases: dict[str, Tensors] = {}
    for kind in kinds:
        if isinstance(kind, DerivesMembers) and model.tools is not None:
            names = {form.member for form in kind.variants()}
            manifests = {name: model.tools.manifest(name) for name in ("", *sorted(names))}
            bases |= kind.derive(base, manifests)
    return bases
