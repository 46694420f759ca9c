"""One round, many kinds of update, one global model (ALGORITHMS, section 10: ours)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.tensors import Tensors, finite
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.training.device_half import NOTHING, Late, TrainedUpdate

from .aggregator_half import Carried, Effect, RoundModel
from .server_optimizer import STATISTICS, ServerOptimizer
from .tensor_mean import TensorMean

NOTHING_CARRIED = Carried()
FEDAVG = ServerOptimizer()
OPTIMIZER = "server-optimizer"
"""Whose memory the optimiser's moments are, beside those of the kinds."""


@dataclass(frozen=True)
class Merged:
    """What a round made. `base` is distributed next, `served` is evaluated and deployed.

    When nothing but `steps` changed the base, devices may replay them instead of fetching it. `carried` goes
    to the next round. `closed_form` is the model with the closed-form head, served or not; empty for none.
    """

    base: Tensors
    served: Tensors
    steps: tuple[Step, ...]
    replayable: bool
    carried: Carried = field(default_factory=Carried)
    closed_form: Tensors = field(default_factory=lambda: NOTHING)


def merge(
    model: RoundModel,
    kinds: Mapping[str, Effect],
    optimizer: ServerOptimizer = FEDAVG,
    carried: Carried = NOTHING_CARRIED,
    mixed: bool = False,
) -> Merged:
    """Join the effects of all kinds, by name in the order of preference.

    Tensors are averaged over those who trained them, by weight, across kinds; a tensor that nobody trained
    stays. In `mixed` rounds few samples move it by less (`few_samples`). `optimizer` steps towards that mean.
    Zeroth-order steps are then taken beside it, scaled by the share of samples behind them among all that
    move the base (1 when only they came). What is assigned is
    put in, and each kind's refinement is made of the result, in order; of a base that is not finite nothing
    is made, nor does it teach. The served model is the distributed one with the tensors that the most
    preferred kind says to serve, or else the new base. Raises TensorError where a kind cannot go on.
    """
    effects = tuple(kinds.values())
    joined = TensorMean()
    for effect in effects:
        if effect.mean is not None:
            joined = joined.join(effect.mean)
    means, usual = joined.mean(), NOTHING
    if mixed:
        usual = carried.memory.get(MEMORY, NOTHING)
        means, usual = stepped(model.weights, joined, usual)
    moved, moments = optimizer.step(model.weights, means, carried.memory.get(OPTIMIZER, {}))
    moving = sum(effect.num_examples for effect in effects if effect.mean is not None or effect.steps)
    steps = tuple(
        msgspec.structs.replace(step, share=step.share * effect.num_examples / moving)
        for effect in effects
        for step in effect.steps
    )
    base = replay({**model.weights, **moved}, steps, model.manifest)
    replayable = not joined.sums
    for effect in effects:
        if effect.assigned:
            base, replayable = {**base, **effect.assigned}, False
    for effect in effects:
        if effect.refine is not None and finite(base):
            base, replayable = {**base, **effect.refine(base)}, False
    served = _served(effects)
    return Merged(
        base=base,
        served={**model.weights, **served} if served else base,
        steps=steps,
        replayable=replayable,
        carried=_carried(carried, kinds, {OPTIMIZER: moments, MEMORY: usual}, base),
    )


def _served(effects: Sequence[Effect]) -> Tensors:
    """What the most preferred kind puts into the served model; a mean is over all kinds that have one."""
    for effect in effects:
        if effect.served:
            return effect.served
        if effect.served_mean is not None and effect.served_mean.sums:
            means = (other.served_mean for other in effects if other.served_mean is not None)
            return reduce(TensorMean.join, means).mean()
    return {}


def _carried(
    before: Carried, kinds: Mapping[str, Effect], own: Mapping[str, Tensors], base: Tensors
) -> Carried:
    """What was there stays, where no kind has anything new; `own`: memory of the merging itself."""
    family, memory, aside = dict(before.family), dict(before.memory), dict(before.aside)
    sound = any(effect.teach is not None for effect in kinds.values()) and finite(base)
    memory |= {name: kept for name, kept in own.items() if kept}
    for name, effect in kinds.items():
        family |= {**effect.family, **(effect.teach(base) if effect.teach is not None and sound else {})}
        if effect.memory is not None:
            memory[name] = effect.memory
        if effect.aside is not None:
            aside |= effect.aside
    return Carried(family, memory, aside)


def brought_forward(
    update: TrainedUpdate, late: Late, now: int, base: Callable[[int], Tensors]
) -> TrainedUpdate:
    """A late update as one of round `now`: its tensors as `rebased`, and marked, which what is no tensor of
    the base goes by (scalars along the directions of their own round). `base`: what a round distributed.
    """
    here, late = base(now), replace(late, base=partial(base, late.round))
    if not here.keys() & update.tensors.keys():
        return replace(update, late=late)
    return replace(update, tensors=rebased(update.tensors, late.base(), here, late.share), late=late)


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


# FROM few_samples: A round that brings few samples moves the base by less.
#
# With n the weight behind a tensor in a round and nbar its running mean, over the last rounds that trained
# it:
#
#     w <- w + min(1, n / nbar) (mean - w)
#
# The mean alone makes as long a step from five stragglers of one class as from a whole cohort, and in mixed
# rounds the weight varies much by which devices were drawn, and which are late: a base was spoilt by a
# round in
# which no device had trained all of it. A mean by weights that do not add up to 1 in each round, but do so
# over
# rounds, is that of Li et al. 2020 (On the convergence of FedAvg on non-IID data); that no step becomes
# longer
# is ours.

MEMORY = "few-samples"
"""Whose memory the running means are, beside those of the kinds."""
WINDOW = 10
"""Rounds that the running mean looks back on, about."""


def stepped(
    base: Tensors, joined: TensorMean, memory: Tensors
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """What the mean makes of the base's tensors, and the memory for the next round.

    Memory: nbar and the rounds behind it, float64 (2,), by the name of the tensor.
    """
    means, kept = joined.mean(), dict(memory)
    for name, mean in means.items():
        weight, (usual, rounds) = joined.behind(name), memory.get(name, np.zeros(2)).tolist()
        rounds = min(rounds + 1, WINDOW)
        usual += (weight - usual) / rounds
        kept[name] = np.array([usual, rounds])
        if name in base and weight < usual:
            means[name] = base[name] + np.float32(weight / usual) * (mean - base[name])
    return means, kept
