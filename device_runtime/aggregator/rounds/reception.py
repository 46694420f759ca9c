"""Takes contributions from devices: checks the address, fetches large contents, checks them.

While the disk refuses contributions, nobody else is blamed for their absence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import DatabaseError, RunFolderError, UpdateRefused
from device_runtime.aggregator.intake import check
from device_runtime.aggregator.intake.check import ExpectedContributions
from device_runtime.aggregator.intake.fetching import ContributionFetcher, FetchedContribution
from device_runtime.aggregator.machine.events import (
    Announced,
    ContributionId,
    FetchContribution,
    Rejected,
    Validated,
)
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.tasks.participants import DeviceTraits
from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire import compact_round
from device_runtime.broker.wire.messages import Contribution
from device_runtime.system_errors import is_of_disk

log = logging.getLogger(__name__)


class DiskRefusal:
    """`why`: why the disk of a run folder takes no contributions; empty if it does, or none has come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.why = ""

    def refused(self, error: Exception) -> None:
        """A contribution was dropped for an error; its device sends it again. Logged once in a row."""
        if not isinstance(error, (NoRoom, RunFolderError)) and not is_of_disk(error):
            return
        if not self.why:
            log.warning("%s", self._text(str(error)))
        self.why = str(error)

    def took(self) -> None:
        """A contribution was stored."""
        if self.why:
            log.info("run folder %s takes contributions again", self._folder)
        self.why = ""

    def check(self) -> None:
        """Raises RunFolderError while it refuses: a deadline without contributions is then nobody's fault."""
        if self.why:
            raise RunFolderError(f"{self._text(self.why)} The same command goes on with the round")

    def _text(self, why: str) -> str:
        advice = "" if "free some space" in why else " Free some space there."
        return f"the disk of run folder {self._folder} takes no contributions: {why}.{advice}"


class DeviceStatements:
    """Each device's latest plan, number of samples, traits and full contribution.

    plans: kind and reasons of its latest plan. samples: the most that its hellos named. whole: its last full
    contribution, from which compact ones are completed. traits: as of its last hello.
    """

    def __init__(self) -> None:
        self.plans: dict[str, tuple[str, str]] = {}
        self.samples: dict[str, int] = {}
        self.whole: dict[str, Contribution] = {}
        self.traits: dict[str, DeviceTraits] = {}

    def greeted(self, device: str, samples: int) -> None:
        """Note the samples in a device's hello."""
        self.samples[device] = max(samples, self.samples.get(device, 0))

    def why(self, update: ContributionId) -> str:
        """The reasons of the device's latest plan (sent when it changes), if the update is of its kind."""
        kind, why = self.plans.get(update.device, ("", ""))
        return why if kind.split(" ")[0] == update.kind else ""

    def contributed(self, device: str, message: Contribution, size: int) -> None:
        """Note a device's last full contribution: compact ones leave out what they share with it."""
        self.whole.pop(device, None)
        if message.seq and message.body and not message.mask and size <= compact_round.MOST_BYTES:
            self.whole[device] = compact_round.without_values(message)

    def forget(self, device: str) -> None:
        """Forget a device that is away."""
        for memory in (self.plans, self.samples, self.whole, self.traits):
            memory.pop(device, None)


class Reception:
    """Holds each message from `announced` until `release`, so that it can be stored if it counts.

    It returns events for the round machine. `out` asks devices for blocks.
    """

    def __init__(self, rounds: OpenRun, statements: DeviceStatements, out: Outbound, ports: Ports) -> None:
        self._rounds, self._statements, self._clock = rounds, statements, ports.clock
        self.disk = DiskRefusal(rounds.store.folder)
        self._intake = ContributionFetcher(rounds.store.updates, out.ask, self.disk.refused)
        self._in_hand: dict[ContributionId, tuple[Contribution, str | None]] = {}
        self._offered = ExpectedContributions(
            rounds.task, rounds.run, rounds.tools.manifests, rounds.weights
        ).offered
        rules = rounds.progress.rules
        self._most_late = rules.max_staleness if rules.counts_late else 0

    def check_address(self, message: Contribution) -> None:
        """Raise UpdateRefused for a message to another task, or to another run of this one."""
        check.check_address(message, self._offered(0))

    def announced(
        self, update: ContributionId, message: Contribution, refusal: str | None = None
    ) -> Announced:
        """Take a contribution's message, with `refusal` as in CheckedMessage, until `release`."""
        self._in_hand[update] = message, refusal
        return Announced(self._clock(), update, self._sent(update))

    def message(self, update: ContributionId) -> Contribution:
        """The message of a contribution that is not released."""
        return self._in_hand[update][0]

    def release(self, update: ContributionId) -> None:
        """Forget a message whose receipt is sent, or that the device will send again."""
        self._in_hand.pop(update, None)

    def turn_away(self, update: ContributionId) -> None:
        """Remove the content of a contribution that does not count, before the round closes."""
        blob = self.message(update).blob if update in self._in_hand else None
        if blob:
            try:
                self._rounds.store.contributions.let_go(blob)
            except BlobError as error:
                log.warning("content from %s: %s", update.device, error)

    def fetch(self, command: FetchContribution, state: RoundsState) -> Validated | Rejected | None:
        """Check an announced contribution, or fetch its content first. An error loses only this one."""
        try:
            return self._fetch(command.update, state.round)
        except Exception as error:
            self.lose(command.update, error)
            return None

    def lose(self, update: ContributionId, error: Exception) -> None:
        """Release a contribution that an error stopped; its device sends it again."""
        log.warning("update from %s: %s: %s", update.device, type(error).__name__, error)
        self.release(update)

    def _fetch(self, update: ContributionId, number: int) -> Validated | Rejected | None:
        """Check a contribution in the open round `number`, or ask for its content."""
        (message, refusal), rounds = self._in_hand[update], self._rounds
        try:
            check.check_samples(message, self._statements.samples.get(update.device, 0), self._offered(0))
            if refusal is None:
                check.check_message(message, self._offered(0))
                if message.mask is not None:
                    refusal = rounds.store.sums.faults.suspension(update.device, number) or None
                if not refusal and rounds.given_rounds and not rounds.store.rounds.opened(update.round):
                    refusal = f"round {update.round} was not offered by this site"  # which may skip rounds
        except UpdateRefused as error:
            refusal = str(error)
        if refusal is not None:
            return self._found(update, refusal)
        if message.blob and not self._rounds.store.updates.has(message.blob):
            self.release(update)
            self._intake.want(update, message, message.blob)
            return None
        return self._check_arrived(FetchedContribution(update, message), number)

    def block(self, device: str, sha: bytes, block: tuple[int, bytes]) -> bool:
        """Take a block (number, bytes) of an upload. Returns whether it was expected."""
        return self._intake.received(device, sha, block, self._clock())

    def tick(self, number: Callable[[], int]) -> Iterator[Validated | Rejected]:
        """Go on fetching, and check what is complete. `number` gives the open round, which events change."""
        for arrival in self._intake.tick(self._clock()):
            self._in_hand[arrival.update] = arrival.message, None
            if event := self._check_arrived(arrival, number()):
                yield event

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

    def _check_arrived(self, arrival: FetchedContribution, number: int) -> Validated | Rejected | None:
        """Check a content that has arrived; None where our disk failed, and the device will send it again.

        The content of a contribution that is too late to count in the open round `number` is not checked, as
        the base to check it against may be gone.
        """
        update, message, refusal = arrival.update, arrival.message, arrival.refusal
        if not refusal and 0 <= number - update.round <= self._most_late:
            try:
                check.check_content(message, self._content(arrival), self._offered(update.round))
            except UpdateRefused as error:
                refusal = str(error)
            except BlobError as error:
                log.warning("update from %s dropped: %s", update.device, error)
                self.disk.refused(error)
                self.release(update)
                return None
            except (RunFolderError, DatabaseError):
                raise
            except Exception:  # of an own kind of update: one device must not end the run
                log.exception("the update of %s (%s) cannot be checked", update.device, update.kind)
                self.release(update)
                return None
        return self._found(update, refusal)

    def _found(self, update: ContributionId, refusal: str) -> Validated | Rejected:
        """The result of all checks; no `refusal` means that the contribution is valid."""
        if refusal:
            return Rejected(self._clock(), update, refusal)
        return Validated(self._clock(), update, self._sent(update))

    def _content(self, arrival: FetchedContribution) -> bytes:
        blob, updates = arrival.message.blob, self._rounds.store.updates
        if blob is None:
            return arrival.message.body
        return updates.read(blob) if arrival.verified else updates.get(blob)

    def _sent(self, update: ContributionId) -> str:
        """The kind that already counts for this round, as in `Announced`."""
        if not 1 <= update.round <= self._rounds.task.rounds:
            return ""
        return self._rounds.store.contributions.sent(update.round, update.device)
