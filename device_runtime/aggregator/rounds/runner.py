"""Runs the round machine: feeds it events and executes its commands in order.

Not thread-safe; never waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from device_runtime.aggregator.delivery.offering import OfferPublisher
from device_runtime.aggregator.delivery.offers import OfferMaker
from device_runtime.aggregator.delivery.outbound import Outbound, RoundTraffic
from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.intake.contributions import StoredContribution, record_of
from device_runtime.aggregator.intake.receipts import Receipts
from device_runtime.aggregator.intake.reception import Reception, ReceptionPorts
from device_runtime.aggregator.storage import rollback_request
from device_runtime.aggregator.views.listener import (
    Contributed,
    Finished,
    RoundExtended,
    RoundOpened,
    RunEvent,
)
from device_runtime.aggregator.views.text import abandoned_text, printable
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Offer

from . import events, machine
from .commit_group import CommitGroup
from .phases import RoundPhases
from .ports import Ports
from .run import OpenRun
from .state import RoundsState, Rules

log = logging.getLogger(__name__)

T = TypeVar("T")

_OF_ONE = (events.StoreContribution, events.Fetch, events.Reply)
"""Commands about one contribution: an error in one of them does not stop the run."""
COHORT_DRAW = 0xC0407
"""Keeps the draws of devices apart from all others of the same seed."""


class RoundRunner:
    """Runs one run. `reception` receives contributions, `out` sends to devices.

    `plans`: the latest plan of each device, its kind and its reasons. `gave_up`: why the run was abandoned;
    empty if it was not.
    """

    def __init__(self, rounds: OpenRun, ports: Ports, tell: Callable[[RunEvent], None]) -> None:
        self.rounds, self.phases, self.offers = rounds, RoundPhases(rounds), OfferMaker(rounds)
        self.traffic = RoundTraffic(ports.mqtt5)
        self.out = Outbound(ports, self.traffic)
        self.plans: dict[str, tuple[str, str]] = {}
        self.gave_up = ""
        self._max_devices = ports.max_devices
        self.state = RoundsState(self._rules)
        self.reception = Reception(
            rounds,
            ReceptionPorts(ports.clock, lambda device, get: self.out.send(device, "get", get), self.feed),
        )
        self._group = CommitGroup(rounds.store.contributions)
        self._strategies = {kind.name: kind.strategy for kind in rounds.task.kinds}
        self._offering = OfferPublisher(rounds, self.offers, self.out, ports.clock)
        self._clock = ports.clock
        self._tell = tell
        self._events: deque[events.Event] = deque()
        self._busy = False
        self._session = rounds.store.session
        self._receipts = Receipts(self.reception, self.out, ports.clock, tell)

    @property
    def _rules(self) -> Rules:
        return replace(self.rounds.progress.rules, max_contributions=self._max_devices)

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        saved = self.rounds.progress.saved()
        if saved:
            self.traffic.begin(self.rounds.store.contributions.traffic(saved.round))
        if self.rounds.registry.pending():
            self.rounds.registry.deploy()
        state, commands = machine.resume(self._rules, saved, self._clock())
        self._do(state, commands)
        self._drain()
        self._offering.started(self.state, saved.round if saved else 0)

    def feed(self, event: events.Event) -> None:
        """Takes an event, and executes its commands before it returns.

        An event that a command has caused waits until those before it are done.
        """
        if isinstance(event, events.DevicePresent | events.Forgotten):
            self._session.note(event)
        self._events.append(event)
        if not self._busy:
            self._drain()

    def settle(self) -> None:
        """Commits counted contributions and sends their receipts; drops those that the disk refuses."""
        try:
            self._group.settle()
        except RunFolderError as error:
            self._lost(error)
            self._drain()
        self._session.settle(self.state)
        self._receipts.pay()

    def forget(self, device: str) -> None:
        """Forgets a device that is away."""
        self.plans.pop(device, None)
        self.traffic.forget(device)
        self.out.forget(device)
        self.feed(events.Forgotten(self._clock(), device))

    def offer(self) -> None:
        """Publishes the current offer again: a broker may have lost it."""
        self._offering.everybody(self.state)

    def answer(self, device: str) -> None:
        """Sends the current offer to a device that has said hello."""
        self._offering.one(self.state, device)

    def go_back(self, to: int) -> None:
        """Serves an earlier round's model and continues from it; see `OpenRun.go_back`.

        Contributions of an open round get their receipts first, and then do not count. Raises RollbackError,
        RunFolderError.
        """
        self.settle()
        self.rounds.go_back(to)
        self.feed(events.RolledBack(self._clock(), self.rounds.progress.given_up()))

    def do_requested_rollback(self) -> None:
        """Does a rollback that was requested in the run folder; logs why, where it cannot."""
        to = rollback_request.requested_round(self.rounds.store.folder)
        if to is None:
            return
        try:
            self.go_back(to)
            log.warning("rolled back to the model of round %d, as requested", to)
        except RollbackError as error:
            log.warning("cannot roll back: %s", error)
        rollback_request.clear_request(self.rounds.store.folder, to)

    def farewell(self) -> Offer | None:
        """The offer to leave retained on the broker when the run is done; None when it is to be resumed."""
        return self.offers.farewell() if self.state.phase == "done" else None

    def reply(self, reply: events.Reply) -> None:
        """Sends a device the receipt of its contribution."""
        self._receipts.give(reply, self.state)

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
        contributions are dropped and the event is taken again without them. Raises RunFolderError when the
        run itself cannot go on.
        """
        before, self.state = self.state, state
        for command in commands:
            if not isinstance(command, _OF_ONE):
                try:
                    self._group.settle()
                except RunFolderError as error:
                    self._undo(before, event, error)
                    return
            try:
                self._one(command)
            except Exception as error:
                if not isinstance(command, _OF_ONE):
                    raise _stuck(command, error) from error
                if isinstance(command, events.StoreContribution):
                    self._undo(before, event, error)
                    return
                log.warning("update from %s: %s: %s", command.update.device, type(error).__name__, error)
                self.reception.release(command.update)

    def _undo(self, before: RoundsState, event: events.Event | None, error: Exception) -> None:
        """Goes back to the state before an event, because the disk refused contributions counted in it."""
        self.state = before
        own = event.update if isinstance(event, events.Validated) else None
        if event is not None and own is None:
            self._events.appendleft(event)
        self._lost(error, own)

    def _lost(self, error: Exception, uncounted: events.Update | None = None) -> None:
        """Drops all contributions that waited for their commit, and tells the machine that it failed.

        `uncounted`: one more that is dropped, which the state does not count.
        """
        lost = self._group.drop()
        for update in dict.fromkeys((*lost, uncounted) if uncounted else lost):
            log.warning("update from %s: %s: %s", update.device, type(error).__name__, error)
            self.reception.release(update)
        counted = tuple(update for update in lost if update != uncounted)
        self._events.appendleft(events.CommitFailed(self._clock(), counted))

    def _one(self, command: events.Command) -> None:
        match command:
            case events.Announce():
                self._announce(command)
            case events.Extend():
                self._extend(command)
            case events.GiveUp():
                self._give_up(command)
            case events.Invite():
                self._invite(command)
            case events.Fetch():
                self.reception.fetch(command.update, self.state.round)
            case events.StoreContribution():
                self._store(command)
            case events.Reply():
                self._group.then(lambda: self.reply(command))
            case events.DoPhase():
                self._do_phase(command)
            case events.Finish():
                self.rounds.registry.end_with(command.best)
                self._receipts.pay_all()
                self.offer()
                self._tell(Finished(self.rounds.run, self.state.round))

    def _announce(self, command: events.Announce) -> None:
        task, number = self.rounds.task, command.round
        if not command.again:
            self.phases.open(number)
            self.traffic.begin({})
        kinds = tuple(kind.name for kind in task.offered(number))
        deadline_s, count = self.state.deadline_s(number), self.state.contributions
        self._tell(RoundOpened(number, kinds, deadline_s, command.again, count))
        self._receipts.pay_all(said=self._offering.opened(self.state))

    def _extend(self, command: events.Extend) -> None:
        """Extends a round. Fruitless deadlines are stored: else a run that keeps crashing would never end."""
        state, number = self.state, command.round
        self.rounds.store.session.fruitless(number, state.fruitless)
        self._tell(
            RoundExtended(
                round=number,
                deadline_s=state.deadline_s(number),
                contributions=command.contributions,
                needed=self.rounds.task.min_contributions,
                devices=len(state.ready),
                fruitless=state.fruitless,
                left=state.extensions_left if state.fruitless else None,
            )
        )
        self._offering.extended(state)

    def _give_up(self, command: events.GiveUp) -> None:
        """Abandons the run. Stores 0 fruitless deadlines, so that a restart counts them from 0."""
        self.rounds.store.session.fruitless(command.round, 0)
        self.gave_up = abandoned_text(command, {device: why for device, (_, why) in self.plans.items()})

    def _invite(self, command: events.Invite) -> None:
        """Draws devices and offers them the round.

        The answer goes before all waiting events, because the next draw depends on it.
        """
        devices = draw(self.state, command, self.rounds.task.seed)
        if devices:
            self.rounds.store.session.ask(command.round, devices, self.state.rules.earliest(command.round))
            self._offering.each(self.state, devices)
        self._events.appendleft(events.Invited(self._clock(), command.round, devices))

    def _store(self, command: events.StoreContribution) -> None:
        """Adds a contribution to the commit group; its content is durable already, its receipt follows."""
        device = command.update.device
        message, moved = self.reception.message(command.update), self.traffic.of(device)
        stored = StoredContribution(
            device=device,
            round=message.round,
            into=command.into,
            kind=message.kind,
            num_examples=message.num_examples,
            metrics=message.metrics,
            why=self._why(command.update),
            blob=message.blob,
            body=message.body,
            form=message.form,
        )
        self._group.keep(command.update, stored, moved)
        self._group.then(lambda: self._tell(Contributed(record_of(stored, moved))))

    def _why(self, update: events.Update) -> str:
        """The reasons of the device's latest plan (sent when it changes), if the update is of its kind."""
        kind, why = self.plans.get(update.device, ("", ""))
        return why if kind.split(" ")[0] == update.kind else ""

    def _do_phase(self, command: events.DoPhase) -> None:
        number, phases, progress = command.round, self.phases, self.rounds.progress
        worked = events.PhaseDone(self._clock(), command.phase)
        match command.phase:
            case "merge":
                self._with_room(lambda: phases.merge(number, command.durations, command.early))
            case "evaluate":
                self._with_room(lambda: phases.evaluate(number))
            case "publish":
                duration_s = self._clock() - self.state.opened_s
                self._tell(self._with_room(lambda: phases.publish(number, self.traffic.all(), duration_s)))
                worked = replace(worked, score=progress.score(number), back=progress.restored(number))
        self._events.append(replace(worked, now=self._clock()))

    def _with_room(self, work: Callable[[], T]) -> T:
        """Does a phase of a round; if the disk refuses, deletes unfinished uploads and tries once more."""
        try:
            return work()
        except (BlobError, RunFolderError) as error:
            freed = self.reception.make_room()
            if not freed:
                raise
            log.warning("%s; %d bytes of unfinished uploads were removed, trying again", error, freed)
            return work()


def _stuck(command: events.Command, error: Exception) -> AggregatorError:
    """The error to raise where a command failed and the run cannot go on."""
    if isinstance(error, RunFolderError | DatabaseError):
        return error
    text = f"{type(error).__name__}: {printable(str(error))}"
    return RunFolderError(f"the run cannot go on at {command}: {text}; start again to retry")


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
