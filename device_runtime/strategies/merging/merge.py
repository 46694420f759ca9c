"""Merges the updates of one round, of all kinds, into the next global model.

How several kinds share a round is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.names import RUNNING_STATISTICS
from device_runtime.models.bundles.tensors import Tensors, all_finite
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.interface.aggregator_half import (
    CarriedState,
    KindResult,
    RoundModel,
    TensorMean,
)
from device_runtime.strategies.interface.device_half import NO_TENSORS, Late, Update

from .server_optimizer import ServerOptimizer

NOTHING_CARRIED = CarriedState()
NO_SQUARES: Mapping[str, Mapping[str, float]] = MappingProxyType({})
FEDAVG = ServerOptimizer()
OPTIMIZER = "server-optimizer"
"""The key of the optimiser's moments in `CarriedState.memory`, whose other keys are names of kinds."""


@dataclass(frozen=True)
class Merged:
    """The result of a round: `base` is distributed next, `served` is evaluated and deployed.

    replayable: only `steps` changed the base, so devices may replay them instead of fetching it.
    carried: the state for the next round.
    closed_form: the model with the closed-form head, served or not; empty for none.
    """

    base: Tensors
    served: Tensors
    steps: tuple[Step, ...]
    replayable: bool
    carried: CarriedState = field(default_factory=CarriedState)
    closed_form: Tensors = field(default_factory=lambda: NO_TENSORS)


def merge(
    model: RoundModel,
    kinds: Mapping[str, KindResult],
    optimizer: ServerOptimizer = FEDAVG,
    carried: CarriedState = NOTHING_CARRIED,
    mixed: bool = False,
    squares: Mapping[str, Mapping[str, float]] = NO_SQUARES,
) -> Merged:
    """Join the results of all kinds; `kinds` is by name, in the order of preference.

    1. Each tensor is averaged across kinds over the devices that trained it, by weight; a tensor that no
       device trained stays. In `mixed` rounds few samples move it by less (`damped_step`).
    2. `optimizer` steps towards that mean; `squares` are weighted sums of the updates' squared changes, by
       kind and tensor, for an optimiser that extrapolates.
    3. Zeroth-order steps follow, scaled by their share of the samples behind all that moves the base (1 if
       there is nothing else).
    4. Assigned tensors are set, then each kind refines the result, in order. In `mixed` rounds the base goes
       only as far as the kind's share of the samples, and stays where `right` says that this is worse.

    A base that is not finite is neither refined nor used to teach smaller models. The served model is the
    distributed one with the tensors that the most preferred kind serves; without any, it is the new base.
    Raises TensorError where a kind cannot go on.
    """
    results = tuple(kinds.values())
    joined = TensorMean()
    for result in results:
        if result.mean is not None:
            joined = joined.join(result.mean)
    if mixed:
        mean_weights = carried.memory.get(DAMPING_MEMORY, NO_TENSORS)
        means, mean_weights = damped_step(model.weights, joined, mean_weights)
    else:
        means, mean_weights = joined.mean(), NO_TENSORS
    if optimizer.extrapolates:
        mean_squares = _mean_squares(kinds, joined, squares)
        optimizer = optimizer.extrapolated(model.weights, joined.mean(), mean_squares)
    moved, moments = optimizer.step(model.weights, means, carried.memory.get(OPTIMIZER, {}))
    moving = sum(result.num_examples for result in results if result.mean is not None or result.steps)
    steps = tuple(
        msgspec.structs.replace(step, share=step.share * result.num_examples / moving)
        for result in results
        for step in result.steps
    )
    base = replay({**model.weights, **moved}, steps, model.manifest)
    replayable = not joined.weights
    for result in results:
        if result.assigned:
            base, replayable = {**base, **result.assigned}, False
    for result in results:
        if result.refine is not None and all_finite(base):
            refined, replayable = {**base, **result.refine(base)}, False
            base = _beside_others(base, refined, result, moving) if mixed else refined
    served = _served(results)
    return Merged(
        base=base,
        served={**model.weights, **served} if served else base,
        steps=steps,
        replayable=replayable,
        carried=_carried(carried, kinds, {OPTIMIZER: moments, DAMPING_MEMORY: mean_weights}, base),
    )


def _mean_squares(
    kinds: Mapping[str, KindResult], joined: TensorMean, squares: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """The mean of the updates' squared changes, by tensor, over the updates that are in the mean."""
    means: dict[str, float] = {}
    for kind, sums in squares.items():
        result = kinds[kind].mean
        for name, total in sums.items():
            if result is not None and name in result.sums:
                means[name] = means.get(name, 0.0) + total / joined.behind(name)
    return means


def _beside_others(
    base: dict[str, NDArray[Any]], refined: dict[str, NDArray[Any]], result: KindResult, moving: float
) -> dict[str, NDArray[Any]]:
    """The base after a kind's `refine`, in part or not at all, beside `moving` samples of other kinds.

    Otherwise the aggregator's lesson from one small device would replace the updates of all others (ours).
    """
    if result.mean is not None or not (moving and result.num_examples):
        return refined
    share = np.float32(result.num_examples / (moving + result.num_examples))
    refined = {
        name: base[name] + share * (value - base[name]) if value.dtype.kind == "f" else value
        for name, value in refined.items()
    }
    return base if result.right is not None and result.right(refined) < result.right(base) else refined


def _served(results: Sequence[KindResult]) -> Tensors:
    """The tensors that the most preferred kind serves; a mean is over all kinds that have one."""
    for result in results:
        if result.served:
            return result.served
        if result.served_mean is not None and result.served_mean.weights:
            means = (other.served_mean for other in results if other.served_mean is not None)
            return reduce(TensorMean.join, means).mean()
    return {}


def _carried(
    before: CarriedState, kinds: Mapping[str, KindResult], own: Mapping[str, Tensors], base: Tensors
) -> CarriedState:
    """The state for the next round: as `before`, updated by the kinds; `own` is memory of merging itself."""
    family, memory, aside = dict(before.family), dict(before.memory), dict(before.aside)
    sound = any(result.teach is not None for result in kinds.values()) and all_finite(base)
    memory |= {name: state for name, state in own.items() if state}
    for name, result in kinds.items():
        family |= {**result.family, **(result.teach(base) if result.teach is not None and sound else {})}
        if result.memory is not None:
            memory[name] = result.memory
        if result.aside is not None:
            aside |= result.aside
    return CarriedState(family, memory, aside)


def rebased_update(update: Update, late: Late, now: int, base: Callable[[int], Tensors]) -> Update:
    """A late update, made to count in round `now`: its tensors are rebased, and `late` is set on it.

    Content that is no tensor of the base is not moved; kinds read `late` for it, as for scalars along the
    directions of their own round. `base` gives the weights that a round distributed.
    """
    here, late = base(now), replace(late, base=partial(base, late.round))
    if not here.keys() & update.tensors.keys():
        return replace(update, late=late)
    return replace(update, tensors=rebased_tensors(update.tensors, late.base(), here, late.share), late=late)


def rebased_tensors(update: Tensors, made_for: Tensors, now: Tensors, share: float) -> Tensors:
    """A late update, rebased onto the round in which it counts: its change, scaled, is added to that base.

    `made_for` and `now` are the bases of the two rounds. A float tensor of the update that both have in the
    same shape becomes now + share * (update - made_for), float32 (FedBuff, Nguyen et al. 2022, algorithm 1;
    share is its s(tau)). Running statistics of a normalisation are no sum of changes: they go `share` of the
    way from now to the update, so that no variance becomes negative. All other tensors are unchanged.
    """
    after = dict(update)
    for name, value in update.items():
        old, base = made_for.get(name), now.get(name)
        if old is None or base is None or value.dtype.kind != "f":
            continue
        if value.shape == old.shape == base.shape:
            start = base if name.endswith(RUNNING_STATISTICS) else old
            with np.errstate(over="ignore", invalid="ignore"):
                after[name] = (base + np.float32(share) * (value - start)).astype(np.float32, copy=False)
    return after


DAMPING_MEMORY = "few-samples"
"""The key of the running mean weights in `CarriedState.memory`, whose other keys are names of kinds."""
WINDOW = 10
"""About how many rounds the running mean weight looks back on."""


def damped_step(
    base: Tensors, joined: TensorMean, memory: Tensors
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The base's tensors after a step towards the mean that is shorter in a round of few samples; the memory.

    With n the weight behind a tensor in this round and nbar its running mean over the last rounds that
    trained it:

        w <- w + min(1, n / nbar) (mean - w)

    The mean alone steps as far for five stragglers of one class as for a whole cohort. In mixed rounds the
    weight varies much, by which devices were drawn and which are late; without this, one round in which no
    device had trained all of the base spoilt it. Li et al. 2020 (On the convergence of FedAvg on non-IID
    data) average with weights that add up to 1 over rounds, not in each; that no step becomes longer is ours.

    Memory for the next round: nbar and the rounds behind it, float64 (2,), by the name of the tensor.
    """
    means, next_memory = joined.mean(), dict(memory)
    for name, mean in means.items():
        weight, (mean_weight, rounds) = joined.behind(name), memory.get(name, np.zeros(2)).tolist()
        rounds = min(rounds + 1, WINDOW)
        mean_weight += (weight - mean_weight) / rounds
        next_memory[name] = np.array([mean_weight, rounds])
        if name in base and weight < mean_weight:
            means[name] = base[name] + np.float32(weight / mean_weight) * (mean - base[name])
    return means, next_memory
