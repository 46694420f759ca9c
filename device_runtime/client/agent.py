"""The device's main loop: what comes over the link, and its turn to do what is due."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import LostTrack, is_next
from device_runtime.broker.wire.link import Connected, Disconnected, Event, Received, Will
from device_runtime.broker.wire.messages import Blob, Get, MessageError, Offer, decode
from device_runtime.broker.wire.topics import TopicError

from .backend.base import MakePlace
from .connection.offers import Following, Open, opened
from .connection.other_tasks import Elsewhere
from .connection.presence import DeviceLink, Voice
from .connection.trust import Trust
from .duty import Duty, Interruption, in_this_process
from .errors import WorkDied, WorkStopped
from .policy.work_gate import Hours
from .settings import Settings

log = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between looks at what is due, while nothing comes in."""
ANOTHER_S = 10.0
"""Seconds in which a device that finds a task over, and is in none, looks out for another."""


class Agent:
    """One device in one task. Make the link with its `inbox`, `will()`, `greeting()` and `subscriptions()`.

    `run` is the loop; `begin` and `step` are its parts, for whoever has a loop of their own. `hours` are when
    it may work: at any time, if nobody says anything else.
    """

    def __init__(
        self,
        settings: Settings,
        boot: int,
        clock: Callable[[], float],
        make: MakePlace = in_this_process,
    ) -> None:
        """`boot` is drawn anew in each life of the process, so that the will of an earlier one is known.

        `make` makes where its tasks are worked on.
        """
        self.settings = settings
        self.inbox = DeviceInbox(clock)
        self.done = False
        self._voice = Voice(settings.name, boot)
        self.hours = Hours(clock)
        self._duty = Duty(settings, self.hours, self._voice, make)
        self._going = Interruption(self.hours, self._duty, self._hear_next, settings.meter)
        self._duty.between = self._going.between
        trust = Trust(settings.aggregator, folder=settings.folder, signs=bool(settings.secret))
        self._trust, self._following, self._voice.key = trust, Following(trust), trust.key
        if settings.secret:
            from device_runtime.broker.security.signing import (
                DeviceSigner,  # a device that is not enrolled needs no cryptography
            )

            self._voice.sign(DeviceSigner(settings.secret).seal, trust.word)
        self._clock = clock
        self._over: tuple[Open, float] | None = None
        self._voice.task = settings.task
        self._elsewhere = Elsewhere()
        self._heard = ("", 0)
        self._base: tuple[Blob, ...] = ()

    def will(self) -> Will:
        """What the broker says for us when we vanish."""
        return self._voice.presence(online=False)

    def farewell(self) -> Will:
        """What we say when we leave."""
        return self._voice.presence(online=False, leaving=True)

    def greeting(self) -> Will:
        """What the link says for us whenever it has the broker, though we may be busy."""
        return self._voice.presence(online=True)

    def subscriptions(self) -> tuple[str, ...]:
        wanted = self.settings.task
        return (topics.offer(wanted) if wanted else topics.OFFERS, topics.down(self.settings.name, "#"))

    @property
    def finished(self) -> bool:
        """Whether the task is done, everything is receipted, and its model here where one is wanted."""
        duty = self._duty
        return self.done and self.inbox.empty() and not len(duty.outbox) and not duty.finishing

    @property
    def heard(self) -> bool:
        """Whether an offer of its task has come."""
        return bool(self._heard[0])

    @property
    def waiting(self) -> bool:
        """Whether something may fall due though nothing comes in: call `step` several times a second.

        On a wire that loses messages call it now and then in any case: a hello without answer is said again.
        """
        duty = self._duty
        return duty.open is not None or len(duty.outbox) > 0 or duty.finishing or self._over is not None

    def run(self, link: DeviceLink, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished. Raises as `step` does."""
        self.begin(link, stop)
        while not stop.is_set() and not (until_done and self.finished):
            self.step(TICK_S)

    def hello(self) -> None:
        """Say anew who is here, and with what: it has changed."""
        self._duty.hello()

    def begin(self, link: DeviceLink, stop: threading.Event | None = None) -> None:
        """What it speaks through from now on; `stop`, where there is one, ends work that is being done."""
        self._voice.link, self._going.stop = link, stop or self._going.stop

    def step(self, timeout: float = 0.0) -> bool:
        """Take one event and, when no other waits, do what is due. Returns whether there was an event.

        Waits up to `timeout` seconds for it. Raises DataError, ModelError, OutOfMemory for what this device
        cannot mend by waiting.
        """
        heard = self._hear_next(timeout)
        try:
            if self.inbox.empty():  # work on the newest offer, not on one that is overtaken
                self._believe()
                self._duty.due(self._go_on)
        except BlobError as error:
            self._duty.warn(str(error))
        except WorkStopped as error:
            log.info("%s", error)
        return heard

    def warm_up(self) -> None:
        """There will soon be something to do."""
        self._duty.place.warm_up()

    def close(self) -> None:
        """End what works for it. May be called again, and goes on from there."""
        self._duty.place.put_down()
        self._duty.place.close()

    def _hear_next(self, timeout: float) -> bool:
        """Take one event; whether there was one. What cannot be meant ends nothing."""
        event = self.inbox.next(timeout)
        try:
            if event:
                self._handle(*event)
        except LostTrack as error:
            self._ask_anew(error)
        except (MessageError, TopicError) as error:
            log.warning("ignored: %s", error)
        except (BlobError, WorkDied) as error:
            self._duty.warn(str(error))
        return event is not None

    def _handle(self, event: Event, came: float) -> None:
        if isinstance(event, Connected):
            log.info("connected to %s%s", self._voice.link.url, "" if event.first else " again")
            self._duty.restart()
            self._duty.hello()
        elif isinstance(event, Disconnected):
            log.warning("disconnected: %s", event.reason)
        else:
            self._receive(event, came)

    def _receive(self, message: Received, came: float) -> None:
        if topics.is_offer(message.topic) and self._is_elsewhere(message):
            return
        if topics.is_offer(message.topic):
            self._hear(self._opened(message, came), message.retain)
            return
        address = topics.parse(message.topic)
        if address.leaf == "task":
            self._take(self._opened(message, came))
        elif address.leaf == "n":
            self._hear(self._opened(message, came), retained=False)
        elif address.leaf == "receipt":
            self._duty.settle(self._trust.receipt(message.topic, message.payload))
        elif address.leaf == "get":
            self._duty.answer(decode(message.payload, Get))
        elif address.leaf == "block":
            self._duty.block(address.sha, address.index, message.payload)

    def _opened(self, message: Received, came: float) -> Open:
        heard = self._following.offer(message.topic, message.payload, message.retain, self._voice.task)
        return opened(heard, came)

    def _is_elsewhere(self, message: Received) -> bool:
        """Whether this is the next round of a task that the device is not in."""
        return is_next(message.payload) and message.topic != topics.offer(self._voice.task)

    def _ask_anew(self, lost: LostTrack) -> None:
        """For the whole offer, unless that is asked for already."""
        if not self._duty.greeting.waiting:
            log.info("%s", lost)
            self._duty.hello()

    def _hear(self, heard: Open, retained: bool) -> None:
        """The offer to all. A retained one only says that there is a task: what remains is told after hello.

        One that was heard before comes from an aggregator that has restarted, and does not know who is here.
        A base that is new to all is on its way to those who said that they are ready, unasked; not where some
        train smaller models.
        """
        offer, checkpoint = heard.offer, heard.offer.base.checkpoint
        if not self._concerns(offer):
            return
        if retained and offer.done and not self._voice.task:
            self._over = self._over or (heard, self._clock() + ANOTHER_S)
            return
        if retained and not offer.done:
            return
        again = offer.round == 0 or (offer.run, offer.round) == self._heard
        if self._duty.ready and not offer.done:
            if again:
                self._duty.hello()
                self._duty.sending.restart()
            elif offer.round > 1 and not (offer.family or offer.base.at):
                for part in checkpoint:
                    if part not in self._base:
                        self._duty.expect(part)
        if self._following.over:
            self._duty.sending.over(offer.run, offer.round)
        self._take(heard)

    def _take(self, taken: Open) -> None:
        """Note the round; the newest replaces any other. Round 0 is the lobby: get ready.

        That a task is over which it has left, said again in answer to an earlier hello, changes nothing.
        Where a hello to any task and one to the task it has gone to since are both answered, it is in the one
        of these, and the other waits.
        """
        offer = taken.offer
        if offer.done and self._voice.task not in ("", offer.task):
            self._duty.sending.drop(offer.run)
            return
        self._duty.greeting.answered()
        if not self.done and self._voice.task not in ("", offer.task):
            self._elsewhere.add(self._voice.task)
        self._elsewhere.discard(offer.task)
        self._voice.task = offer.task
        self.done = offer.done
        self._heard = (offer.run, offer.round)
        self._base = offer.base.checkpoint
        self._duty.take(None if offer.done else taken)
        if offer.done:
            log.info("task %r is done after round %d", offer.task, offer.round)
            self._duty.sending.drop(offer.run)
            self._duty.finish(taken)
            self._go_elsewhere()

    def _believe(self) -> None:
        """That a task was over before we came may be old: it is taken to be ours where no other comes."""
        if self._over is not None and self._voice.task:
            self._over = None
        elif self._over is not None and self._clock() >= self._over[1]:
            over, self._over = self._over[0], None
            self._take(over)

    def _concerns(self, offer: Offer) -> bool:
        """Whether an offer to all is of the task in hand. Another task is noted: a device that was not told
        which to be in goes there when its own is over.
        """
        if offer.task == self._voice.task or (not self._voice.task and offer.done):
            return True
        if offer.done:
            self._elsewhere.discard(offer.task)
            return False
        self._elsewhere.add(offer.task)
        if not self._voice.task or self.done:
            self._go_elsewhere()
        return offer.task == self._voice.task

    def _go_elsewhere(self) -> None:
        task = "" if self.settings.task else self._elsewhere.take()
        if task:
            self._voice.task = task
            self.done = False
            log.info("on to task %r", task)
            self._duty.hello()

    def _go_on(self, done: float) -> None:
        """Called while training, `done` from 0 to 1. Raises as `Going.between` does."""
        self._going.progress(done)


# FROM inbox: What the link reports, each with the moment at which it came.

_WAKE = Received("", b"")


class DeviceInbox(queue.SimpleQueue[Event]):
    """Events in order. An offer that came while the device trained has been running since it came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._moments: deque[float] = deque()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        self._moments.append(self._clock())
        super().put(item, block, timeout)

    def wake(self) -> None:
        """End a wait that is going on, or the next one. May be called in a signal handler.

        A signal that comes as a wait times out would else make it a wait for ever (CPython 3.11, _queue.c:
        what is left of the timeout is below 0 then, which means none).
        """
        self.put(_WAKE)

    def next(self, timeout: float) -> tuple[Event, float] | None:
        """The next event and when it came, on the device's clock; None after `timeout` seconds without."""
        try:
            event, came = self.get(timeout=timeout), self._moments.popleft()
        except queue.Empty:
            return None
        return None if event is _WAKE else (event, came)
