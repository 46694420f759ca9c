"""Runs the round machine: feeds it events and executes its commands in order.

Not thread-safe; never waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.machine import events
from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import (
    Contributed,
    Finished,
    RoundExtended,
    RoundOpened,
    SumsAwaited,
)
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.masking.opening import kinds_alone
from device_runtime.aggregator.masking.requests import SumRequests
from device_runtime.aggregator.storage import rollback_request
from device_runtime.aggregator.storage.contributions import StoredContribution, record_of
from device_runtime.aggregator.tasks.mask_settings import most_weight_of
from device_runtime.aggregator.views.text import abandoned_text, printable, unopened_text
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Masks
from device_runtime.system_errors import is_of_disk, shortage

from .offering import OfferMaker, OfferPublisher
from .receipts import Receipts
from .reception import DeviceStatements, Reception
from .run import OpenRun, RoundPhases

log = logging.getLogger(__name__)

T = TypeVar("T")
COHORT_DRAW = 0xC0407
"""Keeps the draws of devices apart from all others of the same seed."""


class ContributionCommands:
    """The contributions of one run on their way from a message to a receipt. `out` sends to devices.

    A commit waits for the disk, and each call of the database for other threads; these two are most of the
    cost of a small contribution. So contributions that come close to each other are written together by
    `settle`, and receipts and other reports wait until then.
    """

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.statements = DeviceStatements()
        self.reception = Reception(rounds, self.statements, out, ports)
        self.receipts = Receipts(self.reception, out, ports)
        self._stored, self._traffic, self._ports = rounds.store.contributions, out.traffic, ports
        self._waiting: list[events.ContributionId] = []
        self._reports: list[Callable[[], None]] = []

    def do(self, command: events.ContributionCommand, state: RoundsState) -> events.Event | None:
        """Executes a command in this state. Returns the event that it causes at once, if any."""
        match command:
            case events.FetchContribution():
                return self.reception.fetch(command.update, state.round)
            case events.StoreContribution():
                self._store(command)
            case events.Reply() if self._waiting:
                self._reports.append(partial(self.receipts.give, command, state))
            case events.Reply():
                self.receipts.give(command, state)
        return None

    def _store(self, command: events.StoreContribution) -> None:
        """Adds a contribution to the next commit; its content is durable already, its receipt follows."""
        update, device = command.update, command.update.device
        message, moved = self.reception.message(update), self._traffic.of(device)
        stored = StoredContribution(
            device=device,
            round=message.round,
            into=command.into,
            kind=message.kind,
            num_examples=message.num_examples,
            metrics=message.metrics,
            why=self.statements.why(update),
            blob=message.blob,
            body=message.body,
            form=message.form,
            mask=message.mask,
        )
        self._stored.keep(stored, moved)
        self._waiting.append(update)
        self._reports.append(lambda: self._ports.tell(Contributed(record_of(stored, moved))))

    def settle(self) -> None:
        """Commits, then sends what waited; one report that fails does not stop the others.

        Raises RunFolderError where the commit fails: nothing is stored then, call `drop`.
        """
        if not self._waiting:
            return
        self._stored.settle()
        self.reception.disk.took()
        reports, self._waiting, self._reports = self._reports, [], []
        for say in reports:
            try:
                say()
            except Exception as error:  # whatever it is, the others have their receipts
                log.warning("a report after a commit failed: %s: %s", type(error).__name__, error)

    def drop(
        self, error: Exception, uncounted: events.ContributionId | None = None
    ) -> tuple[events.ContributionId, ...]:
        """Drops all contributions that wait for their commit, because of an error. Returns those counted.

        `uncounted`: one more that is dropped, which the state does not count.
        """
        updates, self._waiting, self._reports = tuple(self._waiting), [], []
        self._stored.drop()
        self.reception.disk.refused(error)
        for update in dict.fromkeys((*updates, uncounted) if uncounted else updates):
            self.release(update, error)
        return tuple(update for update in updates if update != uncounted)

    def release(self, update: events.ContributionId, error: Exception) -> None:
        """Releases a contribution that an error stopped; its device sends it again."""
        log.warning("update from %s: %s: %s", update.device, type(error).__name__, error)
        self.reception.release(update)


class RoundCommands:
    """The rounds of one run. `gave_up`: why the run was abandoned; empty if it was not."""

    def __init__(
        self, rounds: OpenRun, contributions: ContributionCommands, out: Outbound, ports: Ports
    ) -> None:
        self.phases, self.offers = RoundPhases(rounds), OfferMaker(rounds)
        self.offering = OfferPublisher(self.offers, out, ports.clock)
        self.sums = SumRequests(rounds.groups, rounds.store, out, ports.clock)
        self.gave_up = ""
        self._rounds, self._contributions, self._ports = rounds, contributions, ports
        self._traffic = out.traffic

    def do(self, command: events.RoundCommand, state: RoundsState) -> events.Event | None:
        """Executes a command in this state. Returns the event that answers it, if any."""
        match command:
            case events.Announce():
                self._announce(command, state)
            case events.Extend():
                self._extend(command, state)
            case events.GiveUp():
                self._give_up(command)
            case events.AwaitHelpers():
                self._rounds.store.session.fruitless(command.round, command.deadlines)
                self._tell_of_sums(state)
            case events.GiveUpSums():
                self._rounds.store.session.fruitless(command.round, 0)
                self.gave_up = unopened_text(command, self.sums.waiting)
            case events.Invite():
                return self._invite(command, state)
            case events.DoPhase():
                return self._do_phase(command, state)
            case events.Finish():
                self._rounds.registry.end_with(command.best)
                self._contributions.receipts.pay_all()
                self.offering.everybody(state)
                self._ports.tell(Finished(self._rounds.run, state.round))
        return None

    def _announce(self, command: events.Announce, state: RoundsState) -> None:
        number, budget = command.round, self._rounds.budget
        why = "" if command.again else budget.refusal(number)
        if not command.again and not why:
            self.phases.open(number, self._masks(number, state))
            self._traffic.begin({})
        if why := why or budget.misfit(number, partial(self._rounds.weights, number)):
            self.gave_up = f"round {number} cannot be opened: {why}"
            return
        kinds = tuple(kind.name for kind in self._rounds.task.offered(number))
        deadline_s, count = state.deadline_s(number), state.contributions
        self._ports.tell(RoundOpened(number, kinds, deadline_s, command.again, count))
        self._contributions.receipts.pay_all(by_offer=self.offering.opened(state))

    def _extend(self, command: events.Extend, state: RoundsState) -> None:
        """Extends a round. Fruitless deadlines are stored: else a run that keeps crashing would never end."""
        number = command.round
        if state.fruitless:
            self._contributions.reception.disk.check()
        self._rounds.store.session.fruitless(number, state.fruitless)
        self._ports.tell(
            RoundExtended(
                round=number,
                deadline_s=state.deadline_s(number),
                contributions=command.contributions,
                needed=self._rounds.task.min_contributions,
                devices=len(state.ready),
                fruitless=state.fruitless,
                left=state.extensions_left if state.fruitless else None,
            )
        )
        self.offering.extended(state)

    def _give_up(self, command: events.GiveUp) -> None:
        """Abandons the run. Stores 0 fruitless deadlines, so that a restart counts them from 0."""
        self._contributions.reception.disk.check()
        self._rounds.store.session.fruitless(command.round, 0)
        plans = self._contributions.statements.plans
        self.gave_up = abandoned_text(command, {device: why for device, (_, why) in plans.items()})

    def _invite(self, command: events.Invite, state: RoundsState) -> events.Invited:
        """Draws devices and offers them the round."""
        devices = draw(state, command, self._rounds.task.seed)
        if devices:
            self._rounds.store.session.ask(command.round, devices, state.rules.earliest(command.round))
            self.offering.each(state, devices)
        return events.Invited(self._ports.clock(), command.round, devices)

    def _masks(self, number: int, state: RoundsState) -> Masks | None:
        """How the updates of a new round are masked, by what is known of the devices; None: they are not."""
        task, sums = self._rounds.task, self._rounds.store.sums
        if task.masks is None:
            return None
        before = sums.masks(number - 1)
        most_weight = most_weight_of(self._contributions.statements.samples.values())
        most = min(most_weight or (before.most_weight if before else 1), task.max_num_examples)
        alone = kinds_alone(sums.records(number - 1), number - 1)
        devices = min(len(state.devices), state.rules.cohort(number) or len(state.devices))
        return self._rounds.budget.noisy(task.masks.offered(devices, most, alone))

    def unmasked(self, state: RoundsState) -> Iterator[events.Event]:
        """The events that follow an answer of a mask helper."""
        yield events.SumAnswered(self._ports.clock())
        if not self.sums.missing:
            yield events.PhaseDone(self._ports.clock(), "unmask")
        elif state.phase == "unmask":
            self._tell_of_sums(state)

    def _unmask(self, command: events.DoPhase, state: RoundsState) -> events.PhaseDone | None:
        """Asks mask helpers for the round's sums; None while some answers are missing."""
        self._rounds.store.session.fruitless(command.round, state.fruitless)
        opens = self.phases.begin_unmask(command.round, command.durations, command.early)
        if opens:
            self.sums.begin(command.round)
        if opens and self.sums.missing:
            self._tell_of_sums(state)
            return None
        return events.PhaseDone(self._ports.clock(), "unmask")

    def _tell_of_sums(self, state: RoundsState) -> None:
        most = state.rules.max_extensions
        left = max(1, most - state.fruitless) if most and state.fruitless and not state.rules.given else None
        waiting = self.sums.waiting
        self._ports.tell(SumsAwaited(state.round, waiting, self.sums.missing, state.fruitless, left))

    def _do_phase(self, command: events.DoPhase, state: RoundsState) -> events.PhaseDone | None:
        number, phases, progress = command.round, self.phases, self._rounds.progress
        match command.phase:
            case "unmask":
                return self._with_room(lambda: self._unmask(command, state))
            case "merge":
                self._with_room(lambda: phases.merge(number, command.durations, command.early))
            case "evaluate":
                self._with_room(lambda: phases.evaluate(number))
            case "publish":
                traffic, duration_s = self._traffic.all(), self._ports.clock() - state.opened_s
                self._ports.tell(self._with_room(lambda: phases.publish(number, traffic, duration_s)))
                score, back = progress.score(number), progress.restored(number)
                return events.PhaseDone(self._ports.clock(), "publish", score, back)
        return events.PhaseDone(self._ports.clock(), command.phase)

    def _with_room(self, work: Callable[[], T]) -> T:
        """Does a phase of a round; if the disk refuses, deletes unfinished uploads and tries once more."""
        try:
            return work()
        except (BlobError, RunFolderError) as error:
            freed = self._contributions.reception.make_room()
            if not freed:
                raise
            log.warning("%s; %d bytes of unfinished uploads were removed, trying again", error, freed)
            return work()


def draw(state: RoundsState, invite: events.Invite, seed: int) -> tuple[str, ...]:
    """Draws the devices to ask for a round: `invite.count`, or fewer where there are fewer, uniformly.

    Candidates are ready, not yet asked for this round, and not at work on an earlier one. The draw can be
    repeated: it is the same for the same candidates, task `seed`, round, and number of devices that were
    asked for this round already.
    """
    number = invite.round
    free = sorted(d for d in state.ready if state.asked.get(d) != number and d not in state.behind)
    before = sum(latest == number for latest in state.asked.values())
    rng = np.random.default_rng([seed, COHORT_DRAW, number, before])
    chosen = rng.choice(len(free), size=min(invite.count, len(free)), replace=False)
    return tuple(free[i] for i in chosen)


class RoundRunner:
    """Runs one run. `contributions` and `commands` execute the machine's commands; `out` sends to devices."""

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.contributions = ContributionCommands(rounds, out, ports)
        self.commands = RoundCommands(rounds, self.contributions, out, ports)
        self._rounds, self._out, self._ports = rounds, out, ports
        self.state = RoundsState(replace(rounds.progress.rules, max_contributions=ports.max_devices))
        self._events: deque[events.Event] = deque()
        self._busy = False

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        saved = self._rounds.progress.saved()
        if saved:
            self._out.traffic.begin(self._rounds.store.contributions.traffic(saved.round))
        if self._rounds.registry.pending():
            self._rounds.registry.deploy()
        self._do(*machine.resume(self.state.rules, saved, self._ports.clock()))
        self._drain()
        self.commands.offering.started(self.state, saved.round if saved else 0)

    def feed(self, event: events.Event) -> None:
        """Takes an event, and executes its commands before it returns."""
        if isinstance(event, events.DevicePresent | events.Forgotten):
            self._rounds.store.session.note(event)
        self._events.append(event)
        if not self._busy:
            self._drain()

    def sums_changed(self, changed: bool) -> None:
        """Goes on with a round that is unmasked, if a mask helper has answered."""
        if changed:
            for event in self.commands.unmasked(self.state):
                self.feed(event)

    def settle(self) -> None:
        """Commits counted contributions and sends their receipts; drops those that the disk refuses."""
        try:
            self.contributions.settle()
        except RunFolderError as error:
            self._lost(error)
            self._drain()
        self._rounds.store.session.settle(self.state, self._ports.clock())
        self.contributions.receipts.pay()

    def go_back(self, to: int) -> None:
        """Serves an earlier round's model and continues from it; see `OpenRun.go_back`.

        Contributions of an open round get their receipts first, and then do not count. Raises RollbackError,
        RunFolderError.
        """
        self.settle()
        self._rounds.go_back(to)
        self.feed(events.RolledBack(self._ports.clock(), self._rounds.progress.given_up()))

    def do_requested_rollback(self) -> None:
        """Does a rollback that was requested in the run folder; logs why, where it cannot."""
        to = rollback_request.requested_round(self._rounds.store.folder)
        if to is None:
            return
        try:
            self.go_back(to)
            log.warning("rolled back to the model of round %d, as requested", to)
        except RollbackError as error:
            log.warning("cannot roll back: %s", error)
        rollback_request.clear_request(self._rounds.store.folder, to)

    def _drain(self) -> None:
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                self._do(*machine.step(self.state, event), event)
        finally:
            self._busy = False

    def _do(
        self, state: RoundsState, commands: tuple[events.Command, ...], event: events.Event | None = None
    ) -> None:
        """Changes to the state after an event and executes its commands.

        Commands that depend on counted contributions run after their commit. If a commit fails, the
        contributions are dropped and the event is taken again without them. An event that a command causes
        waits until those before it are done, but the next draw depends on the answer to the one before.
        Raises RunFolderError when the run itself cannot go on.
        """
        before, self.state = self.state, state
        for command in commands:
            if isinstance(command, events.RoundCommand):
                try:
                    self.contributions.settle()
                except RunFolderError as error:
                    self._undo(before, event, error)
                    return
            try:
                if isinstance(command, events.ContributionCommand):
                    answer = self.contributions.do(command, state)
                else:
                    answer = self.commands.do(command, state)
            except Exception as error:
                if isinstance(command, events.RoundCommand):
                    raise _stuck(command, error) from error
                if isinstance(command, events.StoreContribution):
                    self._undo(before, event, error)
                    return
                self.contributions.release(command.update, error)
                continue
            if isinstance(answer, events.Invited):
                self._events.appendleft(answer)
            elif answer:
                self._events.append(answer)

    def _undo(self, before: RoundsState, event: events.Event | None, error: Exception) -> None:
        """Goes back to the state before an event, because the disk refused contributions counted in it."""
        self.state = before
        own = event.update if isinstance(event, events.Validated) else None
        if event is not None and own is None:
            self._events.appendleft(event)
        self._lost(error, own)

    def _lost(self, error: Exception, uncounted: events.ContributionId | None = None) -> None:
        """Drops contributions as `ContributionCommands.drop`, and tells the machine that it failed."""
        counted = self.contributions.drop(error, uncounted)
        self._events.appendleft(events.CommitFailed(self._ports.clock(), counted))


def _stuck(command: events.Command, error: Exception) -> AggregatorError:
    """The error to raise where a command failed and the run cannot go on."""
    if isinstance(error, RunFolderError | DatabaseError):
        return error
    if is_of_disk(error):
        why = str(error) if isinstance(error, BlobError) else shortage(error)
        return RunFolderError(f"the run cannot go on: {why}. The same command goes on with it")
    text = f"{type(error).__name__}: {printable(str(error))}"
    return RunFolderError(f"the run cannot go on at {command}: {text}; start again to retry")
