"""What devices are told of where the run is: all of them, or of a cohort only those that are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.rounds.state import RoundsState
from device_runtime.aggregator.storage.store import Store
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire.messages import Offer
from device_runtime.broker.wire.transfer import opening

from .outbound import Outbound

SPARED = 1.25
"""Times the last deadline that was told: one that is longer by less is not told where that saves words."""


class Offering:
    """Offers of one run. `clock` gives seconds; `state` is always that of the round machine now.

    The retained offer is the open round's or, where rounds ask only some, the lobby: nobody works unasked.
    """

    def __init__(self, rounds: OpenRun, out: Outbound, clock: Callable[[], float]) -> None:
        self._rounds = rounds
        self._out = out
        self._clock = clock
        self._cohorts = rounds.task.devices_per_round is not None
        self._last: Offer | None = None

    def started(self, state: RoundsState, saved: int) -> None:
        """A life of the aggregator begins; whoever is here says hello. `saved`: the round that it found.

        A later one that is open by now has to be heard twice: else it comes of the life before, for all that
        devices know.
        """
        if state.phase == "wait" or self._cohorts or state.round > saved > 0:
            self.everybody(state)

    def opened(self, state: RoundsState) -> bool:
        """A round is open. A base that is new to everyone is on its way; who lacks more of it asks.

        Where there are smaller models, of which a device needs one in place of the main one, all ask. Who has
        kept up needs few bytes where only steps moved the base: returns whether that was all that was said.
        """
        if self._cohorts:
            return False
        if self._went_on(state):
            return True
        self.everybody(state)
        store, number = self._rounds.store, state.round
        if store.opened(number - 1) and not self._rounds.task.family and not store.base(number).at:
            self._push(state, store, number)
        return False

    def _went_on(self, state: RoundsState) -> bool:
        """Say what is new, to who has the offer of the round before."""
        before, now = self._last, self._standing(state, state.phase == "collect")
        if before is None or now is None or now.round != before.round + 1:
            return False
        if before.deadline_s <= now.deadline_s <= SPARED * before.deadline_s:
            now = replace(now, deadline_s=before.deadline_s)
        steps = self._rounds.store.taken.last(now.round, max(0, now.base.at - before.base.at))
        made = small.next_after(before, now, steps, over=not self._rounds.rules.counts_late)
        if made is None:
            return False
        self._last = now
        self._out.next(now, made, state.online)
        return True

    def _push(self, state: RoundsState, store: Store, number: int) -> None:
        known = store.base(number - 1).checkpoint
        for part in store.base(number).checkpoint:
            if part not in known:
                for device in state.ready:
                    self._out.blocks(device, opening(part), store.models)

    def extended(self, state: RoundsState) -> None:
        """The open round has a new deadline."""
        if self._cohorts:
            self.each(state, state.waiting)
        else:
            self.everybody(state)

    def everybody(self, state: RoundsState) -> None:
        """Publish where things are: a broker may have forgotten it."""
        if offer := self._standing(state, state.phase == "collect" and not self._cohorts):
            self._last = offer
            self._out.broadcast(offer, state.online)

    def one(self, state: RoundsState, device: str) -> None:
        """Answer a device that has said hello: with the deadline that the others were told, as what is not
        said of the next one is as in this.
        """
        offer, last = self._standing(state, state.concerns(device)), self._last
        if offer and last and offer.round == last.round and not offer.done:
            offer = replace(offer, deadline_s=last.deadline_s)
        if offer:
            self._out.offer(device, offer)

    def each(self, state: RoundsState, devices: Iterable[str]) -> None:
        """Offer the open round to these."""
        if offer := self._standing(state, state.phase == "collect"):
            for device in sorted(devices):
                self._out.offer(device, offer)

    def _standing(self, state: RoundsState, asked: bool) -> Offer | None:
        """What there is to say to those who are asked for the open round, or to the others."""
        if state.phase == "done":
            return self._rounds.farewell()
        if asked:
            return self._rounds.offer(state.round, state.remaining_s(self._clock()))
        if state.phase in ("wait", "collect"):
            return self._rounds.lobby(state.round)
        return None
