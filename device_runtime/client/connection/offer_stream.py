"""From what comes on the topics of offers to the offers that it stands for."""

from __future__ import annotations

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import LostTrack
from device_runtime.broker.wire.messages import MessageError, Offer

from .trust import Trust

TASKS = 64
"""Of which the latest offer is remembered."""


class Following:
    """The latest offer of each task, and what leads on from it. `trust` says whose offers count."""

    def __init__(self, trust: Trust) -> None:
        self.over = False
        """Whether what is unreceipted of earlier rounds has nothing to wait for, as the last word was."""
        self._trust = trust
        self._latest: dict[str, Offer] = {}

    def offer(self, topic: str, payload: bytes, retained: bool = False, task: str = "") -> Offer:
        """The offer that came, or that follows from the one before: of `task`, where the topic does not say.

        Raises MessageError for what is not to be acted on, LostTrack where the whole offer is to be asked
        for.
        """
        self.over = False
        if retained and not topics.is_offer(topic):
            raise MessageError(f"offer on {topic} is marked as kept, which none there is")
        if small.is_next(payload):
            of = topic.removeprefix(topics.offer("")) if topics.is_offer(topic) else task
            return self._next(of, topic, payload)
        offer = self._trust.offer(topic, payload, retained)
        latest = self._latest.get(offer.task)
        if not (retained and latest and latest.run == offer.run and offer.round < latest.round):
            self._keep(offer)
        return offer

    def _next(self, task: str, topic: str, payload: bytes) -> Offer:
        before = self._latest.get(task)
        if before is None:
            raise LostTrack(f"a round of {task!r} is open that follows one which is not known here")
        made = self._trust.next(topic, before.run, payload)
        if made.round <= before.round:
            raise MessageError(f"round {made.round} of {task!r} was heard of before")
        del self._latest[task]  # it is asked for anew, if this does not lead on
        offer = small.following(before, made)
        self._keep(offer)
        self.over = made.over
        return offer

    def _keep(self, offer: Offer) -> None:
        self._latest.pop(offer.task, None)
        self._latest[offer.task] = offer
        while len(self._latest) > TASKS:
            del self._latest[next(iter(self._latest))]
