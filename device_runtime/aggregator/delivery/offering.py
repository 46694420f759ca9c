"""Publishes the round offers of a run: to all devices, or only to the cohort that a round asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.rounds.state import RoundsState
from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import Offer
from device_runtime.broker.wire.transfer import opening_blocks

from .offers import OfferMaker
from .outbound import Outbound

DEADLINE_SLACK = 1.25
"""A deadline of at most DEADLINE_SLACK times the published one is omitted from compact messages."""


class OfferPublisher:
    """The offers of one run. `clock` gives seconds; `state` is always the round machine's current state.

    The retained offer is the open round's. In a round that asks only a cohort, it is the lobby: a device that
    is not asked does not train.
    """

    def __init__(
        self, rounds: OpenRun, offers: OfferMaker, out: Outbound, clock: Callable[[], float]
    ) -> None:
        self._rounds, self._offers, self._out, self._clock = rounds, offers, out, clock
        self._last: Offer | None = None

    def started(self, state: RoundsState, saved: int) -> None:
        """Announce that the aggregator has started. `saved`: the round that it found on disk, 0 for none.

        Devices say hello to an offer that they have heard before, as it tells them that the aggregator has
        restarted. If a later round than `saved` is open by now, its first offer looks like the ordinary next
        round, so it is published twice.
        """
        if state.phase == "wait" or _draws(state, state.round) or state.round > saved > 0:
            self.everybody(state)

    def opened(self, state: RoundsState) -> bool:
        """Offer a round that has just opened. Returns whether a compact message was enough.

        It is enough where only zeroth-order steps moved the base since the last offer. Otherwise the whole
        offer is published, and the first blocks of each new checkpoint are sent unasked; devices ask for the
        rest. With a family of models all devices ask, as each may need another member. A round that asks a
        cohort is offered to each of its devices; the first such round only replaces the retained offer.
        """
        if _draws(state, state.round):
            if not _draws(state, state.round - 1):
                self.everybody(state)
            return False
        if self._compact(state):
            return True
        self.everybody(state)
        self._push(state)
        return False

    def _compact(self, state: RoundsState) -> bool:
        """Send what is new since the last offer; returns False where a compact message cannot say it."""
        before, now = self._last, self._current(state, state.phase == "collect")
        if before is None or now is None or now.round != before.round + 1:
            return False
        if before.deadline_s <= now.deadline_s <= DEADLINE_SLACK * before.deadline_s:
            now = replace(now, deadline_s=before.deadline_s)
        steps = self._rounds.store.taken.last(now.round, max(0, now.base.at - before.base.at))
        made = compact_round.compact_offer(before, now, steps, over=not state.rules.counts_late)
        if made is None:
            return False
        self._last = now
        self._out.next(now, made, state.online)
        return True

    def _push(self, state: RoundsState) -> None:
        """Send the first blocks of each new checkpoint of the base to the devices that are ready."""
        store, number = self._rounds.store, state.round
        if self._rounds.task.family or not store.rounds.opened(number - 1):
            return
        base = store.rounds.start(number).base
        if base.at:
            return
        known = store.rounds.start(number - 1).base.checkpoint
        for part in base.checkpoint:
            if part not in known:
                for device in state.ready:
                    self._out.blocks(device, opening_blocks(part), store.models)

    def extended(self, state: RoundsState) -> None:
        """Publish the new deadline of the open round."""
        if _draws(state, state.round):
            self.each(state, state.waiting)
        else:
            self.everybody(state)

    def everybody(self, state: RoundsState) -> None:
        """Publish the retained offer again: a broker may have lost it."""
        if offer := self._current(state, state.phase == "collect" and not _draws(state, state.round)):
            self._last = offer
            self._out.broadcast(offer, state.online)

    def one(self, state: RoundsState, device: str) -> None:
        """Answer the hello of a device, with the deadline that was published to all devices.

        A compact message about the next round only says what differs from this offer, so all devices must
        have the same one.
        """
        offer, last = self._current(state, state.concerns(device)), self._last
        if offer and last and offer.round == last.round and not offer.done:
            offer = replace(offer, deadline_s=last.deadline_s)
        if offer:
            self._out.offer(device, offer)

    def each(self, state: RoundsState, devices: Iterable[str]) -> None:
        """Offer the open round to these devices."""
        if offer := self._current(state, state.phase == "collect"):
            for device in sorted(devices):
                self._out.offer(device, offer)

    def _current(self, state: RoundsState, asked: bool) -> Offer | None:
        """The offer for devices that the open round asks, or for the others; None while a round is merged."""
        if state.phase == "done":
            return self._offers.farewell()
        if asked:
            return self._offers.offer(state.round, state.remaining_s(self._clock()))
        if state.phase in ("wait", "collect"):
            return self._offers.lobby(state.round)
        return None


def _draws(state: RoundsState, number: int) -> bool:
    """Whether round `number` asks only a cohort; the lobby before the first round is of round 1."""
    return state.rules.cohort(max(1, number)) is not None
