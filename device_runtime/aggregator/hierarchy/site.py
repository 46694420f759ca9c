"""One run of a site: an ordinary aggregator, whose rounds are those that an aggregator above gives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from device_runtime.aggregator.rounds.given_rounds import GivenRound
from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.bases import Line
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Event
from device_runtime.broker.wire.messages import Base, Offer, Step, decode, encode
from device_runtime.client.training.local_task import Given
from device_runtime.models.bundles import tensors
from device_runtime.models.errors import ModelError
from device_runtime.strategies.directions.directions import UnknownGenerator
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.merging.merge import Merged
from device_runtime.strategies.statistics import closed_form
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.training.device_half import NOTHING

from .scalars import steps_between
from .site_result import Made, made_of
from .statistics import of_round

Standing = Literal["other", "open", "merged"]


class Site:
    """The service of a site, spoken to by its clock. Raises what Service raises, and RunFolderError."""

    def __init__(self, task: Task, folder: Path, ports: Ports) -> None:
        """Opens the folder, and offers its devices what it has open."""
        self._service = Service(task, folder, ports, given=True)
        self._ports = ports
        self.task = task
        self.merge_s = 0.0
        """Seconds that the latest merging took."""
        self._source: tuple[GivenRound, Offer] | None = None
        self._service.start()

    @property
    def source(self) -> Offer | None:
        """The offer from above whose round was given last."""
        latest = self._latest
        if latest is None:
            return None
        if self._source is None or self._source[0] is not latest:
            self._source = latest, decode(latest.source, Offer)
        return self._source[1]

    def standing(self, offer: Offer) -> Standing:
        """How far the site is with the round of an offer from above."""
        source = self.source
        if source is None or (source.run, source.round) != (offer.run, offer.round):
            return "other"
        if self._service.state.phase == "collect":
            return "open"
        return "merged" if self._service.state.round == self._number else "other"

    def give(self, given: Given, seconds: float) -> None:
        """Offer the site's devices a round from above, with so many seconds; the open one has them anew."""
        rounds, latest = self._service.rounds, self._latest
        if self.standing(given.offer) == "open" and latest:
            self._service.give(msgspec.structs.replace(latest, deadline_s=seconds))
            return
        put = rounds.store.models.put
        aside = put(tensors.encode(given.aside)) if given.aside else None
        steps = steps_between(self.source, given.offer, partial(self._leads, given))
        self._service.give(
            GivenRound(
                number=given.offer.round,
                seed=given.offer.seed,
                deadline_s=seconds,
                base=self._base(given, steps),
                carried=CarriedBlobs(aside=aside),
                source=encode(given.offer),
                steps=steps or (),
                rare=given.offer.rare,
            )
        )

    def _leads(self, given: Given, steps: Sequence[Step]) -> bool:
        """Whether these, taken from the base of the round that was given last, make that of this one. Those
        that cannot be taken here do not: the base has come whole.
        """
        rounds = self._service.rounds
        try:
            made = replay(rounds.weights(self._number), steps, rounds.manifest)
        except (ModelError, UnknownGenerator):
            return False
        return tensors.encode(made) == tensors.encode(given.base)

    def _base(self, given: Given, steps: tuple[Step, ...] | None) -> Base:
        """What the site's devices are told of a base: that it is so many steps further than the last, on a
        line of the site's own; else a checkpoint, at which another line begins.
        """
        rounds = self._service.rounds
        if steps is None or not rounds.store.opened(self._number):
            return bases.checkpoint(given.base, rounds.store.models, rounds.manifest)
        seed = next((one.seeds for one in given.offer.base.tail if isinstance(one.seeds, int)), None)
        led = Merged(given.base, given.base, steps, replayable=True)
        return bases.next_base(rounds.store, self._number, led, Line(rounds.manifest, seed))

    @property
    def contributions(self) -> int:
        """Devices whose contributions count in the open round."""
        return len(self._service.state.counted)

    @property
    def exhausted(self) -> bool:
        """Whether all who are here have had their say about the open round."""
        state = self._service.state
        said = bool(state.answered or state.sat_out)
        return said and not state.waiting and self._ports.clock() >= state.settles_s

    def close_round(self) -> None:
        """Merge what the open round has."""
        self._timed(self._service.close_round)

    def end(self, offer: Offer) -> Given | None:
        """End the round that was given last, unless it is of this offer: merge what it has.

        Returns what it was given with, but for what came beside the base; None when there is no other round.
        """
        source = self.source
        if source is None or self.standing(offer) != "other":
            return None
        if self.standing(source) == "open":
            self.close_round()
        if self.standing(source) != "merged":
            return None
        return Given(source, "", self._service.rounds.weights(self._number), NOTHING)

    def made(self) -> Made | str:
        """What the round that was given last came to, or why that is nothing to forward."""
        rounds, number = self._service.rounds, self._number
        closed = rounds.store.closed(number)[0]
        devices = len({one.device for one in closed.contributions})
        if devices < self.task.min_contributions:
            return f"{devices} of {self.task.min_contributions} contributions"
        statistics = self._statistics(number)
        known = statistics is not None and statistics.sums.counts.any()
        if closed.note and not known and rounds.store.base(number + 1).sha == rounds.store.base(number).sha:
            return closed.note
        before, after = rounds.store.base(number), rounds.store.base(number + 1)
        taken = after.at - before.at if after.line == before.line else 0
        steps = rounds.store.taken.last(number + 1, taken)
        return made_of(closed, rounds.weights(number + 1), steps, statistics)

    def _statistics(self, number: int) -> Statistics | None:
        """The class statistics of a merged round, of all devices together."""
        rounds = self._service.rounds
        kept = rounds.store.carried(number + 1).memory.get(closed_form.MEMORY)
        if kept is None:
            return None
        memory = tensors.decode(rounds.store.models.get(kept))
        return of_round(memory, rounds.weights(number), rounds.manifest, rounds.task.statistics)

    def handle(self, event: Event) -> None:
        """One event of the site's link."""
        self._timed(lambda: self._service.handle(event))

    def tick(self) -> None:
        """Look at the clock."""
        self._timed(self._service.tick)

    def farewell(self) -> None:
        """Tell the devices that all is over."""
        rounds = self._service.rounds
        lobby = rounds.lobby(self._service.state.round)
        done = msgspec.structs.replace(lobby, round=self._service.state.round, done=True)
        topic = topics.offer(done.task)
        self._ports.link.publish(topic, self._ports.seal(topic, done), retain=True)

    def close(self) -> None:
        """Let go of the run folder."""
        self._service.close()

    @property
    def _latest(self) -> GivenRound | None:
        outside = self._service.rounds.outside
        return outside.latest if outside else None

    @property
    def _number(self) -> int:
        """The site's own number of the round that was given last."""
        return self._latest.number if self._latest else 0

    def _timed(self, step: Callable[[], None]) -> None:
        """Some steps end in a merge."""
        before, began = self._service.state.phase, time.monotonic()
        step()
        if before == "collect" and self._service.state.phase == "wait":
            self.merge_s = time.monotonic() - began
