"""The updates of one round, folded one by one: nothing is held but what each kind sums up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.tensors import Tensors

from .kind import AnyStrategy, Contribution, RoundModel
from .merge import Merged, merge


class Folding:
    """From contributions to the next base. Give them in a fixed order: sums then have the same bits."""

    def __init__(self, kinds: Mapping[str, AnyStrategy], model: RoundModel) -> None:
        """`kinds` by name, in the order of preference."""
        self._kinds, self._model = kinds, model
        self._states = {name: strategy.start(model) for name, strategy in kinds.items()}

    def add(self, contribution: Contribution, weight: float) -> None:
        """One more, which then may be forgotten; `weight` is more than 0."""
        kind = contribution.kind
        with np.errstate(over="ignore", invalid="ignore"):
            self._states[kind] = self._kinds[kind].fold(self._states[kind], contribution, weight)

    def merged(self) -> tuple[Merged, str]:
        """What all of them make, and what was odd about it; a model that is not finite is left as it was."""
        model = self._model
        with np.errstate(over="ignore", invalid="ignore"):
            effects = [kind.finish(self._states[name], model) for name, kind in self._kinds.items()]
            merged = merge(model, effects)
        if _finite(merged.base) and _finite(merged.served):
            return merged, ""
        unchanged = Merged(base=model.weights, served=model.weights, steps=(), replayable=True)
        return unchanged, "the merged model is not finite: the base stays as it was"


def _finite(weights: Tensors) -> bool:
    return all(bool(np.isfinite(value).all()) for value in weights.values() if value.dtype.kind == "f")
