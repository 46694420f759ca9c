"""One round, many kinds of update, one global model (ALGORITHMS, section 10: ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from broker.messages import Step
from models.tensors import Tensors

from .kind import Effect, RoundModel
from .tensor_mean import TensorMean
from .zeroth_order import replay


@dataclass(frozen=True)
class Merged:
    """What a round made. `base` is distributed next, `served` is evaluated and deployed.

    When nothing but `steps` changed the base, devices may replay them instead of fetching it.
    """

    base: Tensors
    served: Tensors
    steps: tuple[Step, ...]
    replayable: bool


def merge(model: RoundModel, effects: Sequence[Effect]) -> Merged:
    """Join the effects of all kinds, given in the order of preference.

    Tensors are averaged over those who trained them, by weight, across kinds; a tensor that nobody trained
    stays. Zeroth-order steps are then taken beside the mean, scaled by the share of samples behind them
    among all that move the base (1 when only they came). The served model is the distributed one with the
    tensors that the most preferred kind says to serve, or else the new base.
    """
    joined = TensorMean()
    for effect in effects:
        if effect.mean is not None:
            joined = joined.join(effect.mean)
    moving = sum(effect.num_examples for effect in effects if effect.mean is not None or effect.steps)
    steps = tuple(
        msgspec.structs.replace(step, share=effect.num_examples / moving)
        for effect in effects
        for step in effect.steps
    )
    base = replay({**model.weights, **joined.mean()}, steps, model.manifest)
    served = next((effect.served for effect in effects if effect.served), None)
    return Merged(
        base=base,
        served={**model.weights, **served} if served else base,
        steps=steps,
        replayable=not joined.sums,
    )
