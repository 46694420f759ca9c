"""Publishes the round offers of a run: to all devices, or only to the cohort that a round asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from msgspec.structs import replace

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import RELEASE, Base, Masks, Member, Offer, Shortages
from device_runtime.broker.wire.transfer import opening_blocks
from device_runtime.models.bundles import tensors
from device_runtime.strategies.statistics import closed_form, shortages

DEADLINE_SLACK = 1.25
"""A deadline of at most DEADLINE_SLACK times the published one is omitted from compact messages."""


class OfferMaker:
    """Makes the offers of one run. Raises RunFolderError, BlobError."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self._rare = lru_cache(1)(self._look_up_rare)
        self._shortages = lru_cache(1)(self._look_up_shortages)
        self._served = run.initial.start.base
        self._blank = Offer(
            task=run.task.name,
            run=run.run,
            round=0,
            seed=0,
            deadline_s=run.task.round_deadline_s,
            remaining_s=run.task.round_deadline_s,
            bundle=run.initial.bundles[""],
            base=run.initial.start.base,
            kinds=(),
            version=RELEASE,
            title=run.task.title,
            about=run.task.about,
            ask=run.task.ask,
        )

    def lobby(self, number: int = 0) -> Offer:
        """The offer of round 0, with which devices prepare.

        They get it before round 1, or (`number`) while that round asks others. Its base is that of round
        `number`, or the first base.
        """
        start = self.run.store.rounds.start(number) if number else self.run.initial.start
        members, masks = self._members(start.carried), self._masks(number)
        return replace(self._blank, base=start.base, family=members, masks=masks)

    def offer(self, number: int, deadline_s: float, remaining_s: float, extended: bool = False) -> Offer:
        """The offer of an open round; all devices are wanted in one that was extended."""
        start = self.run.store.rounds.start(number)
        return replace(
            self._blank,
            round=number,
            seed=self.run.seed(number),
            deadline_s=deadline_s,
            remaining_s=remaining_s,
            base=start.base,
            kinds=self.run.task.offer_kinds(number),
            family=self._members(start.carried),
            aside=start.carried.aside,
            rare=self._rare(number),
            masks=self._masks(number),
            shortages=None if extended else self._shortages(number),
        )

    def farewell(self) -> Offer:
        """The last offer of a finished task; its base is the served model."""
        last = self.run.store.rounds.latest_closed()
        seed, base = self.run.task.round_seed(last), self._served_base()
        return replace(self._blank, round=last, seed=seed, remaining_s=0.0, base=base, done=True)

    def _masks(self, number: int) -> Masks | None:
        """How the updates of a round are masked; in the lobby with numbers that do not hold yet."""
        settings = self.run.task.masks
        if settings is None:
            return None
        return self.run.store.sums.masks(number) or self.run.budget.noisy(settings.offered(0, 1))

    def _members(self, carried: CarriedBlobs) -> tuple[Member, ...]:
        bundles, family = self.run.initial.bundles, carried.family
        return tuple(Member(name, bundles[name], family[name]) for name in bundles if name in family)

    def _look_up_rare(self, number: int) -> tuple[int, ...]:
        """The labels of rare classes that round `number` names.

        They come from the statistics pooled at its beginning, or from the aggregator above.
        """
        if all(kind.strategy.statistics is None for kind in self.run.task.offered(number)):
            return ()
        if given_round := self.run.given(number):
            return given_round.rare
        blob = self.run.store.rounds.start(number).carried.memory.get(closed_form.MEMORY)
        return closed_form.rarest_classes(tensors.decode(self.run.store.models.get(blob))) if blob else ()

    def _look_up_shortages(self, number: int) -> Shortages | None:
        """What round `number` wants of stragglers, by the rounds before or the aggregator above."""
        if not self.run.task.rests:
            return None
        if given_round := self.run.given(number):
            return given_round.shortages
        memory, models = self.run.store.rounds.start(number).carried.memory, self.run.store.models
        pool, trained = (memory.get(name) for name in (closed_form.MEMORY, shortages.MEMORY))
        if pool is None or trained is None:
            return None
        return shortages.class_shortages(
            tensors.decode(models.get(pool)), tensors.decode(models.get(trained))
        )

    def _served_base(self) -> Base:
        """The served model as a base: the base that its round made, where that has the same weights."""
        store = self.run.store
        models = store.rounds.made(self.run.registry.served())
        if models.served.sha == models.base.sha:
            return models.base
        if self._served.sha != models.served.sha:
            served = tensors.decode(store.models.get(models.served))
            self._served = bases.checkpoint(served, store.models, self.run.manifest)
        return self._served


class OfferPublisher:
    """The offers of one run. `clock` gives seconds; `state` is always the round machine's current state.

    The retained offer is the open round's. In a round that asks only a cohort, it is the lobby: a device that
    is not asked does not train.
    """

    def __init__(self, offers: OfferMaker, out: Outbound, clock: Callable[[], float]) -> None:
        self._rounds, self._offers, self._out, self._clock = offers.run, offers, out, clock
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
        rest. With a family of models, or parts of one, all devices ask, as each may need another member. A
        round that asks a cohort is offered to each of its devices; the first such round only replaces the
        retained offer.
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
        if before is None or now is None or now.round != before.round + 1 or now.masks:
            return False
        if before.deadline_s <= now.deadline_s <= DEADLINE_SLACK * before.deadline_s:
            now = replace(now, deadline_s=before.deadline_s)
        steps = self._rounds.store.step_history.last(now.round, max(0, now.base.at - before.base.at))
        compact_offer = compact_round.compact_offer(before, now, steps, over=not state.rules.counts_late)
        if compact_offer is None:
            return False
        self._last = now
        self._out.next(now, compact_offer, state.online)
        return True

    def _push(self, state: RoundsState) -> None:
        """Send the first blocks of each new checkpoint of the base to the devices that are ready."""
        store, number = self._rounds.store, state.round
        if not store.rounds.opened(number - 1):
            return
        start = store.rounds.start(number)
        base = start.base
        if self._rounds.task.family or start.carried.family or base.at:
            return
        checkpoint = store.rounds.start(number - 1).base.checkpoint
        for part in base.checkpoint:
            if part not in checkpoint:
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

    def _current(self, state: RoundsState, in_cohort: bool) -> Offer | None:
        """The offer for devices that the open round asks, or for the others; None while a round is merged.

        While a round is unmasked, which may take long, it is the lobby: devices that come prepare.
        """
        if state.phase == "done":
            return self._offers.farewell()
        if in_cohort:
            number, remaining_s = state.round, state.remaining_s(self._clock())
            return self._offers.offer(number, state.deadline_s(number), remaining_s, state.extended)
        if state.phase in ("wait", "collect", "unmask"):
            return self._offers.lobby(state.round)
        return None


def _draws(state: RoundsState, number: int) -> bool:
    """Whether round `number` asks only a cohort; the lobby before the first round is of round 1."""
    return state.rules.cohort(max(1, number)) is not None
