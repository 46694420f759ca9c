"""Takes contributions from devices: checks the address, fetches large contents, checks them."""

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
from .check import ExpectedContributions
from .fetching import ContributionFetcher, FetchedContribution

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReceptionPorts:
    """The outside of `Reception`: a clock in seconds, Gets to devices, and events to the round machine."""

    clock: Callable[[], float]
    ask: Callable[[str, Get], None]
    feed: Callable[[Event], None]


class Reception:
    """Holds each message from `announce` until `release`, so that it can be stored if it counts."""

    def __init__(self, rounds: OpenRun, desk: ReceptionPorts) -> None:
        self._rounds = rounds
        self._desk = desk
        self._intake = ContributionFetcher(rounds.store.updates, desk.ask)
        self._in_hand: dict[Update, Contribution] = {}
        self._refusals: dict[Update, str] = {}
        self._samples: dict[str, int] = {}
        self._offered = ExpectedContributions(
            rounds.task, rounds.run, rounds.tools.manifests, rounds.weights
        ).offered

    def heard(self, device: str, samples: int) -> None:
        """Note the samples in a device's hello; the largest number limits those of its contributions."""
        self._samples[device] = max(samples, self._samples.get(device, 0))

    def forget(self, device: str) -> None:
        """Forget a device that is away."""
        self._samples.pop(device, None)

    def check_address(self, message: Contribution) -> None:
        """Raise UpdateRefused for a message to another task, or to another run of this one."""
        check.check_address(message, self._offered(0))

    def announce(self, update: Update, message: Contribution, refusal: str | None = None) -> None:
        """Tell the round machine of a contribution, which decides whether its content is wanted.

        `refusal` is what a worker found, as in `CheckedMessage`.
        """
        self._in_hand[update] = message
        self._refusals.pop(update, None)
        if refusal is not None:
            self._refusals[update] = refusal
        self._desk.feed(Announced(self._desk.clock(), update, self._sent(update)))

    def message(self, update: Update) -> Contribution:
        """The message of a contribution that is not released."""
        return self._in_hand[update]

    def release(self, update: Update) -> None:
        """Forget a message whose receipt is sent, or that the device will send again."""
        self._in_hand.pop(update, None)
        self._refusals.pop(update, None)

    def turn_away(self, update: Update) -> None:
        """Remove the content of a contribution that does not count, before the round closes."""
        message = self._in_hand.get(update)
        if message and message.blob:
            try:
                self._rounds.store.contributions.let_go(message.blob)
            except BlobError as error:
                log.warning("content from %s: %s", update.device, error)

    def fetch(self, update: Update, number: int) -> None:
        """Fetch and check the content of an announced contribution; `number` is the open round."""
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
            self._report(update, refusal)
            return
        if message.blob and not self._rounds.store.updates.has(message.blob):
            self.release(update)
            self._intake.want(update, message, message.blob)
        else:
            self._check_arrived(FetchedContribution(update, message), number)

    def _check_opened(self, number: int) -> None:
        """Raise UpdateRefused for a round that this site has not offered: it may skip rounds from above."""
        if self._rounds.outside and not self._rounds.store.rounds.opened(number):
            raise UpdateRefused(f"round {number} was not offered by this site")

    def block(self, device: str, sha: bytes, block: tuple[int, bytes]) -> bool:
        """Take a block (number, bytes) of an upload. Returns whether it was expected."""
        return self._intake.received(device, sha, block, self._desk.clock())

    def tick(self, number: int) -> None:
        """Go on fetching, and check what is complete; `number` is the open round."""
        for arrival in self._intake.tick(self._desk.clock()):
            self._in_hand[arrival.update] = arrival.message
            self._check_arrived(arrival, number)

    def make_room(self) -> int:
        """Make room on a full disk: remove all contents that are incomplete or do not count.

        Their devices send them again. Returns the bytes freed. Raises BlobError.
        """
        updates = self._rounds.store.updates
        before = updates.taken()
        self._intake.make_room()
        self._rounds.store.tidy()
        return before - updates.taken()

    def restart(self) -> None:
        """Ask again for missing blocks, as the link was down."""
        self._intake.restart()

    def _check_arrived(self, arrival: FetchedContribution, number: int) -> None:
        """Check a content that has arrived, and tell the round machine the result."""
        update, message, refusal = arrival.update, arrival.message, arrival.refusal
        if not refusal and (update.round == number or self._may_count(update.round, number)):
            try:
                offered = self._offered(update.round)
                check.check_content(message, self._content(arrival), offered)
            except UpdateRefused as error:
                refusal = str(error)
            except BlobError as error:  # our disk failed, not the device, which will send again
                log.warning("update from %s dropped: %s", update.device, error)
                self.release(update)
                return
        self._report(update, refusal)

    def _report(self, update: Update, refusal: str) -> None:
        now = self._desk.clock()
        if refusal:
            self._desk.feed(Rejected(now, update, refusal))
        else:
            self._desk.feed(Validated(now, update, self._sent(update)))

    def _content(self, arrival: FetchedContribution) -> bytes:
        blob, updates = arrival.message.blob, self._rounds.store.updates
        if blob is None:
            return arrival.message.body
        return updates.read(blob) if arrival.verified else updates.get(blob)

    def _sent(self, update: Update) -> str:
        """The kind that already counts for this round, as in `Announced`."""
        if not 1 <= update.round <= self._rounds.task.rounds:
            return ""
        return self._rounds.store.contributions.sent(update.round, update.device)

    def _may_count(self, made_for: int, number: int) -> bool:
        """Whether a contribution to an earlier round may count in the open round `number`.

        If not, its content is not checked, as the base to check it against may be gone.
        """
        rules = self._rounds.progress.rules
        return made_for < number and rules.counts_late and number - made_for <= rules.max_staleness
