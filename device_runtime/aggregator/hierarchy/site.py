"""One run of a site: an aggregator whose rounds come from the aggregator above."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Literal

import msgspec

from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import (
    ContributionRecord,
    DeviceSeen,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RunEvent,
    Started,
)
from device_runtime.aggregator.merging.evaluation import mean_loss
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.bases import StepLine
from device_runtime.aggregator.storage.run_files import GivenRound
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.console_log import contribution_counts, size
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Event
from device_runtime.broker.wire.messages import Base, Offer, Step, decode, encode
from device_runtime.device.energy import Energy, together
from device_runtime.device.training.one_task import RoundInputs
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ModelError
from device_runtime.strategies.directions.directions import UnknownGenerator
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.merge import Merged
from device_runtime.strategies.statistics import closed_form
from device_runtime.strategies.statistics.class_statistics import Statistics

from .forwarding import round_statistics, steps_between

log = logging.getLogger(__name__)


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


SitePhase = Literal["other", "open", "merged"]
"""How far a site is with a round from above: another round is open, this one is, or this one is merged."""


class Site:
    """The service of a site. Raises what Service raises, and RunFolderError."""

    def __init__(self, task: Task, folder: Path, ports: Ports) -> None:
        """Opens the folder, and offers its open round, if any, to the devices."""
        self._service = Service(task, folder, ports, given=True)
        self._ports = ports
        self.task = task
        self.merge_s = 0.0
        """Seconds that the latest merge took."""
        self._source: tuple[GivenRound, Offer] | None = None
        self._service.start()

    @property
    def source(self) -> Offer | None:
        """The offer from above of the round that was given last."""
        latest = self._latest
        if latest is None:
            return None
        if self._source is None or self._source[0] is not latest:
            self._source = latest, decode(latest.source, Offer)
        return self._source[1]

    def phase(self, offer: Offer) -> SitePhase:
        """How far the site is with the round of this offer from above."""
        source = self.source
        if source is None or (source.run, source.round) != (offer.run, offer.round):
            return "other"
        if self._service.state.phase == "collect":
            return "open"
        return "merged" if self._service.state.round == offer.round else "other"

    def give(self, inputs: RoundInputs, seconds: float) -> None:
        """Offer a round from above to the site's devices for `seconds`; an open round gets a new deadline."""
        if self._latest and self.phase(inputs.offer) == "open":
            self._service.give(msgspec.structs.replace(self._latest, deadline_s=seconds))
            return
        rounds, source = self._service.rounds, self.source
        put = rounds.store.models.put
        before = source.round if source else 0
        steps = steps_between(source, inputs.offer, partial(leads, rounds, before, inputs))
        self._service.give(
            GivenRound(
                number=inputs.offer.round,
                seed=inputs.offer.seed,
                deadline_s=seconds,
                base=_base(rounds, before, inputs, steps),
                carried=CarriedBlobs(aside=put(tensors.encode(inputs.aside)) if inputs.aside else None),
                source=encode(inputs.offer),
                steps=steps or (),
                rare=inputs.offer.rare,
                shortages=inputs.offer.shortages,
            )
        )

    @property
    def contributions(self) -> int:
        """The number of devices whose contributions count in the open round."""
        return len(self._service.state.counted)

    @property
    def exhausted(self) -> bool:
        """Whether every device that is online has contributed to the open round or sits it out."""
        state = self._service.state
        answered = bool(state.answered or state.sat_out)
        return answered and not state.waiting and self._ports.clock() >= state.settles_at

    def close_round(self) -> None:
        """Close the open round and merge its contributions."""
        self._timed(self._service.close_round)

    def end(self, offer: Offer) -> RoundInputs | None:
        """Merge the round that was given last, unless it is the round of this offer.

        Returns the inputs of that round without its side tensors; None if there is no such round.
        """
        source = self.source
        if source is None or self.phase(offer) != "other":
            return None
        if self.phase(source) == "open":
            self.close_round()
        if self.phase(source) != "merged":
            return None
        return RoundInputs(source, "", self._service.rounds.weights(source.round), NO_TENSORS)

    def result(self, number: int) -> SiteResult | str:
        """The result of merged round `number`, or why there is nothing to forward."""
        return result_of(self._service.rounds, number)

    def handle(self, event: Event) -> None:
        """Handle an event of the site's link."""
        self._timed(lambda: self._service.handle(event))

    def tick(self) -> None:
        """Do what is due by the clock."""
        self._timed(self._service.tick)

    def farewell(self) -> str:
        """Tell the devices that the task is done; returns the topic of the retained offer."""
        lobby = self._service.offers.lobby(self._service.state.round)
        done = msgspec.structs.replace(lobby, round=self._service.state.round, done=True)
        topic = topics.offer(done.task)
        self._ports.link.publish(topic, self._ports.seal(topic, done), retain=True)
        return topic

    def close(self) -> None:
        """Close the run folder."""
        self._service.close()

    @property
    def _latest(self) -> GivenRound | None:
        given_rounds = self._service.rounds.given_rounds
        return given_rounds.latest if given_rounds else None

    def _timed(self, step: Callable[[], None]) -> None:
        """Do a step; if it merges a round, note how long that takes."""
        before, began = self._service.state.phase, time.monotonic()
        step()
        if before == "collect" and self._service.state.phase == "wait":
            self.merge_s = time.monotonic() - began


def leads(rounds: OpenRun, number: int, inputs: RoundInputs, steps: Sequence[Step]) -> bool:
    """Whether these steps lead from the base of round `number` to the base of a round from above.

    False if they cannot be replayed here; then the whole base is used.
    """
    try:
        weights = replay(rounds.weights(number), steps, rounds.manifest)
    except (ModelError, UnknownGenerator):
        return False
    return tensors.encode(weights) == tensors.encode(inputs.base)


def _base(rounds: OpenRun, number: int, inputs: RoundInputs, steps: tuple[Step, ...] | None) -> Base:
    """The base that the site offers: steps on the log of round `number`, else a checkpoint and a new log."""
    if steps is None or not rounds.store.rounds.opened(number):
        return bases.checkpoint(inputs.base, rounds.store.models, rounds.manifest)
    seed = next((step.seeds for step in inputs.offer.base.tail if isinstance(step.seeds, int)), None)
    led = Merged(inputs.base, inputs.base, steps, replayable=True)
    return bases.next_base(rounds.store, number, led, StepLine(rounds.manifest, seed))


class SiteDevices:
    """An observer of the site's service: which devices are ready, their samples, and why some sit out."""

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}
        self._idle: dict[str, str] = {}

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._samples, self._idle = {}, {}
            case RoundOpened() | RoundExtended():
                self._idle = {}
            case DeviceSeen(device=device, online=False):
                self._samples.pop(device, None)
            case DeviceSeen(device=device, num_examples=samples):
                if samples > 0:
                    self._samples[device] = samples
            case PlanReported(device=device, kind="", reasons=reasons):
                self._idle[device] = "; ".join(reasons) or "no reason given"
            case PlanReported(device=device):
                self._idle.pop(device, None)

    @property
    def count(self) -> int:
        """The number of devices that are online and have samples."""
        return len(self._samples)

    @property
    def samples(self) -> int:
        """The samples of all these devices together."""
        return sum(self._samples.values())

    @property
    def idle(self) -> str:
        """How many devices sit the round out, and why the first of them does; empty if none does."""
        for device, why in sorted(self._idle.items()):
            return f"{len(self._idle)} sitting out, {device} as {why}"
        return ""


def log_site(event: RunEvent) -> None:
    """An observer that logs what a site does: two lines a round, and one for each device that leaves."""
    match event:
        case Started():
            log.info("site of task %r: run %s%s", event.task.name, event.run, _again(event.resumed))
        case DeviceSeen(device=device, online=False):
            log.info("site: %s is offline", device)
        case RoundOpened():
            again = f", again, with {event.contributions} contributions" if event.again else ""
            log.info("site round %d: %s, %.1f s%s", *_opened(event), again)
        case RoundClosed(record=record):
            log.info(
                "site round %d closed: %s, %s up, %s down, %.1f s%s",
                record.round,
                contribution_counts(event) or "nobody",
                size(record.bytes_up),
                size(record.bytes_down),
                record.duration_s,
                f" ({event.note})" if event.note else "",
            )


def _opened(event: RoundOpened) -> tuple[int, str, float]:
    return event.round, ", ".join(event.kinds), event.deadline_s


def _again(resumed: bool) -> str:
    return ", which goes on" if resumed else ""
