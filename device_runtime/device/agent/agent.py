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
from device_runtime.broker.wire.link_events import WAKE, Connected, Disconnected, Event, Received, Will
from device_runtime.broker.wire.messages import RELEASE, Get, MessageError, Offer, decode
from device_runtime.broker.wire.topics import TopicError
from device_runtime.broker.wire.transfer import SendingLink
from device_runtime.device.backend.base import MakeBackend
from device_runtime.device.connection.offers import OfferStream, opened, task_text, task_title, update_advice
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.device.connection.trust import Trust
from device_runtime.device.errors import WorkDied
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.training.settings import Settings
from device_runtime.system_errors import disk_reason, is_of_disk

from .runner import Runner, in_this_process

log = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between looks at what is due, while nothing comes in."""
LISTEN_S = 60.0
"""Seconds after connecting in which an offer of the task comes, as brokers keep it, if there is one."""


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
        self.settings, self._clock = settings, clock
        self._listening_ends_at: float | None = None
        self._aggregator_version = ""
        self._introduced = ""
        self.inbox = DeviceInbox(clock)
        self._messages = DeviceMessages(settings.name, boot, settings.tags)
        self._messages.task = settings.task
        self.work_gate = WorkGate(clock)
        self.runner = Runner(settings, self.work_gate, self._messages, make)
        self.runner.hear = self._hear_next
        trust = Trust(settings.aggregator, folder=settings.folder, signs=bool(settings.secret))
        self._trust, self._offer_stream, self._messages.key = trust, OfferStream(trust), trust.key
        if settings.secret:
            from device_runtime.broker.security.signing import DeviceSigner

            self._messages.sign(DeviceSigner(settings.secret).seal, trust.mac)

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
        task = self.settings.task
        return (topics.offer(task) if task else topics.OFFERS, topics.down(self.settings.name, "#"))

    @property
    def done(self) -> bool:
        """Whether the task is done."""
        return self.runner.state.done

    @property
    def finished(self) -> bool:
        """Whether the task is done, all contributions have receipts, and a wanted model is here."""
        state = self.runner.state
        return state.done and self.inbox.empty() and not state.outbox and state.final is None

    @property
    def has_offer(self) -> bool:
        """Whether an offer of its task has come."""
        return bool(self.runner.state.heard[0])

    @property
    def waiting(self) -> bool:
        """Whether something may fall due without a message: call `step` several times a second.

        If the link may lose messages, call it now and then in any case: an unanswered hello is repeated.
        """
        state = self.runner.state
        return bool(state.outbox) or any((state.open, state.final, state.past))

    def run(self, link: SendingLink, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished. Raises as `step` does."""
        self.begin(link, stop)
        if until_done:
            self.leave_when_done()
        while not stop.is_set() and not (until_done and self.finished):
            self.step(TICK_S)

    def leave_when_done(self) -> None:
        """Go on to no other task when this device's task is done."""
        self.runner.leave_when_done()

    def hello(self) -> None:
        """Send a hello, because this device's task or samples have changed."""
        self.runner.hello()

    def begin(self, link: SendingLink, stop: threading.Event | None = None) -> None:
        """Set the link to send through; `stop`, if given, ends work in progress."""
        self._messages.link, self.runner.stop = link, stop or self.runner.stop

    def step(self, timeout: float = 0.0) -> bool:
        """Handle one event and, if no other waits, do what is due. Returns whether there was an event.

        Waits up to `timeout` seconds for the event. Raises DataError, ModelError, OutOfMemory for errors that
        waiting does not solve.
        """
        has_event = self._hear_next(timeout)
        try:
            if self.inbox.empty():  # work on the newest offer only
                self._look_for_offers()
                self.runner.look_at_gate()
                self.runner.tick()
        except BlobError as error:
            self.runner.warn(str(error))
        except OSError as error:
            self._warn_of_disk(error)
        return has_event

    def _look_for_offers(self) -> None:
        """Notices that the broker has had no offer for this device since it connected."""
        ends_at, task = self._listening_ends_at, self._messages.task
        if ends_at is not None and self._clock() >= ends_at:
            self._listening_ends_at = None
            gone = (
                f"task {task!r} is not offered at the broker: it is over, was given up, or has yet to begin"
            )
            self.runner.withdrawn(task, gone if task else "no task is offered at the broker")

    def warm_up(self) -> None:
        """Prepare the backend: there will be work soon."""
        self.runner.backend.warm_up()

    def close(self) -> None:
        """Save the backend's state to disk and end it. May be called again, and goes on from there."""
        self.runner.backend.save_state()
        self.runner.backend.close()

    def _hear_next(self, timeout: float) -> bool:
        """Handle one event; returns whether there was one. An invalid message is logged and ignored."""
        event = self.inbox.next(timeout)
        try:
            if event:
                self._handle(*event)
        except UnknownRoundBefore as error:
            self.runner.ask_whole_offer(error)
        except (MessageError, TopicError) as error:
            log.warning("ignored: %s", error)
        except (BlobError, WorkDied) as error:
            self.runner.warn(str(error))
        except OSError as error:
            self._warn_of_disk(error)
        return event is not None

    def _warn_of_disk(self, error: OSError) -> None:
        """Log that a disk is full or fails: what was to be written is written later. Raises other errors."""
        if not is_of_disk(error):
            raise error
        self.runner.warn(f"{error.filename or 'the disk'}: {disk_reason(error)}")

    def _handle(self, event: Event, came: float) -> None:
        match event:
            case Connected():
                when = f" (device-runtime {RELEASE})" if event.first else " again"
                log.info("connected to %s%s", self._messages.link.url, when)
                self._listening_ends_at = self._clock() + LISTEN_S
                self.runner.link_up()
            case Disconnected():
                pass  # the link itself says why, and connects again
            case Received():
                self._receive(event, came)

    def _receive(self, message: Received, came: float) -> None:
        if topics.is_offer(message.topic):
            task = message.topic.removeprefix(topics.offer(""))
            if task == self._messages.task or not self._messages.task:
                self._listening_ends_at = None
            if not message.payload:
                self.runner.withdrawn(
                    task, f"task {task!r} is not offered any more: it is over or was given up"
                )
                return
            own = message.topic == topics.offer(self._messages.task)
            if own or not is_compact_offer(
                message.payload
            ):  # another task's compact offers need its whole ones
                self._take(message, came, to_all=True)
            return
        address, payload = topics.parse(message.topic), message.payload
        match address.leaf:
            case "task" | "n":
                self._listening_ends_at = None
                self._take(message, came, to_all=address.leaf == "n")
            case "receipt":
                self.runner.take_receipt(self._trust.receipt(message.topic, payload))
            case "get":
                self.runner.answer(decode(payload, Get))
            case "block":
                self.runner.block(address.sha, address.index, payload)

    def _take(self, message: Received, came: float, to_all: bool) -> None:
        retained = message.retain and to_all
        offer = self._offer_stream.offer(message.topic, message.payload, message.retain, self._messages.task)
        round_ = opened(offer, came)
        if offer.version != self._aggregator_version and (advice := update_advice(offer.version)):
            log.warning("%s", advice)
        self._aggregator_version = offer.version
        self.runner.take(round_, to_all, retained, self._offer_stream.over)
        self._introduce(offer)

    def _introduce(self, offer: Offer) -> None:
        """Log what the device's task is for, once, if it says so."""
        text = f"{task_title(offer.task, offer.title)}: {task_text(offer)}".rstrip(": ")
        has_texts = offer.title or offer.about or offer.ask
        if has_texts and offer.task == self._messages.task and text != self._introduced:
            self._introduced = text
            log.info("%s", text)


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
        """End the current wait, or the next one. May be called in a signal handler."""
        self.put(WAKE)

    def next(self, timeout: float) -> tuple[Event, float] | None:
        """The next event and its time of arrival; None after `timeout` seconds without one."""
        try:
            event, came = self.get(timeout=timeout), self._moments.popleft()
        except queue.Empty:
            return None
        return None if event is WAKE else (event, came)
