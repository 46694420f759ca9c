"""The device's main loop: what comes over the link, what is fetched, what is trained, what is sent again."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from broker import topics
from broker.errors import BlobError
from broker.link import Connected, Disconnected, Event, Link, Received, Will
from broker.messages import (
    INLINE_LIMIT,
    Blob,
    Contribution,
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
from models.errors import TensorError
from strategies.registry import KindError
from strategies.workload import ENVELOPE_BYTES

from . import reports
from .downloads import Downloads
from .errors import StaleBase
from .holdings import Holdings
from .outbox import Outbox
from .task import DeviceTask, Settings
from .work import Outcome

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""Seconds after which a contribution without receipt is sent again."""
TICK_S = 0.1
"""Seconds between looks at what is due, while nothing comes in."""


@dataclass(frozen=True)
class Open:
    """A round that is open, and when it closes on the device's own clock, in seconds."""

    offer: Offer
    closes: float


class Agent:
    """One device in one task. Make the link with this agent's `inbox`, `will()` and `subscriptions()`."""

    def __init__(self, settings: Settings, boot: int, clock: Callable[[], float]) -> None:
        """`boot` is drawn anew in each life of the process, so that the will of an earlier one is known."""
        self.settings = settings
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.done = False
        self._boot = boot
        self._clock = clock
        self._holdings = Holdings(settings.folder)
        self._outbox = Outbox(settings.folder / "outbox")
        self._downloads = Downloads(self._holdings.blobs, self._ask, self._arrived)
        self._task: DeviceTask | None = None
        self._open: Open | None = None
        self._heard = ("", 0)
        self._answered = ("", 0)
        self._plan_said: tuple[str, tuple[str, ...]] | None = None
        self._sat_out = False
        self._sent_at: dict[int, float] = {}

    def will(self) -> Will:
        """What the broker says for us when we vanish, and what we say when we leave."""
        return Will(self._topic("state"), encode(State(boot=self._boot, online=False)))

    def subscriptions(self) -> tuple[str, ...]:
        return (topics.ROUND, topics.down(self.settings.name, "#"))

    def run(self, link: Link, stop: threading.Event, until_done: bool = False) -> None:
        """Work until stopped or, with `until_done`, until the task is done and everything is receipted.

        Raises DataError, ModelError, OutOfMemory for what this device cannot mend by waiting.
        """
        self._link = link
        while not stop.is_set() and not (until_done and self.done and not len(self._outbox)):
            try:
                self._handle(self.inbox.get(timeout=TICK_S))
            except queue.Empty:
                self._tick()
            except (MessageError, TopicError) as error:
                log.warning("ignored: %s", error)

    def _topic(self, leaf: str) -> str:
        return topics.up(self.settings.name, leaf)

    # What comes in.

    def _handle(self, event: Event) -> None:
        if isinstance(event, Connected):
            log.info("connected to %s%s", self._link.url, "" if event.first else " again")
            self._link.publish(self._topic("state"), encode(State(boot=self._boot, online=True)), True)
            self._downloads.restart()
            self._sent_at.clear()
            self._hello()
        elif isinstance(event, Disconnected):
            log.warning("disconnected: %s", event.reason)
        else:
            self._receive(event)

    def _receive(self, message: Received) -> None:
        if message.topic == topics.ROUND:
            self._hear(decode(message.payload, Offer), message.retain)
            return
        address = topics.parse(message.topic)
        if address.leaf == "task":
            self._take(decode(message.payload, Offer))
        elif address.leaf == "receipt":
            self._settle(decode(message.payload, Receipt))
        elif address.leaf == "get":
            self._answer(decode(message.payload, Get))
        elif address.leaf == "block":
            self._downloads.received(address.sha, address.index, message.payload, self._clock())
            self._tick()

    def _hear(self, offer: Offer, retained: bool) -> None:
        """The offer to all. A retained one only says that there is a task: what remains is told after hello.

        One that was heard before comes from an aggregator that has restarted, and does not know who is here.
        """
        if retained and not offer.done:
            return
        again = offer.round == 0 or (offer.run, offer.round) == self._heard
        self._heard = (offer.run, offer.round)
        if again and self._task is not None and not offer.done:
            self._hello()
        self._downloads.expect(offer.base.checkpoint, self._clock())
        self._take(offer)

    def _take(self, offer: Offer) -> None:
        """Note the round; the newest replaces any other. Round 0 is the lobby: get ready."""
        self.done = offer.done
        self._open = None if offer.done else Open(offer, self._clock() + offer.remaining_s)
        if offer.done:
            log.info("task %s is done after round %d", offer.task, offer.round)
        self._tick()

    def _answer(self, get: Get) -> None:
        for index, data in answer(self._holdings.blobs, get):
            self._link.publish(self._topic(topics.block(get.blob.sha, index)), data)

    def _settle(self, receipt: Receipt) -> None:
        message = self._outbox.settle(receipt)
        if message is None:
            return
        self._sent_at.pop(receipt.seq, None)
        level = logging.INFO if receipt.status in ("accepted", "duplicate") else logging.WARNING
        log.log(level, "round %d: %s %s %s", receipt.round, message.kind, receipt.status, receipt.reason)

    # What is due.

    def _tick(self) -> None:
        now = self._clock()
        for message in self._outbox:
            if now - self._sent_at.get(message.seq, -RESEND_S) >= RESEND_S:
                self._send(message)
        if self._open is not None:
            try:
                self._advance(self._open, now)
            except (BlobError, StaleBase) as error:
                log.warning("round %d: %s", self._open.offer.round, error)
            except (KindError, TensorError) as error:
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
        if self._task is None:
            self._task = DeviceTask(self.settings, self._holdings.bundle(offer.bundle), self._clock)
            self._hello()
        base = self._holdings.base(offer.base, self._task.manifest)
        self._holdings.prune(offer, [message.blob for message in self._outbox])
        if offer.round > 0 and not self._has_answered(offer):
            outcome = self._task.perform(offer, base, current.closes)
            self._report(offer, outcome)
            self._answered = (offer.run, offer.round)
        self._open = None

    def _has_answered(self, offer: Offer) -> bool:
        """Whether this round was worked on already, in this life or in one whose contribution still waits."""
        this = (offer.run, offer.round)
        waiting = any((message.run, message.round) == this for message in self._outbox)
        return waiting or (this == self._answered and not self._sat_out)

    def _report(self, offer: Offer, outcome: Outcome) -> None:
        """Tell what was decided, when that is new; keep and send what was trained."""
        plan = reports.plan_message(offer, outcome)
        self._sat_out = not plan.kind
        said = (plan.kind, tuple(reason.split(" needs")[0] for reason in plan.reasons))
        if said != self._plan_said or not plan.kind:
            self._publish("plan", plan)
            self._plan_said = said
        if outcome.contribution is None:
            log.warning("round %d: sitting out: %s", offer.round, "; ".join(outcome.reasons))
            return
        body = tensors.encode(outcome.contribution.tensors)
        blob = self._holdings.blobs.put(body) if len(body) > INLINE_LIMIT else None
        message = reports.contribution_message(offer, outcome, b"" if blob else body)
        message = msgspec.structs.replace(message, boot=self._boot, seq=self._outbox.next_seq, blob=blob)
        self._outbox.add(message)
        if self._task is not None:
            self._task.watcher.transfer(up=len(body) + ENVELOPE_BYTES)
        self._send(message)

    def _send(self, message: Contribution) -> None:
        """Send, again if need be; one of an earlier life is sent in this one's name."""
        if message.boot != self._boot:
            message = msgspec.structs.replace(message, boot=self._boot)
            self._outbox.add(message)
        self._publish("contribution", message)
        self._sent_at[message.seq] = self._clock()

    def _hello(self) -> None:
        self._publish("hello", self._task.hello(self._boot) if self._task else reports.bare_hello(self._boot))

    def _publish(self, leaf: str, message: Message) -> None:
        self._link.publish(self._topic(leaf), encode(message))

    def _ask(self, get: Get) -> None:
        self._publish("get", get)

    def _arrived(self, blob: Blob) -> None:
        if self._task is not None:
            self._task.watcher.transfer(down=blob.size)
