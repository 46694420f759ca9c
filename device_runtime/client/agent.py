"""The device's main loop: handles messages from the link and runs work that is due."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import UnknownRoundBefore, is_compact_offer
from device_runtime.broker.wire.link import Connected, Disconnected, Event, Received, Will
from device_runtime.broker.wire.messages import Blob, Get, MessageError, Offer, decode
from device_runtime.broker.wire.topics import TopicError

from .backend.base import MakeBackend
from .connection.offers import OfferStream, OpenRound, opened
from .connection.other_tasks import OtherTasks
from .connection.presence import DeviceLink, DeviceMessages
from .connection.trust import Trust
from .duty import DeviceRounds, Interruption, in_this_process
from .errors import WorkDied, WorkStopped
from .policy.work_gate import WorkGate
from .settings import Settings

log = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between looks at what is due, while nothing comes in."""
ANOTHER_S = 10.0
"""Seconds that a device without a task waits for another one after it hears of a task that is done."""


class Agent:
    """One device in one task. Make the link with its `inbox`, `will()`, `greeting()` and `subscriptions()`.

    `run` is the main loop; callers with a loop of their own use `begin` and `step` instead. `work_gate`
    allows work at any time unless its `judged` is replaced.
    """

    def __init__(
        self,
        settings: Settings,
        boot: int,
        clock: Callable[[], float],
        make: MakeBackend = in_this_process,
    ) -> None:
        """`make` makes the backend that works on the device's tasks.

        `boot` is drawn anew each time the process starts, to recognise the last will of an earlier process.
        """
        self.settings = settings
        self.inbox = DeviceInbox(clock)
        self.done = False
        self._messages = DeviceMessages(settings.name, boot)
        self.work_gate = WorkGate(clock)
        self._rounds = DeviceRounds(settings, self.work_gate, self._messages, make)
        self._interruption = Interruption(self.work_gate, self._rounds, self._hear_next, settings.meter)
        self._rounds.pause_point = self._interruption.pause_point
        trust = Trust(settings.aggregator, folder=settings.folder, signs=bool(settings.secret))
        self._trust, self._offer_stream, self._messages.key = trust, OfferStream(trust), trust.key
        if settings.secret:
            from device_runtime.broker.security.signing import (
                DeviceSigner,  # a device that is not enrolled needs no cryptography
            )

            self._messages.sign(DeviceSigner(settings.secret).seal, trust.mac)
        self._clock = clock
        self._past: tuple[OpenRound, float] | None = None
        self._messages.task = settings.task
        self._other_tasks = OtherTasks()
        self._heard = ("", 0)
        self._base: tuple[Blob, ...] = ()

    def will(self) -> Will:
        """The last will: the broker publishes it when the connection is lost."""
        return self._messages.presence(online=False)

    def farewell(self) -> Will:
        """The message that this device leaves."""
        return self._messages.presence(online=False, leaving=True)

    def greeting(self) -> Will:
        """The message that the link publishes at each connection, even while the device is busy."""
        return self._messages.presence(online=True)

    def subscriptions(self) -> tuple[str, ...]:
        wanted = self.settings.task
        return (topics.offer(wanted) if wanted else topics.OFFERS, topics.down(self.settings.name, "#"))

    @property
    def finished(self) -> bool:
        """Whether the task is done, all contributions have receipts, and a wanted model is here."""
        rounds = self._rounds
        return self.done and self.inbox.empty() and not len(rounds.outbox) and not rounds.finishing

    @property
    def heard(self) -> bool:
        """Whether an offer of its task has come."""
        return bool(self._heard[0])

    @property
    def waiting(self) -> bool:
        """Whether something may fall due without a message: call `step` several times a second.

        If the link may lose messages, call it now and then in any case: an unanswered hello is repeated.
        """
        rounds = self._rounds
        return rounds.open is not None or len(rounds.outbox) > 0 or rounds.finishing or self._past is not None

    def run(self, link: DeviceLink, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished. Raises as `step` does."""
        self.begin(link, stop)
        while not stop.is_set() and not (until_done and self.finished):
            self.step(TICK_S)

    def hello(self) -> None:
        """Send a hello, because this device's task or samples have changed."""
        self._rounds.hello()

    def begin(self, link: DeviceLink, stop: threading.Event | None = None) -> None:
        """Set the link to send through; `stop`, if given, ends work in progress."""
        self._messages.link, self._interruption.stop = link, stop or self._interruption.stop

    def step(self, timeout: float = 0.0) -> bool:
        """Handle one event and, if no other waits, do what is due. Returns whether there was an event.

        Waits up to `timeout` seconds for the event. Raises DataError, ModelError, OutOfMemory for errors that
        waiting does not solve.
        """
        heard = self._hear_next(timeout)
        try:
            if self.inbox.empty():  # work on the newest offer only
                self._accept_done()
                self._rounds.due(self._go_on)
        except BlobError as error:
            self._rounds.warn(str(error))
        except WorkStopped as error:
            log.info("%s", error)
        return heard

    def warm_up(self) -> None:
        """Prepare the backend: there will be work soon."""
        self._rounds.backend.warm_up()

    def close(self) -> None:
        """Save the backend's state to disk and end it. May be called again, and goes on from there."""
        self._rounds.backend.save_state()
        self._rounds.backend.close()

    def _hear_next(self, timeout: float) -> bool:
        """Handle one event; returns whether there was one. An invalid message is logged and ignored."""
        event = self.inbox.next(timeout)
        try:
            if event:
                self._handle(*event)
        except UnknownRoundBefore as error:
            self._ask_whole_offer(error)
        except (MessageError, TopicError) as error:
            log.warning("ignored: %s", error)
        except (BlobError, WorkDied) as error:
            self._rounds.warn(str(error))
        return event is not None

    def _handle(self, event: Event, came: float) -> None:
        if isinstance(event, Connected):
            log.info("connected to %s%s", self._messages.link.url, "" if event.first else " again")
            self._rounds.restart()
            self._rounds.hello()
        elif isinstance(event, Disconnected):
            log.warning("disconnected: %s", event.reason)
        else:
            self._receive(event, came)

    def _receive(self, message: Received, came: float) -> None:
        if topics.is_offer(message.topic) and self._is_of_other_task(message):
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
            self._rounds.settle(self._trust.receipt(message.topic, message.payload))
        elif address.leaf == "get":
            self._rounds.answer(decode(message.payload, Get))
        elif address.leaf == "block":
            self._rounds.block(address.sha, address.index, message.payload)

    def _opened(self, message: Received, came: float) -> OpenRound:
        heard = self._offer_stream.offer(message.topic, message.payload, message.retain, self._messages.task)
        return opened(heard, came)

    def _is_of_other_task(self, message: Received) -> bool:
        """Whether this is the next round of a task that the device is not in."""
        return is_compact_offer(message.payload) and message.topic != topics.offer(self._messages.task)

    def _ask_whole_offer(self, lost: UnknownRoundBefore) -> None:
        """Ask for the whole offer, unless a hello already waits for its answer."""
        if not self._rounds.hello_retry.waiting:
            log.info("%s", lost)
            self._rounds.hello()

    def _hear(self, heard: OpenRound, retained: bool) -> None:
        """Handle an offer to all devices.

        A retained offer only says that there is a task: a device learns the rest in answer to its hello. If
        the offer was heard before, the aggregator has restarted and does not know which devices are here: say
        hello again. A base that is new to all devices comes unasked to those that said they are ready, except
        where some train smaller models.
        """
        offer, checkpoint = heard.offer, heard.offer.base.checkpoint
        if not self._concerns(offer):
            return
        if retained and offer.done and not self._messages.task:
            self._past = self._past or (heard, self._clock() + ANOTHER_S)
            return
        if retained and not offer.done:
            return
        again = offer.round == 0 or (offer.run, offer.round) == self._heard
        if self._rounds.ready and not offer.done:
            if again:
                self._rounds.hello()
                self._rounds.sending.restart()
            elif offer.round > 1 and not (offer.family or offer.base.at):
                for part in checkpoint:
                    if part not in self._base:
                        self._rounds.expect(part)
        if self._offer_stream.over:
            self._rounds.sending.over(offer.run, offer.round)
        self._take(heard)

    def _take(self, taken: OpenRound) -> None:
        """Note the round; the newest replaces any other. Round 0 is the lobby: get ready.

        A repeated offer that says that a task it has left is done, in answer to an earlier hello, changes
        nothing. If two hellos are answered with different tasks, the device is in the one answered last and
        notes the other.
        """
        offer = taken.offer
        if offer.done and self._messages.task not in ("", offer.task):
            self._rounds.sending.drop(offer.run)
            return
        self._rounds.hello_retry.answered()
        if not self.done and self._messages.task not in ("", offer.task):
            self._other_tasks.add(self._messages.task)
        self._other_tasks.discard(offer.task)
        self._messages.task = offer.task
        self.done = offer.done
        self._heard = (offer.run, offer.round)
        self._base = offer.base.checkpoint
        self._rounds.take(None if offer.done else taken)
        if offer.done:
            log.info("task %r is done after round %d", offer.task, offer.round)
            self._rounds.sending.drop(offer.run)
            self._rounds.finish(taken)
            self._go_to_other_task()

    def _accept_done(self) -> None:
        """Accept that its task was done before it came, if no other task is offered in time.

        Such an offer may be old, so it is not accepted at once.
        """
        if self._past is not None and self._messages.task:
            self._past = None
        elif self._past is not None and self._clock() >= self._past[1]:
            over, self._past = self._past[0], None
            self._take(over)

    def _concerns(self, offer: Offer) -> bool:
        """Whether an offer to all is of this device's task.

        Another task is noted: a device whose settings name no task goes on to it when its own is done.
        """
        if offer.task == self._messages.task or (not self._messages.task and offer.done):
            return True
        if offer.done:
            self._other_tasks.discard(offer.task)
            return False
        self._other_tasks.add(offer.task)
        if not self._messages.task or self.done:
            self._go_to_other_task()
        return offer.task == self._messages.task

    def _go_to_other_task(self) -> None:
        task = "" if self.settings.task else self._other_tasks.take()
        if task:
            self._messages.task = task
            self.done = False
            log.info("going on to task %r", task)
            self._rounds.hello()

    def _go_on(self, done: float) -> None:
        """Called while training, `done` from 0 to 1. Raises as `Interruption.pause_point` does."""
        self._interruption.progress(done)


_WAKE = Received("", b"")


class DeviceInbox(queue.SimpleQueue[Event]):
    """What the link reports, in order, each with its time of arrival on the device's clock.

    The deadline of an offer that came during training runs from its arrival.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._moments: deque[float] = deque()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        self._moments.append(self._clock())
        super().put(item, block, timeout)

    def wake(self) -> None:
        """End the current wait, or the next one. May be called in a signal handler.

        Without it, a signal that comes just as a wait times out would make the wait endless (CPython 3.11,
        _queue.c: the rest of the timeout is then below 0, which means none).
        """
        self.put(_WAKE)

    def next(self, timeout: float) -> tuple[Event, float] | None:
        """The next event and its time of arrival; None after `timeout` seconds without one."""
        try:
            event, came = self.get(timeout=timeout), self._moments.popleft()
        except queue.Empty:
            return None
        return None if event is _WAKE else (event, came)
