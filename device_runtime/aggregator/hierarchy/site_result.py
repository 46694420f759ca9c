"""What a round of a site came to, as one device's work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isfinite, nan

from device_runtime.aggregator.views.listener import ContributionRecord, RoundClosed
from device_runtime.broker.wire.messages import Step
from device_runtime.client.energy import Energy, together
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.statistics.class_statistics import Statistics


@dataclass(frozen=True)
class Made:
    """What a round of the site came to, in the units of people. `weights` is all of the merged base, `steps`
    what was taken along directions to it, `statistics` the class statistics of all devices, if any were asked
    for.

    Samples, seconds and joules are sums over its contributions, the peak of memory and epsilon the most of
    them; `train_loss` is their mean by samples, nan where none has one; epsilon nan where none is private.
    """

    weights: Tensors
    steps: tuple[Step, ...]
    statistics: Statistics | None
    num_examples: int
    train_loss: float
    train_time_s: float
    energy: Energy
    peak_memory_bytes: int
    epsilon: float
    means_alone: bool
    """Whether all that came was class means."""
    summary: str


def _energy(one: ContributionRecord) -> Energy:
    off = one.energy_uncertainty
    return Energy(one.energy_j, one.energy_source, off if isfinite(off) else 1.0)


def made_of(
    closed: RoundClosed, weights: Tensors, steps: tuple[Step, ...], statistics: Statistics | None
) -> Made:
    """Of a closed round, the base that it made, the steps that it took to it, and its class statistics."""
    sent = closed.contributions
    devices = len({one.device for one in sent})
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in sent).items())
    told = [one for one in sent if isfinite(one.train_loss)]
    examples = sum(one.num_examples for one in told)
    return Made(
        weights=weights,
        steps=steps,
        statistics=statistics,
        num_examples=sum(one.num_examples for one in sent),
        train_loss=sum(one.train_loss * one.num_examples for one in told) / examples if examples else nan,
        train_time_s=sum(one.train_time_s for one in sent),
        energy=together(_energy(one) for one in sent),
        peak_memory_bytes=max(one.peak_memory_bytes for one in sent),
        epsilon=max((one.epsilon for one in sent if isfinite(one.epsilon)), default=nan),
        means_alone=all(one.kind == ClassMeans.name for one in sent),
        summary=f"of {devices} device{'' if devices == 1 else 's'}: {kinds}",
    )
