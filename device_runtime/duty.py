"""What a device has to do: fetch what an open round needs, work on it, answer, send until it is receipted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from broker.errors import BlobError
from broker.messages import INLINE_LIMIT, Blob, Get, Offer, Receipt
from models.errors import BundleError, TensorError
from strategies.directions import UnknownGenerator
from strategies.registry import KindError
from strategies.workload import ENVELOPE_BYTES

from . import reports
from .downloads import Downloads
from .errors import StaleBase, UnusableBase
from .greeting import Greeting
from .holdings import Holdings
from .hours import Hours
from .leftovers import Leftovers, Of
from .link_speed import LinkSpeed
from .offers import Open
from .one_task import MakeTask, OneTask
from .outbox import Outbox
from .sending import Sending
from .settings import Settings
from .speaking import Voice
from .standing import Standing
from .task import DeviceTask, Given
from .watchdog import guarded
from .work import Decision, Listener, Outcome

log = logging.getLogger(__name__)

LEFT_OUT = (UnusableBase, KindError, TensorError, BundleError, UnknownGenerator)
"""What is wrong with one round or its bundle, and does not concern the next."""


class Duty:
    """The round in hand (`open`), the task it is of (`task`, once its bundle is here), what was sent."""

    def __init__(self, settings: Settings, hours: Hours, voice: Voice, make: MakeTask = DeviceTask) -> None:
        self.open: Open | None = None
        self.task: OneTask | None = None
        self.outbox = Outbox(settings.folder / "outbox")
        self.sending = Sending(self.outbox, voice)
        self.greeting = Greeting(lambda: voice.under_way("hello"))
        self.between: Callable[[], None] = lambda: None
        self._settings, self._hours, self._voice, self._make = settings, hours, voice, make
        self._clock, self._standing = hours.clock, Standing(hours, voice)
        self._holdings = Holdings(settings.folder)
        self._leftovers = Leftovers(settings.folder / "left")
        self._downloads = Downloads(self._holdings.blobs, voice.ask, self._arrived)
        self._link_speed = LinkSpeed()
        self._bundles: dict[str, Blob] = {}
        self._given: Given | None = None
        self._worked_on: Given | None = None
        self._answered = ("", 0)
        self._warned = ""

    def due(self, progress: Callable[[float], None]) -> None:
        """Do what is to be done now, training included; `progress` is told of that as DeviceTask.perform's.

        Raises DataError, ModelError, OutOfMemory for what this device cannot mend by waiting, BlobError
        for a disk that fails, and what `progress` raises.
        """
        now = self._clock()
        if not self._hours.open():
            self.stand_by()
            return
        self.resume()
        self.sending.due(now)
        if self.greeting.due(now):
            self.hello()
        if self.open is not None:
            try:
                self._advance(self.open, now, progress)
            except (BlobError, StaleBase) as error:
                self.warn(f"round {self.open.offer.round}: {error}")
            except LEFT_OUT as error:
                log.warning("round %d left out: %s", self.open.offer.round, error)
                self.open = None
        elif self.task is not None and self._worked_on is not None and not len(self.outbox):
            given, self._worked_on = self._worked_on, None
            self.task.after(given, self.between)

    def stand_by(self) -> None:
        """While no work may be done: say so, be there, send what waits unless the link is to be spared."""
        now, offer = self._clock(), self.open.offer if self.open else None
        self._standing.pause(offer if offer and not self._has_answered(offer) else None)
        if not self._hours.verdict.quiet:
            self.sending.due(now)
        if self.greeting.due(now):
            self.hello()

    def resume(self) -> None:
        """Work may be done again; a round that has closed in the meantime is not begun."""
        if not self._standing.resume():
            return
        if self.open is not None and self.open.closes <= self._clock():
            self.open = None
        self.hello()

    def hello(self) -> None:
        """Who is here, and with what."""
        boot = self._voice.boot
        self.greeting.said(self._clock())
        self._voice.hello(self.task.hello(boot) if self.task else reports.bare_hello(boot))
        self._standing.greeted()

    def restart(self) -> None:
        """The link was down."""
        self._downloads.restart()
        self.sending.restart()

    def expect(self, blob: Blob) -> None:
        """The first blocks of this come unasked."""
        self._downloads.expect(blob, self._clock())

    def block(self, sha: bytes, index: int, data: bytes) -> None:
        """A block came."""
        self._downloads.received(sha, index, data, self._clock())

    def answer(self, get: Get) -> None:
        """Blocks are asked for; where the link is to be spared they have to be asked for again."""
        if not self._hours.verdict.quiet:
            self._voice.blocks(self._holdings.blobs, get)

    def settle(self, receipt: Receipt) -> None:
        """A contribution has its receipt. Raises BlobError: it is then asked for again."""
        if message := self.outbox.answering(receipt):
            counts = receipt.status in ("accepted", "duplicate")
            self._leftovers.settle(message.run, message.kind, message.round, counts)
        self._link_speed.saw_up(*self.sending.settle(receipt, self._clock()))

    def warn(self, text: str) -> None:
        """Once, however often it comes in a row: what is tried at each tick may fail at each."""
        if text != self._warned:
            log.warning("%s", text)
        self._warned = text

    def _advance(self, current: Open, now: float, progress: Callable[[float], None]) -> None:
        """Fetch what is missing; when nothing is, get ready (round 0) or work.

        Of a family, only the base of the model that the device would train as things stand.
        """
        missing = self._holdings.missing_bundles(current.offer)
        if not missing:
            if current.member is None:
                current = self.open = self._aimed(current, now)
            missing = self._holdings.missing(current.base, current.offer.aside)
        if not self._downloads.advance(missing, now):
            self.open = None
        elif not missing:
            self._work(current, progress)

    def _aimed(self, current: Open, now: float) -> Open:
        """With the member decided, and of its base what the bundle has. Raises as `due` does."""
        task = self._task_of(current.offer)
        aimed = replace(current, member=task.member(current.offer, current.closes - now))
        self._holdings.take_parts(task.bundle(aimed.member or ""), aimed.base)
        return aimed

    def _work(self, current: Open, progress: Callable[[float], None]) -> None:
        offer = current.offer
        task, given = self._task_of(offer), self._given_by(current)
        if offer.round > 0 and not self._has_answered(offer):
            listener = Listener(progress, lambda decision: self._decided(offer, decision), self._hours.lost)
            if before := task.unsent(offer):
                self._report(task, *before)
            with guarded(task.watcher, self.between):
                outcome = task.perform(given, current.closes, listener)
            if outcome is None:
                return
            self._report(task, given, outcome)
            self._worked_on = given
        self.open = self._given = None

    def _given_by(self, current: Open) -> Given:
        """What a round gives; the same again while its work goes on. Raises as `due` does."""
        offer, member = current.offer, current.member or ""
        if self._given is None or self._given.offer is not offer:
            weights = self._holdings.base(current.base, self._task_of(offer).bundle(member).manifest)
            self._given = Given(offer, member, weights, self._holdings.aside(offer.aside))
            self._holdings.prune(offer, [message.blob for message in self.outbox])
        return self._given

    def _task_of(self, offer: Offer) -> OneTask:
        """The task of the offer's bundles, made when it is not the one at hand. Raises as `due` does."""
        blobs = {"": offer.bundle, **{member.name: member.bundle for member in offer.family}}
        if self.task is None or self._bundles != blobs:
            self.task = self._worked_on = None  # its memory is free before the next one's is taken
            models = {member: self._holdings.bundle(blob) for member, blob in blobs.items()}
            self.task = self._make(self._settings, models, self._hours.worked, self._link_speed)
            self._bundles = blobs
            self.hello()
        return self.task

    def _has_answered(self, offer: Offer) -> bool:
        """Whether this round was worked on already, in this life or an earlier one."""
        return (offer.run, offer.round) == self._answered or self.outbox.answered(offer.run, offer.round)

    def _decided(self, offer: Offer, decision: Decision) -> None:
        """Tell what is tried now, so that the word travels while the device computes."""
        self._standing.plan(reports.plan_message(offer, decision), decision.room_bytes)

    def _report(self, task: OneTask, given: Given, outcome: Outcome) -> None:
        """Keep and send what was trained: first what its kind and codec remember of it, then the update.
        After that this round's work is not done again.
        """
        offer = given.offer
        if self._has_answered(offer):
            return
        if outcome.contribution is None:
            log.warning("round %d: sitting out: %s", offer.round, "; ".join(outcome.reasons))
            return
        self._answered = (offer.run, offer.round)
        of, waiting = Of(offer.run, outcome.contribution.kind, given.member), self._waiting(offer.run)
        encoded = task.encoded(given, outcome, self._leftovers.get(of, waiting))
        body = encoded.body
        try:
            blob = self._holdings.blobs.put(body) if len(body) > INLINE_LIMIT else None
            message = reports.contribution_message(offer, outcome, b"" if blob else body)
            task.keep(offer, outcome.contribution)
            if encoded.left is not None:
                self._leftovers.put(of, offer.round, waiting, encoded.left)
            self.sending.keep(msgspec.structs.replace(message, blob=blob))
        except (BlobError, OSError) as error:
            log.warning("round %d left out: its contribution cannot be kept: %s", offer.round, error)
            return
        task.watcher.transfer(up=len(body) + ENVELOPE_BYTES)
        self.sending.due(self._clock())

    def _waiting(self, run: str) -> set[int]:
        """Rounds whose updates have no receipt yet."""
        return {message.round for message in self.outbox if message.run == run}

    def _arrived(self, blob: Blob, seconds: float) -> None:
        self._link_speed.saw_down(blob.size, seconds)
        if self.task is not None:
            self.task.watcher.transfer(down=blob.size)
