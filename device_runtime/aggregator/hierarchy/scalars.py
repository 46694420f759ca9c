"""Rounds of scalars alone at a site: what its devices are told and measure, and what it forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from device_runtime.broker.wire import step_log as log
from device_runtime.broker.wire.messages import MessageError, Offer, Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.directions.step_size import unit
from device_runtime.strategies.zeroth_order import ZerothOrder


def steps_between(
    before: Offer | None, now: Offer, leads: Callable[[Sequence[Step]], bool]
) -> tuple[Step, ...] | None:
    """What leads from the base of one offer to that of a later one; None where the later one does not say.

    Lines have one name where they begin with one model, as when a run goes back to it: whether both offers
    are on the same is told by the last step before, which no other line has, where both name it; else
    `leads` says whether steps lead from the one base to the other.
    """
    if before is None or before.base.line != now.base.line:
        return None
    try:
        earlier, known = log.unpack(before.base.tail), log.unpack(now.base.tail)
    except MessageError:
        return None
    taken = now.base.at - before.base.at
    if not 0 <= taken <= len(known):
        return None
    between = known[len(known) - taken :]
    if before.base.at == 0:
        return between
    same = earlier[-1] == known[-taken - 1] if earlier and taken < len(known) else leads(between)
    return between if same else None


def at_site(kind: ZerothOrder, base: Tensors, manifest: Manifest) -> ZerothOrder:
    """The kind with which a site's devices measure what they would measure for the one above.

    What is usual of relative scalars is known above alone: here they are absolute, over the same lengths.
    """
    return replace(
        kind, sizing="absolute", eps=kind.eps * unit(base, manifest.specs(kind.tunable), kind.sizing)
    )


def forwarded(steps: Sequence[Step], length: float) -> Tensors:
    """The mean of a site's scalars, from the one step of its round, as the one above counts them: `length` is
    how many times further here is what is one there, a power of two.
    """
    [step] = steps
    return {"g": np.asarray(step.scalars, np.float32) * np.float32(length)}
