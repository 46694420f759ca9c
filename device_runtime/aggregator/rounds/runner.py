"""Executes the commands of the round machine: with messages to devices, and with the run's folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.machine import events
from device_runtime.aggregator.machine.engine import NotStored, RoundEngine
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import (
    Finished,
    RoundExtended,
    RoundOpened,
    SumsAwaited,
)
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.masking.groups import kinds_alone
from device_runtime.aggregator.masking.requests import SumRequests
from device_runtime.aggregator.storage import run_files
from device_runtime.aggregator.tasks.closing import Progress, score_of
from device_runtime.aggregator.tasks.drawing import NO_UPDATES, UNIFORM, DrawCandidate, drawn
from device_runtime.aggregator.tasks.mask_settings import most_weight_of
from device_runtime.aggregator.tasks.participants import DeviceTraits
from device_runtime.aggregator.views.text import abandoned_text, printable, unopened_text
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Masks
from device_runtime.system_errors import is_of_disk, shortage

from .offering import OfferMaker, OfferPublisher
from .receipts import ContributionCommands
from .run import OpenRun, RoundPhases

log = logging.getLogger(__name__)

COHORT_DRAW = 0xC0407
"""Keeps the draws of devices apart from all others of the same seed."""


class RoundCommands:
    """The rounds of one run, as a `RoundPort`. `gave_up`: why the run was abandoned; empty if it was not."""

    def __init__(
        self, rounds: OpenRun, contributions: ContributionCommands, out: Outbound, ports: Ports
    ) -> None:
        self.phases = RoundPhases(rounds)
        self.merge, self.evaluate = self.phases.merge, self.phases.evaluate
        self.offers = OfferMaker(rounds)
        self.offering = OfferPublisher(self.offers, out, ports.clock)
        self.sums = SumRequests(rounds.groups, rounds.store, out, ports.clock)
        self.gave_up = ""
        self._rounds, self._contributions, self._ports = rounds, contributions, ports
        self._traffic = out.traffic

    def clock(self) -> float:
        return self._ports.clock()

    def around(
        self, command: events.RoundCommand, execute: Callable[[], events.Event | None]
    ) -> events.Event | None:
        """Commits counted contributions first. If the disk refuses a phase, makes room and tries once more.

        Raises NotStored, RunFolderError if the run cannot go on.
        """
        self._contributions.commit()
        try:
            try:
                return execute()
            except (BlobError, RunFolderError) as error:
                freed = isinstance(command, events.DoPhase) and self._contributions.reception.make_room()
                if not freed:
                    raise
                log.warning("%s; %d bytes of unfinished uploads were removed, trying again", error, freed)
                return execute()
        except Exception as error:
            raise _stuck(command, error) from error

    def announce(self, command: events.Announce, state: RoundsState) -> None:
        """Opens and offers a round, unless the privacy budget is spent."""
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
        self._contributions.pay_all(by_offer=self.offering.opened(state))

    def extend(self, command: events.Extend, state: RoundsState) -> None:
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

    def give_up(self, command: events.GiveUp | events.GiveUpSums) -> None:
        """Abandons the run. Stores 0 fruitless deadlines, so that a restart counts them from 0."""
        if isinstance(command, events.GiveUp):
            self._contributions.reception.disk.check()
        self._rounds.store.session.fruitless(command.round, 0)
        if isinstance(command, events.GiveUpSums):
            self.gave_up = unopened_text(command, self.sums.waiting)
            return
        plans = self._contributions.statements.plans
        self.gave_up = abandoned_text(command, {device: why for device, (_, why) in plans.items()})

    def await_helpers(self, command: events.AwaitHelpers, state: RoundsState) -> None:
        self._rounds.store.session.fruitless(command.round, command.deadlines)
        self.tell_of_sums(state)

    def finish(self, command: events.Finish, state: RoundsState) -> None:
        self._rounds.registry.end_with(command.best)
        self._contributions.pay_all()
        self.offering.everybody(state)
        self._ports.tell(Finished(self._rounds.run, state.round))

    def invite(self, command: events.Invite, state: RoundsState) -> tuple[str, ...]:
        """Draws devices and offers them the round."""
        devices = self._drawn(command, state)
        if devices:
            self._rounds.store.session.ask(command.round, devices, state.rules.earliest(command.round))
            self.offering.each(state, devices)
        return devices

    def _drawn(self, command: events.Invite, state: RoundsState) -> tuple[str, ...]:
        """The devices that the task's policy draws. Raises DrawingError, OwnCodeError."""
        task, number = self._rounds.task, command.round
        if task.draw == UNIFORM:
            return draw(state, command, task.seed)
        traits = self._contributions.statements.traits
        updates = self._rounds.store.contributions.earlier_updates(number - 1)
        candidates = [
            DrawCandidate(traits.get(name) or DeviceTraits(name), updates.get(name, NO_UPDATES))
            for name in free_devices(state, number)
        ]
        return drawn(task.drawing, candidates, command.count, number, draw_stream(state, number, task.seed))

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

    def unmask(self, command: events.DoPhase, state: RoundsState) -> bool:
        """Asks mask helpers for the round's sums; returns whether no answers are missing."""
        self._rounds.store.session.fruitless(command.round, state.fruitless)
        if self.phases.begin_unmask(command):
            self.sums.begin(command.round)
            if self.sums.missing:
                self.tell_of_sums(state)
                return False
        return True

    def tell_of_sums(self, state: RoundsState) -> None:
        """Reports for which mask helpers the round waits."""
        most = state.rules.max_extensions
        left = max(1, most - state.fruitless) if most and state.fruitless and not state.rules.given else None
        waiting = self.sums.waiting
        self._ports.tell(SumsAwaited(state.round, waiting, self.sums.missing, state.fruitless, left))

    def publish(self, number: int, state: RoundsState) -> tuple[float, Progress | None]:
        traffic, duration_s = self._traffic.all(), self._ports.clock() - state.opened_at
        self._ports.tell(self.phases.publish(number, traffic, duration_s))
        figures = self._rounds.store.rounds.figures(number)
        score = score_of(self._rounds.task.stop_metric, figures.eval_acc, figures.eval_loss)
        return score, self._rounds.progress.restored(number)


def draw(state: RoundsState, invite: events.Invite, seed: int) -> tuple[str, ...]:
    """Draws the devices to ask for a round: `invite.count`, or fewer where there are fewer, uniformly.

    Candidates are ready, not yet asked for this round, and not at work on an earlier one. The draw can be
    repeated: it is the same for the same candidates, task `seed`, round, and number of devices that were
    asked for this round already.
    """
    number = invite.round
    free, rng = free_devices(state, number), draw_stream(state, number, seed)
    chosen = rng.choice(len(free), size=min(invite.count, len(free)), replace=False)
    return tuple(free[i] for i in chosen)


def free_devices(state: RoundsState, number: int) -> list[str]:
    """The candidates of a draw for round `number`, sorted."""
    return sorted(d for d in state.ready if state.asked.get(d) != number and d not in state.behind)


def draw_stream(state: RoundsState, number: int, seed: int) -> np.random.Generator:
    """The randomness of a draw: by the seed, the round, and the devices that were asked for it already."""
    before = sum(latest == number for latest in state.asked.values())
    return np.random.default_rng([seed, COHORT_DRAW, number, before])


class RoundRunner(RoundEngine):
    """Runs one run. `contributions` and `commands` execute the machine's commands; `out` sends to devices."""

    def __init__(self, rounds: OpenRun, out: Outbound, ports: Ports) -> None:
        self.contributions = ContributionCommands(rounds, out, ports)
        self.commands = RoundCommands(rounds, self.contributions, out, ports)
        self._run, self._out = rounds, out
        rules = replace(rounds.progress.rules, max_contributions=ports.max_devices)
        super().__init__(RoundsState(rules), self.contributions, self.commands)

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        saved = self._run.progress.saved()
        if saved:
            self._out.traffic.begin(self._run.store.contributions.traffic(saved.round))
        if self._run.registry.pending():
            self._run.registry.deploy()
        self.resume(saved)
        self.commands.offering.started(self.state, saved.round if saved else 0)

    def sums_changed(self, changed: bool) -> None:
        """Goes on with a round that is unmasked, if a mask helper has answered."""
        commands = self.commands
        if not changed:
            return
        self.feed(events.SumAnswered(commands.clock()))
        if not commands.sums.missing:
            self.feed(events.PhaseDone(commands.clock(), "unmask"))
        elif self.state.phase == "unmask":
            commands.tell_of_sums(self.state)

    def settle(self) -> None:
        """Commits counted contributions and sends their receipts; drops those that the disk refuses."""
        try:
            self.contributions.commit()
        except NotStored as error:
            self.take_back(error)
        self._run.store.session.settle(self.state, self.commands.clock())
        self.contributions.pay()

    def go_back(self, to: int) -> None:
        """Serves an earlier round's model and continues from it; see `OpenRun.go_back`.

        Contributions of an open round get their receipts first, and then do not count. Raises RollbackError,
        RunFolderError.
        """
        self.settle()
        self._run.go_back(to)
        self.feed(events.RolledBack(self.commands.clock(), self._run.progress.given_up()))

    def do_requested_rollback(self) -> None:
        """Does a rollback that was requested in the run folder; logs why, where it cannot."""
        to = run_files.requested_round(self._run.store.folder)
        if to is None:
            return
        try:
            self.go_back(to)
            log.warning("rolled back to the model of round %d, as requested", to)
        except RollbackError as error:
            log.warning("cannot roll back: %s", error)
        run_files.clear_request(self._run.store.folder, to)


def _stuck(command: events.RoundCommand, error: Exception) -> AggregatorError:
    """The error to raise where a command failed and the run cannot go on."""
    if isinstance(error, RunFolderError | DatabaseError):
        return error
    if is_of_disk(error):
        why = str(error) if isinstance(error, BlobError) else shortage(error)
        return RunFolderError(f"the run cannot go on: {why}. The same command goes on with it")
    text = f"{type(error).__name__}: {printable(str(error))}"
    return RunFolderError(f"the run cannot go on at {command}: {text}; start again to retry")
