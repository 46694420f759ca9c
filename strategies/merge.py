"""One round, many kinds of update, one global model (ALGORITHMS, section 10: ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from broker.messages import Step
from models.tensors import Tensors

from .kind import Effect, RoundModel
from .tensor_mean import TensorMean
from .zeroth_order import replay

STATISTICS = (".running_mean", ".running_var")
"""How names of tensors end that are estimates of a normalisation, not parameters."""


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


def rebased(update: Tensors, made_for: Tensors, now: Tensors, share: float) -> Tensors:
    """A late update as one of the round it counts in: its change, scaled, made to that base.

    `made_for` and `now` are the bases of the two rounds. A float tensor of the update that both have in the
    same shape becomes now + share * (update - made_for), float32 (FedBuff, Nguyen et al. 2022, algorithm 1;
    share is its s(tau)). Running statistics of a normalisation are no sum of changes: they go `share` of the
    way from now to the update, so that no variance becomes negative. All others are unchanged.
    """
    after = dict(update)
    for name, value in update.items():
        old, base = made_for.get(name), now.get(name)
        if old is None or base is None or value.dtype.kind != "f":
            continue
        if value.shape == old.shape == base.shape:
            start = base if name.endswith(STATISTICS) else old
            with np.errstate(over="ignore", invalid="ignore"):
                after[name] = (base + np.float32(share) * (value - start)).astype(np.float32, copy=False)
    return after
