"""Contributions from their message to their belief: addressed right, fetched, checked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from device_runtime.aggregator.errors import UpdateRefused
from device_runtime.aggregator.rounds.events import Announced, Event, Rejected, Update, Validated
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Contribution, Get

from . import check
from .check import Standard
from .fetching import Arrival, Intake

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Desk:
    """What the reception may do: take time, ask a device for blocks, and tell the round machine."""

    clock: Callable[[], float]
    ask: Callable[[str, Get], None]
    feed: Callable[[Event], None]


class Reception:
    """Holds each message from `announce` until `release`, so that what is believed can be kept."""

    def __init__(self, rounds: OpenRun, desk: Desk) -> None:
        self._rounds = rounds
        self._desk = desk
        self._intake = Intake(rounds.store.updates, desk.ask)
        self._in_hand: dict[Update, Contribution] = {}
        self._refusals: dict[Update, str] = {}
        self._samples: dict[str, int] = {}
        self._offered = Standard(rounds.task, rounds.run, rounds.manifests, rounds.weights).offered

    def heard(self, device: str, samples: int) -> None:
        """So many samples a device has by its hello; the most that it has said bounds its contributions."""
        self._samples[device] = max(samples, self._samples.get(device, 0))

    def forget(self, device: str) -> None:
        """A device that is away need not be known any longer."""
        self._samples.pop(device, None)

    def check_address(self, message: Contribution) -> None:
        """Raises UpdateRefused for a message to another task, or to another life of this one."""
        check.check_address(message, self._offered(0))

    def announce(self, update: Update, message: Contribution, refusal: str | None = None) -> None:
        """A message has come: is its content wanted? `refusal` is what a worker found, as in Checked."""
        self._in_hand[update] = message
        self._refusals.pop(update, None)
        if refusal is not None:
            self._refusals[update] = refusal
        self._desk.feed(Announced(self._desk.clock(), update, self._sent(update)))

    def message(self, update: Update) -> Contribution:
        return self._in_hand[update]

    def release(self, update: Update) -> None:
        """It has its receipt, or will be sent again."""
        self._in_hand.pop(update, None)
        self._refusals.pop(update, None)

    def turn_away(self, update: Update) -> None:
        """It does not count: its content would lie there until the round is closed."""
        message = self._in_hand.get(update)
        if message and message.blob:
            try:
                self._rounds.store.contributions.let_go(message.blob)
            except BlobError as error:
                log.warning("content from %s: %s", update.device, error)

    def fetch(self, update: Update, number: int) -> None:
        """Get the content of a message in hand, for the open round `number`."""
        message = self._in_hand[update]
        refusal = self._refusals.get(update)
        try:
            check.check_samples(message, self._samples.get(update.device, 0), self._offered(0))
            if refusal is None:
                check.check_message(message, self._offered(0))
                self._check_opened(update.round)
        except UpdateRefused as error:
            refusal = str(error)
        if refusal is not None:
            self._say(update, refusal)
            return
        if message.blob and not self._rounds.store.updates.has(message.blob):
            self.release(update)
            self._intake.want(update, message, message.blob)
        else:
            self._judge(Arrival(update, message), number)

    def _check_opened(self, number: int) -> None:
        """Rounds that are given need not be all."""
        if self._rounds.outside and not self._rounds.store.opened(number):
            raise UpdateRefused(f"round {number} was not offered here")

    def block(self, device: str, sha: bytes, block: tuple[int, bytes]) -> bool:
        """One block (number, bytes) of an upload. Returns whether it was waited for."""
        return self._intake.received(device, sha, block, self._desk.clock())

    def tick(self, number: int) -> None:
        """Go on fetching; what is complete is judged, for the open round `number`."""
        for arrival in self._intake.tick(self._desk.clock()):
            self._in_hand[arrival.update] = arrival.message
            self._judge(arrival, number)

    def make_room(self) -> int:
        """The disk is full: let go of all contents that have come in part or do not count; devices send them
        again. Returns the bytes freed. Raises BlobError.
        """
        updates = self._rounds.store.updates
        before = updates.taken()
        self._intake.make_room()
        self._rounds.store.tidy()
        return before - updates.taken()

    def restart(self) -> None:
        """The link was down."""
        self._intake.restart()

    def _judge(self, arrival: Arrival, number: int) -> None:
        """The content is here: is it to be believed?"""
        update, message, refusal = arrival.update, arrival.message, arrival.refusal
        if not refusal and (update.round == number or self._may_count(update.round, number)):
            try:
                offered = self._offered(update.round)
                check.check_content(message, self._content(arrival), offered)
            except UpdateRefused as error:
                refusal = str(error)
            except BlobError as error:  # our disk, not the device's fault: it will send again
                log.warning("update from %s dropped: %s", update.device, error)
                self.release(update)
                return
        self._say(update, refusal)

    def _say(self, update: Update, refusal: str) -> None:
        now = self._desk.clock()
        if refusal:
            self._desk.feed(Rejected(now, update, refusal))
        else:
            self._desk.feed(Validated(now, update, self._sent(update)))

    def _content(self, arrival: Arrival) -> bytes:
        blob, updates = arrival.message.blob, self._rounds.store.updates
        if blob is None:
            return arrival.message.body
        return updates.read(blob) if arrival.verified else updates.get(blob)

    def _sent(self, update: Update) -> str:
        """As in Announced."""
        if not 1 <= update.round <= self._rounds.task.rounds:
            return ""
        return self._rounds.store.contributions.sent(update.round, update.device)

    def _may_count(self, made_for: int, number: int) -> bool:
        """Whether what was made for an earlier round may count in this one. Else it is too late, whatever its
        content is, and the base that it would be held against need not be there.
        """
        rules = self._rounds.rules
        return made_for < number and rules.counts_late and number - made_for <= rules.max_staleness
