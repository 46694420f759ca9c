"""The device's main loop: what comes over the link, what is fetched, what is trained, what is sent again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from broker import topics
from broker.errors import BlobError
from broker.link import Connected, Disconnected, Event, Received, Will
from broker.messages import (
    INLINE_LIMIT,
    Blob,
    Get,
    Message,
    MessageError,
    Offer,
    Receipt,
    State,
    decode,
    encode,
)
from broker.topics import TopicError
from broker.transfer import answer
from models import tensors
from models.errors import BundleError, TensorError
from strategies.directions import UnknownGenerator
from strategies.registry import KindError
from strategies.workload import ENVELOPE_BYTES

from . import reports
from .downloads import Downloads
from .errors import StaleBase, Stopped, UnusableBase
from .holdings import Holdings
from .inbox import Inbox
from .link_speed import LinkSpeed
from .offers import Open, opened
from .outbox import Outbox
from .sending import Sending
from .task import DeviceTask, Settings
from .work import Outcome

log = logging.getLogger(__name__)

LEFT_OUT = (UnusableBase, KindError, TensorError, BundleError, UnknownGenerator)
"""What is wrong with one round or its bundle, and does not concern the next."""
TICK_S = 0.1
"""Seconds between looks at what is due, while nothing comes in."""


class Wire(Protocol):
    """The part of `broker.link.Link` that is used here."""

    @property
    def url(self) -> object:
        """Whom it is connected to, for people."""

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. False when too much waits already."""


class Agent:
    """One device in one task. Make the link with this agent's `inbox`, `will()` and `subscriptions()`.

    `run` is the loop; `begin` and `step` are its parts, for whoever has a loop of their own.
    """

    def __init__(self, settings: Settings, boot: int, clock: Callable[[], float]) -> None:
        """`boot` is drawn anew in each life of the process, so that the will of an earlier one is known."""
        self.settings = settings
        self.inbox = Inbox(clock)
        self.done = False
        self._boot = boot
        self._clock = clock
        self._holdings = Holdings(settings.folder)
        self._outbox = Outbox(settings.folder / "outbox")
        self._sending = Sending(self._outbox, boot, lambda message: self._publish("contribution", message))
        self._downloads = Downloads(self._holdings.blobs, self._ask, self._arrived)
        self._link_speed = LinkSpeed()
        self._stop = threading.Event()
        self._task: DeviceTask | None = None
        self._bundle: Blob | None = None
        self._open: Open | None = None
        self._heard = ("", 0)
        self._answered = ("", 0)
        self._plan_said: tuple[str, tuple[str, ...]] | None = None
        self._warned = ""

    def will(self) -> Will:
        """What the broker says for us when we vanish, and what we say when we leave."""
        return Will(self._topic("state"), encode(State(boot=self._boot, online=False)))

    def subscriptions(self) -> tuple[str, ...]:
        return (topics.ROUND, topics.down(self.settings.name, "#"))

    @property
    def finished(self) -> bool:
        """Whether the task is done and everything is receipted."""
        return self.done and not len(self._outbox)

    @property
    def waiting(self) -> bool:
        """Whether something may fall due though nothing comes in: call `step` several times a second."""
        return self._open is not None or len(self._outbox) > 0

    def run(self, link: Wire, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until finished. Raises as `step` does."""
        self.begin(link, stop)
        while not stop.is_set() and not (until_done and self.finished):
            self.step(TICK_S)

    def begin(self, link: Wire, stop: threading.Event | None = None) -> None:
        """What it speaks through from now on; `stop`, where there is one, ends work that is being done."""
        self._link, self._stop = link, stop or self._stop

    def step(self, timeout: float = 0.0) -> bool:
        """Take one event and, when no other waits, do what is due. Returns whether there was an event.

        Waits up to `timeout` seconds for it. Raises DataError, ModelError, OutOfMemory for what this device
        cannot mend by waiting.
        """
        event = self.inbox.next(timeout)
        try:
            if event:
                self._handle(*event)
            if self.inbox.empty():  # work on the newest offer, not on one that is overtaken
                self._tick()
        except (MessageError, TopicError) as error:
            log.warning("ignored: %s", error)
        except BlobError as error:
            self._warn(str(error))
        except Stopped as error:
            log.info("%s", error)
        return event is not None

    def _topic(self, leaf: str) -> str:
        return topics.up(self.settings.name, leaf)

    # What comes in.

    def _handle(self, event: Event, came: float) -> None:
        if isinstance(event, Connected):
            log.info("connected to %s%s", self._link.url, "" if event.first else " again")
            self._link.publish(self._topic("state"), encode(State(boot=self._boot, online=True)), True)
            self._downloads.restart()
            self._sending.restart()
            self._hello()
        elif isinstance(event, Disconnected):
            log.warning("disconnected: %s", event.reason)
        else:
            self._receive(event, came)

    def _receive(self, message: Received, came: float) -> None:
        if message.topic == topics.ROUND:
            self._hear(opened(decode(message.payload, Offer), came), message.retain)
            return
        address = topics.parse(message.topic)
        if address.leaf == "task":
            self._take(opened(decode(message.payload, Offer), came))
        elif address.leaf == "receipt":
            self._link_speed.saw_up(*self._sending.settle(decode(message.payload, Receipt), self._clock()))
        elif address.leaf == "get":
            self._answer(decode(message.payload, Get))
        elif address.leaf == "block":
            self._downloads.received(address.sha, address.index, message.payload, self._clock())

    def _hear(self, heard: Open, retained: bool) -> None:
        """The offer to all. A retained one only says that there is a task: what remains is told after hello.

        One that was heard before comes from an aggregator that has restarted, and does not know who is here.
        """
        offer = heard.offer
        if retained and not offer.done:
            return
        again = offer.round == 0 or (offer.run, offer.round) == self._heard
        self._heard = (offer.run, offer.round)
        if again and self._task is not None and not offer.done:
            self._hello()
            self._sending.restart()
        self._downloads.expect(offer.base.checkpoint, self._clock())
        self._take(heard)

    def _take(self, taken: Open) -> None:
        """Note the round; the newest replaces any other. Round 0 is the lobby: get ready."""
        offer = taken.offer
        self.done = offer.done
        self._open = None if offer.done else taken
        if offer.done:
            log.info("task %s is done after round %d", offer.task, offer.round)
            self._sending.drop(offer.run)

    def _answer(self, get: Get) -> None:
        for index, data in answer(self._holdings.blobs, get):
            self._link.publish(self._topic(topics.block(get.blob.sha, index)), data)

    # What is due.

    def _tick(self) -> None:
        now = self._clock()
        self._sending.due(now)
        if self._open is not None:
            try:
                self._advance(self._open, now)
            except (BlobError, StaleBase) as error:
                self._warn(f"round {self._open.offer.round}: {error}")
            except LEFT_OUT as error:
                log.warning("round %d left out: %s", self._open.offer.round, error)
                self._open = None

    def _advance(self, current: Open, now: float) -> None:
        """Fetch what is missing; when nothing is, get ready (round 0) or work."""
        if not self._downloads.advance(self._holdings.missing(current.offer), now):
            self._open = None
        elif not self._holdings.missing(current.offer):
            self._work(current)

    def _work(self, current: Open) -> None:
        offer = current.offer
        task = self._task_of(offer)
        base = self._holdings.base(offer.base, task.manifest)
        self._holdings.prune(offer, [message.blob for message in self._outbox])
        if offer.round > 0 and not self._has_answered(offer):
            self._report(offer, task.perform(offer, base, current.closes, self._go_on))
        self._open = None

    def _task_of(self, offer: Offer) -> DeviceTask:
        """The task of the offer's bundle, made when it is not the one at hand. Raises as `run` does."""
        if self._task is None or self._bundle != offer.bundle:
            self._task = None  # its memory is free before the next one's is taken
            bundle = self._holdings.bundle(offer.bundle)
            self._task = DeviceTask(self.settings, bundle, self._clock, self._link_speed)
            self._bundle = offer.bundle
            self._hello()
        return self._task

    def _has_answered(self, offer: Offer) -> bool:
        """Whether this round was worked on already, in this life or an earlier one."""
        return (offer.run, offer.round) == self._answered or self._outbox.answered(offer.run, offer.round)

    def _go_on(self, done: float) -> None:
        """Called while training, `done` from 0 to 1. Raises Stopped when the device is to stop."""
        if self._stop.is_set():
            raise Stopped(f"stopped with {done:.0%} of an update done: it is not sent")

    def _report(self, offer: Offer, outcome: Outcome) -> None:
        """Tell what was decided, when that is new; keep and send what was trained."""
        plan = reports.plan_message(offer, outcome)
        said = (plan.kind, tuple(reason.split(" needs")[0] for reason in plan.reasons))
        if said != self._plan_said or not plan.kind:
            self._publish("plan", plan)
            self._plan_said = said
        if outcome.contribution is None:
            log.warning("round %d: sitting out: %s", offer.round, "; ".join(outcome.reasons))
            return
        self._answered = (offer.run, offer.round)
        body = tensors.encode(outcome.contribution.tensors)
        try:
            blob = self._holdings.blobs.put(body) if len(body) > INLINE_LIMIT else None
            message = reports.contribution_message(offer, outcome, b"" if blob else body)
            self._sending.keep(msgspec.structs.replace(message, blob=blob))
        except (BlobError, OSError) as error:
            log.warning("round %d left out: its contribution cannot be kept: %s", offer.round, error)
            return
        if self._task is not None:
            self._task.watcher.transfer(up=len(body) + ENVELOPE_BYTES)
        self._sending.due(self._clock())

    def _hello(self) -> None:
        """Who is here; the one who hears it may not have heard the last plan."""
        self._plan_said = None
        self._publish("hello", self._task.hello(self._boot) if self._task else reports.bare_hello(self._boot))

    def _warn(self, text: str) -> None:
        """Once, however often it comes in a row: what is tried at each tick may fail at each."""
        if text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def _publish(self, leaf: str, message: Message) -> None:
        self._link.publish(self._topic(leaf), encode(message))

    def _ask(self, get: Get) -> None:
        self._publish("get", get)

    def _arrived(self, blob: Blob, seconds: float) -> None:
        self._link_speed.saw_down(blob.size, seconds)
        if self._task is not None:
            self._task.watcher.transfer(down=blob.size)
