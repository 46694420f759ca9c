"""The result of a round at a site, which the site forwards as the work of one device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isfinite, nan

from device_runtime.aggregator.machine.run_events import ContributionRecord, RoundClosed
from device_runtime.aggregator.merging.evaluation import mean_loss
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.broker.wire.messages import Step
from device_runtime.device.energy import Energy, together
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import closed_form
from device_runtime.strategies.statistics.class_statistics import Statistics

from .forwarding import round_statistics


@dataclass(frozen=True)
class SiteResult:
    """The result of a round at a site, as the work of one device.

    `weights` is the whole merged base, `steps` are the zeroth-order steps to it, `statistics` the class
    statistics of all devices, if any were asked for. Samples, seconds and joules are sums over the
    contributions; peak memory and epsilon are maxima. `train_loss` is the mean weighted by samples. It is nan
    if no contribution has one; epsilon is nan if none is private.
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
    """Whether all contributions were class statistics alone."""
    summary: str


def result_of(rounds: OpenRun, number: int) -> SiteResult | str:
    """The result of merged round `number` of a site, or why there is nothing to forward."""
    closed = rounds.store.rounds.closed(number)[0]
    devices, least = len({record.device for record in closed.contributions}), rounds.task.min_contributions
    if devices < least:
        return f"{devices} of {least} contributions"
    statistics = _statistics(rounds, number)
    has_statistics = statistics is not None and statistics.sums.counts.any()
    before, after = rounds.store.rounds.start(number).base, rounds.store.rounds.start(number + 1).base
    if closed.note and not has_statistics and after.sha == before.sha:
        return closed.note
    count = after.at - before.at if after.line == before.line else 0
    steps = rounds.store.step_history.last(number + 1, count)
    return site_result(closed, rounds.weights(number + 1), steps, statistics)


def _statistics(rounds: OpenRun, number: int) -> Statistics | None:
    """The class statistics of all devices of a merged round; None if none were stored."""
    sha = rounds.store.rounds.start(number + 1).carried.memory.get(closed_form.MEMORY)
    if sha is None:
        return None
    memory = tensors.decode(rounds.store.models.get(sha))
    return round_statistics(memory, rounds.weights(number), rounds.manifest, rounds.task.statistics)


def site_result(
    closed: RoundClosed, weights: Tensors, steps: tuple[Step, ...], statistics: Statistics | None
) -> SiteResult:
    """Sum up a closed round, the merged base, the steps to it and the class statistics."""
    sent = closed.contributions
    devices = len({record.device for record in sent})
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(record.kind for record in sent).items())
    return SiteResult(
        weights=weights,
        steps=steps,
        statistics=statistics,
        num_examples=sum(record.num_examples for record in sent),
        train_loss=mean_loss((record.train_loss, record.num_examples) for record in sent),
        train_time_s=sum(record.train_time_s for record in sent),
        energy=together(_energy(record) for record in sent),
        peak_memory_bytes=max(record.peak_memory_bytes for record in sent),
        epsilon=max((record.epsilon for record in sent if isfinite(record.epsilon)), default=nan),
        means_alone=all(registry.kind(record.kind).traits.statistics_alone for record in sent),
        summary=f"of {devices} device{'' if devices == 1 else 's'}: {kinds}",
    )


def _energy(record: ContributionRecord) -> Energy:
    off = record.energy_uncertainty
    return Energy(record.energy_j, record.energy_source, off if isfinite(off) else 1.0)
