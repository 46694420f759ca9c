"""A device's work in a round: fetch what it needs, train, and send the update until it is receipted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec

from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire.messages import Blob, Get, Offer, Plan, Receipt
from device_runtime.client.energy import Meter, resting
from device_runtime.client.errors import RoundOver, WorkStopped
from device_runtime.models.engines.freed_memory import collect_and_trim

from .backend.base import (
    BackendListener,
    Bundles,
    MakeBackend,
    RoundPreview,
    WorkBackend,
    WorkResult,
    bundles_of,
)
from .connection.hello_retry import HelloRetry
from .connection.offers import EXTENDED_S, OpenRound
from .connection.presence import DeviceMessages, PauseNotice
from .delivery import reports
from .delivery.downloads import Downloads, prune, store
from .delivery.outbox import Outbox
from .delivery.sending import ContributionSender
from .errors import RoundLeftOut, StaleBase, WorkDied
from .policy.work_gate import LOOK_S, WorkGate
from .selection.link_speed import LinkSpeed
from .settings import Settings

log = logging.getLogger(__name__)

FINAL_S = 60.0
"""Seconds in which the final model of a task is fetched, if the owner wants one."""


def in_this_process(settings: Settings, gate: WorkGate, link: LinkSpeed) -> WorkBackend:
    """Makes the backend that works in this process."""
    from .backend.in_process import InProcess  # imports numpy and the engines

    return InProcess(settings, gate, link)


class DeviceRounds:
    """The open round (`open`), the backend that works on it (`backend`), and what was sent."""

    def __init__(
        self,
        settings: Settings,
        gate: WorkGate,
        messages: DeviceMessages,
        make: MakeBackend = in_this_process,
    ) -> None:
        self.open: OpenRound | None = None
        self.outbox = Outbox(settings.folder / "outbox")
        self.sending = ContributionSender(self.outbox, messages)
        self.hello_retry = HelloRetry(lambda: messages.unacknowledged("hello"))
        self.pause_point: Callable[[], None] = lambda: None
        self.blobs = store(settings.folder, settings.disk_bytes)
        self._gate, self._messages = gate, messages
        self._clock, self._pause_notice = gate.clock, PauseNotice(gate, messages)
        self._downloads = Downloads(self.blobs, messages.ask, self._arrived)
        self._link_speed = LinkSpeed()
        self.backend = make(settings, gate, self._link_speed)
        self._ready_for: Bundles = ()
        self._seen: tuple[OpenRound, RoundPreview] | None = None
        self._pruned: Offer | None = None
        self._worked_on: OpenRound | None = None
        self._fetched_for: Offer | None = None
        self._newest: OpenRound | None = None
        self._final: tuple[OpenRound, float] | None = None
        self._finished = ""
        self._keeps, self._emulation = settings.personal.keep, settings.emulation
        self._answered = ("", 0)
        self._samples_in_hello = 0
        self._warned = ""

    @property
    def ready(self) -> bool:
        """Whether the task is known here: its bundles have come, and the samples are read."""
        return bool(self.backend.bundles)

    def due(self, progress: Callable[[float], None]) -> None:
        """Do what is due now, training included; `progress` is called while training, from 0 to 1.

        Raises DataError, ModelError, OutOfMemory for errors that waiting does not solve, BlobError when the
        disk fails, and what `progress` raises.
        """
        now = self._clock()
        if not self._gate.open():
            self.stand_by()
            return
        self.resume()
        self.sending.due(now)
        if self.hello_retry.due(now):
            self.hello()
        if self.open is not None:
            self._final = None
            try:
                self._advance(self.open, now, progress)
            except (BlobError, StaleBase, WorkDied) as error:
                self._seen = None
                self.warn(f"round {self.open.offer.round}: {error}")
                if isinstance(error, NoRoom):
                    self._prune(self.open.offer)
                if isinstance(error, StaleBase) and not self.open.base.whole:
                    self._end_round()
                    self.hello()  # to get the whole offer, which names all blobs of the base
            except RoundLeftOut as error:
                log.warning("round %d left out: %s", self.open.offer.round, error)
                self._end_round()
        elif self._final is not None:
            self._fetch_final(*self._final, now)
        elif self._worked_on is not None and not len(self.outbox):
            self._after(self._worked_on)
        self.backend.end_if_idle()

    def take(self, newest: OpenRound | None) -> None:
        """Take the newest round, which replaces any other; None: the task is done.

        A round whose base is being fetched goes on if rounds do not wait for it, that is if the newest opened
        well before the deadline of this one: otherwise a slow link would fetch base after base in vain. The
        newest is next.
        """
        if newest is not None and self._goes_on(newest.offer):
            self._newest = newest
        else:
            self.open, self._newest = newest, None

    def _goes_on(self, newest: Offer) -> bool:
        """Whether the current round's base is being fetched, with time left before its deadline."""
        if self.open is None or self.open.offer is not self._fetched_for:
            return False
        mine, closes = self.open.offer, self.open.closes
        return mine.run == newest.run and mine.round < newest.round and self._clock() + EXTENDED_S < closes

    def _end_round(self) -> None:
        """End the current round; the newest that was heard meanwhile, if any, is next."""
        self.open, self._newest = self._newest, None

    @property
    def finishing(self) -> bool:
        """Whether the final model of a task is being fetched."""
        return self._final is not None

    def finish(self, over: OpenRound) -> None:
        """The task is done: fetch its final model, if the owner wants one and the task is known here.

        Where the offer names its blobs, ask for them at once: the aggregator does not stay for long, and the
        worker process may have to be started first.
        """
        offer, now = over.offer, self._clock()
        if self._keeps and self._finished != offer.run and self.backend.bundles == bundles_of(offer):
            self._final = replace(over, member=""), now + FINAL_S
            if not offer.base.at:
                self._downloads.advance([x for x in offer.base.checkpoint if not self.blobs.has(x)], now)
        self._finished = offer.run

    def stand_by(self) -> None:
        """While no work is allowed: say so, keep the connection, and send what waits.

        Nothing is sent while a network rule says no.
        """
        now, offer = self._clock(), self.open.offer if self.open else None
        self._pause_notice.pause(offer if offer and not self._has_answered(offer) else None)
        if not self._gate.verdict.quiet:
            self.sending.due(now)
        if self.hello_retry.due(now):
            self.hello()
        self.backend.end_if_idle()

    def resume(self) -> None:
        """Work is allowed again; a round that has closed in the meantime is not begun."""
        if not self._pause_notice.resume():
            return
        if self.open is not None and self.open.closes <= self._clock():
            self._end_round()
        self.hello()

    def hello(self) -> None:
        """Say hello with the number of samples: an aggregator refuses an update that claims more."""
        boot = self._messages.boot
        self.hello_retry.sent(self._clock())
        hello = self.backend.hello(boot) if self.ready else reports.bare_hello(boot)
        if self.ready:
            waiting = [sent.num_examples for sent in self.outbox if sent.task == self._messages.task]
            hello = msgspec.structs.replace(hello, num_examples=max([hello.num_examples, *waiting]))
        self._samples_in_hello = hello.num_examples
        self._messages.hello(hello)
        self._pause_notice.hello_sent()

    def restart(self) -> None:
        """The link was down: begin downloads and sending anew."""
        self._downloads.restart()
        self.sending.restart()

    def expect(self, blob: Blob) -> None:
        """The first blocks of this blob come unasked."""
        self._downloads.expect(blob, self._clock())

    def block(self, sha: bytes, index: int, data: bytes) -> None:
        """Take a block that came."""
        self._downloads.received(sha, index, data, self._clock())

    def answer(self, get: Get) -> None:
        """Send the blocks asked for; not while a network rule says no: they must be asked for again."""
        if not self._gate.verdict.quiet:
            self._messages.blocks(self.blobs, get)

    def settle(self, receipt: Receipt) -> None:
        """Take the receipt of a contribution.

        Raises BlobError, WorkDied: the contribution stays in the outbox, and its receipt is asked for again.
        """
        if message := self.outbox.answering(receipt):
            self.backend.receipt_received(message, receipt.status in ("accepted", "duplicate"))
        self._link_speed.saw_up(*self.sending.settle(receipt, self._clock()))

    def warn(self, text: str) -> None:
        """Log a warning once in a row: what is tried at each tick may fail at each."""
        if text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def _advance(self, current: OpenRound, now: float, progress: Callable[[float], None]) -> None:
        """Fetch what is missing; when nothing is, get ready (round 0) or work."""
        preview = self._preview(current)
        self._fetched_for = current.offer if preview.missing and current.offer.round > 0 else None
        if not self._downloads.advance(preview.missing, now):
            self._end_round()
        elif not preview.missing and self.open is not None:
            self._work(self.open, progress)

    def _preview(self, current: OpenRound) -> RoundPreview:
        """What the round still needs; asked again when a blob has come."""
        if self._seen is not None and self._seen[0] is current:
            return self._seen[1]
        try:
            preview = self.backend.preview(current)
        finally:
            if self.ready and self.backend.bundles != self._ready_for:
                self._ready_for = self.backend.bundles
                self._worked_on = None
                self.hello()
        current = self.open = replace(current, member=preview.member)
        self._seen = (current, preview)
        return preview

    def _work(self, current: OpenRound, progress: Callable[[float], None]) -> None:
        offer = current.offer
        self.backend.prepare(current)
        if self._pruned is not offer:
            self._prune(offer)
            self._pruned = offer
        if offer.round > 0 and not self._has_answered(offer):
            listener = BackendListener(
                progress,
                self.pause_point,
                self._gate.lost,
                self._decided,
                self._made,
                self._has_answered,
                self._waiting,
            )
            if not self.backend.work(current, listener):
                return
            self._worked_on = current
        self._end_round()

    def _prune(self, offer: Offer) -> None:
        """Drop what neither this offer nor the outbox needs."""
        prune(self.blobs, offer, [message.blob for message in self.outbox])

    def _after(self, current: OpenRound) -> None:
        """Do the work after a round, once: it is not repeated if the worker process dies at it."""
        self._worked_on = None
        try:
            self.backend.evaluate_personal_model(current, self.pause_point)
        except WorkDied as error:
            self.warn(f"after round {current.offer.round}: {error}")

    def _has_answered(self, offer: Offer) -> bool:
        """Whether this round was worked on already, in this life or an earlier one."""
        return (offer.run, offer.round) == self._answered or self.outbox.answered(offer.run, offer.round)

    def _decided(self, offer: Offer, plan: Plan, room_bytes: float) -> None:
        """Send the plan now, so that it travels while the device computes."""
        self._pause_notice.plan(plan, room_bytes)

    def _made(self, made: WorkResult) -> None:
        """Keep and send the result of a round's work. After that the round is not worked on again."""
        if made.message is None and not made.trouble:
            log.warning("round %d: sitting out: %s", made.round, "; ".join(made.reasons))
            return
        self._answered = (made.run, made.round)
        if made.message is None:
            log.warning("round %d left out: %s", made.round, made.trouble)
            return
        try:
            self.sending.keep(made.message)
        except (BlobError, OSError) as error:
            log.warning("round %d left out: its contribution cannot be kept: %s", made.round, error)
            return
        self._transferred(up=made.bytes_up)
        if made.message.num_examples > self._samples_in_hello:  # samples have come since the hello
            self.hello()
        self.sending.due(self._clock())

    def _fetch_final(self, over: OpenRound, until: float, now: float) -> None:
        """Fetch and keep the final model. Once it is kept or cannot be had, the task needs no more work."""
        try:
            preview = self.backend.preview(over)
            if not preview.missing:
                self.backend.keep_final_model(over, self.pause_point)
            elif now < until and self._downloads.advance(preview.missing, now):
                return
            else:
                log.warning("the model of task %r has not come in time", over.offer.task)
        except (BlobError, StaleBase, RoundLeftOut, WorkDied) as error:
            self.warn(f"the model of task {over.offer.task!r} is not kept: {error}")
            if now < until and not isinstance(error, RoundLeftOut):
                return
        self._final = self._worked_on = None

    def _waiting(self, run: str) -> set[int]:
        """Rounds whose updates have no receipt yet."""
        return {message.round for message in self.outbox if message.run == run}

    def _arrived(self, blob: Blob, seconds: float) -> None:
        self._link_speed.saw_down(blob.size, seconds)
        self._seen = None
        self._transferred(down=blob.size)

    def _transferred(self, up: int = 0, down: int = 0) -> None:
        """An emulated link takes its time, once the task is known."""
        if self._emulation is not None and self.ready:
            self._emulation.transfer(up, down)


class Interruption:
    """Pauses work in progress while the work gate is closed, and ends it at a stop request.

    `hear` handles a message, waiting for it for so many seconds. `meter` does not count the energy used
    during a pause.
    """

    def __init__(
        self, gate: WorkGate, rounds: DeviceRounds, hear: Callable[[float], object], meter: Meter | None
    ) -> None:
        self.stop = threading.Event()
        self._gate, self._rounds, self._hear, self._meter = gate, rounds, hear, meter
        self._share = 0.0

    def progress(self, done: float) -> None:
        """Note the progress, from 0 to 1. Raises as `pause_point` does."""
        self._share = done
        self.pause_point()

    def pause_point(self) -> None:
        """Called between steps of the work: waits while the gate is closed, handling messages and sending.

        Raises WorkStopped when the device is to stop, or when its round is over or replaced by another;
        RoundOver when the round closed during the pause; OutOfMemory when memory runs out.
        """
        self._check_stop()
        current = self._rounds.open
        if self._gate.open() or current is None:
            return
        collect_and_trim()
        with self._gate.held(), resting(self._meter):
            while not self._gate.open():
                self._rounds.stand_by()
                self._hear(LOOK_S)
                self._check_stop()
                self._still_wanted(current)
        self._rounds.resume()

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise WorkStopped(f"stopped with {self._share:.0%} of an update done: it is not sent")

    def _still_wanted(self, current: OpenRound) -> None:
        """Check that the paused work may go on later. Raises as `pause_point` does."""
        newest, mine = self._rounds.open, current.offer
        if newest is None or (newest.offer.run, newest.offer.round) != (mine.run, mine.round):
            raise WorkStopped(f"round {mine.round} given up, {self._share:.0%} done: {self._gate.reason}")
        if self._gate.clock() >= newest.closes:
            raise RoundOver(f"{self._share:.0%} done when the round closed; {self._gate.reason}")
        self._rounds.backend.check_paused_work()
