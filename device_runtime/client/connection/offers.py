"""Offers on the device: which are to be believed, and when an open round closes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import LostTrack
from device_runtime.broker.wire.messages import Base, MessageError, Offer
from device_runtime.broker.wire.topics import TopicError, check_task

from .trust import Trust

EXTENDED_S = 1.0
"""By so much later a round closes that was given a new deadline; less is what the word took on its way."""


@dataclass(frozen=True)
class Open:
    """A round that is open, and when it closes on the device's own clock, in seconds.

    `member` of the family is the one whose base is fetched for it, "" the main model; None: not decided yet.
    """

    offer: Offer
    closes: float
    member: str | None = None

    @property
    def base(self) -> Base:
        """What is worked on."""
        return next((one.base for one in self.offer.family if one.name == self.member), self.offer.base)

    def follows(self, earlier: Open) -> bool:
        """Whether this is the same round with the same deadline, said once more."""
        now, then = self.offer, earlier.offer
        return (now.run, now.round) == (then.run, then.round) and self.closes - earlier.closes < EXTENDED_S


def opened(offer: Offer, came: float) -> Open:
    """The round of an offer that came at this moment. Raises MessageError for one that makes no sense."""
    where = f"offer of round {offer.round} of {offer.task!r}"
    try:
        check_task(offer.task)
    except TopicError:
        raise MessageError(f"{where}: that is no name of a task") from None
    for name, seconds in (("remaining_s", offer.remaining_s), ("deadline_s", offer.deadline_s)):
        if not isfinite(seconds) or seconds < 0:
            raise MessageError(f"{where}: {name} is {seconds}, expected 0 or more seconds")
    if offer.round < 0:
        raise MessageError(f"{where}: rounds are counted from 0")
    if not 0 <= offer.seed < 2**64:
        raise MessageError(f"{where}: seed is {offer.seed}, expected 64 bits")
    names = ["", *(member.name for member in offer.family)]
    if len(set(names)) != len(names):
        raise MessageError(f"{where}: models of its family are called {names[1:]}, each needs its own")
    for base in (offer.base, *(member.base for member in offer.family)):
        if not base.checkpoint or base.steps < 0:
            raise MessageError(f"{where}: a base has no checkpoint, or {base.steps} steps")
    return Open(offer, came + offer.remaining_s)


# FROM offer_stream: From what comes on the topics of offers to the offers that it stands for.

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
