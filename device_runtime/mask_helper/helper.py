"""The mask helper at the broker: takes requests, fetches lists of seeds, answers with sums.

Requests wait in a line, and one sum is made at a time, a device's mask after the other: between two of them
messages are handled, so that blocks of earlier answers are sent on. Before it asks for a sum, an aggregator
asks whether it could be told (`SumCheck`): the answer names devices that it has to leave out. Nothing of a
request is kept over a restart but its set in the ledger: the aggregator asks again until it has an answer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import MAX_BYTES, Blobs
from device_runtime.broker.wire.link_events import WAKE, Connected, Disconnected, Event, Received, Will
from device_runtime.broker.wire.messages import INLINE_LIMIT, Get, MessageError, decode, encode
from device_runtime.broker.wire.sum_messages import (
    HelperState,
    SumAnswer,
    SumCheck,
    SumRequest,
    sum_question_in,
)
from device_runtime.broker.wire.topics import TopicError
from device_runtime.broker.wire.transfer import Pull, SendingLink, send_blocks

from .ledger import Ledger
from .summing import MaskSet, MaskSum, SumLimits, SumRefused, check_request, opened_set

log = logging.getLogger(__name__)

BLOBS = "blobs"
"""Folder in the helper's own: of lists of seeds that are fetched, and of answers."""
TICK_S = 0.2
"""Seconds between looks at what is due, while nothing comes in."""
MOST_WAITING = 64
"""Requests that wait; more are dropped, and asked for again."""
MOST_ANSWERS = 16
"""Answers that are kept, for requests that are sent again and for their blocks."""
MOST_ANSWER_BYTES = 1024**3
"""Bytes of the answers that are kept; the newest is kept in any case."""
MOST_SILENCES = 8
"""Times that a list of seeds is asked for in vain before the request is given up."""


@dataclass
class HelperFigures:
    """Figures of a helper's work since its start.

    devices: in the sums that were told. seconds: of making them. looked_s: when the loop last looked at the
    clock.
    """

    connected: bool = False
    sums: int = 0
    refusals: int = 0
    devices: int = 0
    seconds: float = 0.0
    waiting: int = 0
    looked_s: float = 0.0


@dataclass(frozen=True)
class HelperSettings:
    """The helper's name at the broker, its folder, and its owner's limits."""

    name: str
    folder: Path
    limits: SumLimits = field(default_factory=SumLimits)


@dataclass(frozen=True)
class HelperClocks:
    """`steady`: seconds that only go forward. `date`: seconds since 1970."""

    steady: Callable[[], float]
    date: Callable[[], float]


class MaskHelper:
    """One helper. Make the link with its `inbox`, `will()`, `greeting()` and `subscriptions`.

    `run` is the main loop; callers with a loop of their own use `begin` and `step`. figures: its work so far.
    """

    def __init__(self, settings: HelperSettings, boot: int, ledger: Ledger, clocks: HelperClocks) -> None:
        """`boot` is drawn anew each time the process starts, to recognise the last will of an earlier one."""
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.figures = HelperFigures(looked_s=clocks.steady())
        self.subscriptions = (topics.down(settings.name, "#"),)
        self._settings, self._boot, self._ledger, self._clocks = settings, boot, ledger, clocks
        most_bytes = max(MAX_BYTES, 8 * settings.limits.most_numbers)
        self._blobs = Blobs(settings.folder / BLOBS, most_bytes)
        self._link: SendingLink
        self._waiting: OrderedDict[bytes, SumRequest] = OrderedDict()
        self._checks: set[bytes] = set()
        self._checked: OrderedDict[bytes, MaskSet] = OrderedDict()  # by request
        self._answers: OrderedDict[bytes, tuple[SumRequest, SumAnswer]] = OrderedDict()
        self._pull: Pull | None = None
        self._adding: MaskSum | None = None
        self._began_s = 0.0

    def will(self) -> Will:
        """The last will: the broker publishes it when the connection is lost."""
        return self._presence(online=False)

    def greeting(self) -> Will:
        """The message that the link publishes at each connection."""
        return self._presence(online=True)

    def farewell(self) -> Will:
        """The message that this helper leaves."""
        return self._presence(online=False, leaving=True)

    def wake(self) -> None:
        """Ends the current wait, or the next one. May be called in a signal handler."""
        self.inbox.put(WAKE)

    def run(self, link: SendingLink, stop: threading.Event) -> None:
        """Answers requests until stopped. Raises LedgerError."""
        self.begin(link)
        while not stop.is_set():
            self.step(TICK_S)

    def look(self) -> None:
        """Notes that the loop is alive."""
        self.figures.looked_s = self._clocks.steady()

    def silence_s(self) -> float:
        """Seconds since the loop was alive last. May be called from another thread."""
        return self._clocks.steady() - self.figures.looked_s

    def begin(self, link: SendingLink) -> None:
        """Sets the link to send through."""
        self._link = link

    def step(self, timeout_s: float = 0.0) -> None:
        """Handles one event, then does a piece of work; without work waits for an event, `timeout_s` at most.

        Raises LedgerError.
        """
        self.look()
        try:
            busy = self._waiting and not self._pull
            event = self.inbox.get(timeout=0.0 if busy else timeout_s)
        except queue.Empty:
            event = WAKE
        try:
            if event is not WAKE:
                self._handle(event)
        except (MessageError, TopicError) as error:
            log.warning("ignored: %s", error)
        except BlobError as error:
            log.warning("%s", error)
        self._work()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Connected):
            log.info("connected to %s%s", self._link.url, "" if event.first else " again")
            self.figures.connected = True
            if self._pull:
                self._pull.restart()
        elif isinstance(event, Disconnected):
            self.figures.connected = False
        elif not event.retain:
            self._receive(event)

    def _receive(self, message: Received) -> None:
        address = topics.parse(message.topic)
        if address.leaf == "sum":
            question = sum_question_in(message.payload)
            if isinstance(question, SumCheck):
                self._take(question.request, check=True)
            else:
                self._take(question)
        elif address.leaf == "get":
            send_blocks(self._link, self._settings.name, self._blobs, decode(message.payload, Get))
        elif address.leaf == "block" and self._pull and self._pull.blob.sha == address.sha:
            self._pull.received(address.index, message.payload, self._clocks.steady())

    def _take(self, request: SumRequest, check: bool = False) -> None:
        """Queues a request, or answers one that was answered before; `check`: it is only to be checked."""
        earlier, answer = self._answers.get(request.id, (None, None))
        if answer and earlier == request and (answer.blob is None or self._blobs.has(answer.blob)):
            self._publish("sum", answer)
        elif request.id not in self._waiting and len(self._waiting) >= MOST_WAITING:
            log.warning("request dropped: %d wait already", MOST_WAITING)
        else:
            self._waiting.setdefault(request.id, request)
            (self._checks.add if check else self._checks.discard)(request.id)
        self.figures.waiting = len(self._waiting)

    def _work(self) -> None:
        """Adds one device's mask to the sum that is being made, or goes on with the next request."""
        if not self._waiting:
            return
        request = next(iter(self._waiting.values()))
        try:
            if self._adding is None:
                self._prepare(request)
            elif self._adding.advance():
                self._tell(request, self._adding)
        except SumRefused as error:
            log.warning("sum for %s refused: %s", _named(request), error)
            self.figures.refusals += 1
            answer = SumAnswer(
                id=request.id,
                refusal=str(error),
                invalid=error.invalid,
                used=error.used,
                checked=request.id in self._checks,
            )
            self._publish("sum", answer)
            self._forget(request)
        except BlobError as error:
            self._give_up(request, str(error))

    def _prepare(self, request: SumRequest) -> None:
        """Begins the sum of a request when its seeds are here, or only checks it.

        Raises SumRefused, BlobError, LedgerError.
        """
        limits = self._settings.limits
        check_request(request, limits)
        content = self._seeds(request)
        if content is not None:
            self._began_s = self._clocks.steady()
            checked = self._checked.pop(request.id, None)
            same = checked is not None and checked.request == request
            mask_set = (
                checked if checked and same else opened_set(self._ledger.secret, request, content, limits)
            )
            if request.id in self._checks:
                self._ledger.check(mask_set)
                self._checked[request.id] = mask_set
                while len(self._checked) > MOST_ANSWERS:
                    self._checked.popitem(last=False)
                self._publish("sum", SumAnswer(id=request.id, checked=True))
                self._forget(request)
                return
            noise = self._ledger.record(mask_set, int(self._clocks.date()))
            self._adding = MaskSum(mask_set, noise)

    def _seeds(self, request: SumRequest) -> bytes | None:
        """The encoded list of seeds; None while it is fetched, and where it cannot be. Raises BlobError."""
        blob, now = request.blob, self._clocks.steady()
        if blob is None:
            return request.body
        if self._blobs.has(blob):
            return self._blobs.get(blob)
        if self._pull is None or self._pull.blob != blob:
            self._pull = Pull(blob, self._blobs.partial(blob))
        if self._pull.done:
            self._pull.finish()
            self._pull = None
            return self._blobs.get(blob)
        if self._pull.refused or self._pull.unanswered > MOST_SILENCES:
            why = "its sender does not have it" if self._pull.refused else "its blocks do not come"
            self._give_up(request, f"list of seeds {blob.hex[:12]}: {why}")
        elif blocks := self._pull.next_blocks(now):
            self._publish("get", Get(blob=blob, blocks=blocks))
        return None

    def _tell(self, request: SumRequest, adding: MaskSum) -> None:
        """Answers with a finished sum. Raises BlobError."""
        content = adding.vector.to_bytes()
        if len(content) <= INLINE_LIMIT:
            answer = SumAnswer(id=request.id, body=content)
        else:
            answer = SumAnswer(id=request.id, blob=self._blobs.put(content))
        took_s, devices = self._clocks.steady() - self._began_s, len(adding.set.devices)
        log.info("sum of %d devices for %s: %.1f s", devices, _named(request), took_s)
        self.figures.sums += 1
        self.figures.devices += devices
        self.figures.seconds += took_s
        self._publish("sum", answer)
        self._answers[request.id] = request, answer
        self._forget(request)

    def _give_up(self, request: SumRequest, why: str) -> None:
        """Drops a request without an answer, for a reason that may pass: it is asked again."""
        log.warning("sum for %s not made: %s; the aggregator asks again", _named(request), why)
        self._forget(request)

    def _forget(self, request: SumRequest) -> None:
        del self._waiting[request.id]
        self._checks.discard(request.id)
        self._pull = self._adding = None
        self.figures.waiting = len(self._waiting)
        self._prune()

    def _prune(self) -> None:
        """Keeps the newest answers, and drops lists of seeds that nobody waits for."""
        blobs = [answer.blob for _, answer in self._answers.values() if answer.blob]
        while len(self._answers) > MOST_ANSWERS or (
            sum(blob.size for blob in blobs) > MOST_ANSWER_BYTES and len(self._answers) > 1
        ):
            self._answers.popitem(last=False)
            blobs = [answer.blob for _, answer in self._answers.values() if answer.blob]
        awaited = (request.blob for request in self._waiting.values() if request.blob)
        try:
            self._blobs.prune([*blobs, *awaited])
        except BlobError as error:
            log.warning("%s", error)

    def _presence(self, online: bool, leaving: bool = False) -> Will:
        state = HelperState(boot=self._boot, online=online, leaving=leaving, checks=True)
        return Will(self._topic("state"), encode(state))

    def _publish(self, leaf: str, message: Get | SumAnswer) -> None:
        self._link.publish(self._topic(leaf), encode(message))

    def _topic(self, leaf: str) -> str:
        return topics.up(self._settings.name, leaf)


def _named(request: SumRequest) -> str:
    return f"{request.kind} in round {request.round} of task {request.task}"
