"""Makes the offers of a run from what is on its disk."""

from __future__ import annotations

from msgspec.structs import replace

from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import CarriedBlobs, RoundStart
from device_runtime.broker.wire.messages import Base, Member, Offer
from device_runtime.models.bundles import tensors
from device_runtime.strategies.statistics import closed_form


class OfferMaker:
    """Makes the offers of one run. Raises RunFolderError, BlobError."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._known_rare: tuple[int, tuple[int, ...]] = (0, ())
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
        )

    def lobby(self, number: int = 0) -> Offer:
        """The offer of round 0, with which devices prepare.

        They get it before round 1, or (`number`) while that round asks others. Its base is that of round
        `number`, or the first base.
        """
        start = self._run.store.rounds.start(number) if number else self._run.initial.start
        return replace(self._blank, base=start.base, family=self._members(start.carried))

    def offer(self, number: int, remaining_s: float) -> Offer:
        """The offer of an open round."""
        start = self._run.store.rounds.start(number)
        return replace(
            self._blank,
            round=number,
            seed=self._run.seed(number),
            deadline_s=self._run.progress.deadline_s(number),
            remaining_s=remaining_s,
            base=start.base,
            kinds=self._run.task.offer_kinds(number),
            family=self._members(start.carried),
            aside=start.carried.aside,
            rare=self._rare(number, start),
        )

    def farewell(self) -> Offer:
        """The last offer of a finished task; its base is the served model."""
        last = self._run.store.rounds.latest_closed()
        seed, base = self._run.task.round_seed(last), self._served_base()
        return replace(self._blank, round=last, seed=seed, remaining_s=0.0, base=base, done=True)

    def _members(self, carried: CarriedBlobs) -> tuple[Member, ...]:
        bundles = self._run.initial.bundles.items()
        return tuple(
            Member(name, one, carried.family[name]) for name, one in bundles if name in carried.family
        )

    def _rare(self, number: int, start: RoundStart) -> tuple[int, ...]:
        """The labels of rare classes that round `number` names.

        They come from the statistics pooled at its beginning, or from the aggregator above.
        """
        if self._known_rare[0] != number:
            self._known_rare = number, self._look_up_rare(number, start)
        return self._known_rare[1]

    def _look_up_rare(self, number: int, start: RoundStart) -> tuple[int, ...]:
        if all(kind.strategy.statistics is None for kind in self._run.task.offered(number)):
            return ()
        if given := self._run.given(number):
            return given.rare
        kept = start.carried.memory.get(closed_form.MEMORY)
        return closed_form.rarest_classes(tensors.decode(self._run.store.models.get(kept))) if kept else ()

    def _served_base(self) -> Base:
        """The served model as a base: the base that its round made, where that has the same weights."""
        store = self._run.store
        made = store.rounds.made(self._run.registry.served())
        if made.served.sha == made.base.sha:
            return made.base
        if self._served.sha != made.served.sha:
            served = tensors.decode(store.models.get(made.served))
            self._served = bases.checkpoint(served, store.models, self._run.manifest)
        return self._served
