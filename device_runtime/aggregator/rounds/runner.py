"""Feeds the round machine and does what it commands, in its order. Not thread-safe, never waits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from device_runtime.aggregator.delivery.offering import Offering
from device_runtime.aggregator.delivery.outbound import Outbound, RoundTraffic
from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.intake.contributions import StoredContribution, record_of
from device_runtime.aggregator.intake.receipts import Receipts
from device_runtime.aggregator.intake.reception import Desk, Reception
from device_runtime.aggregator.storage import rollback_request
from device_runtime.aggregator.storage.run_files import SavedSession
from device_runtime.aggregator.views.listener import (
    Contributed,
    Finished,
    Happening,
    RoundExtended,
    RoundOpened,
)
from device_runtime.aggregator.views.text import in_vain, printable
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.messages import Offer
from device_runtime.strategies.kind import formed

from . import events as moves
from . import machine
from .commit_group import CommitGroup
from .events import Invite
from .ports import Ports
from .run import OpenRun
from .state import RoundsState, Rules

log = logging.getLogger(__name__)

T = TypeVar("T")

_OF_ONE = (moves.StoreContribution, moves.Fetch, moves.Reply)
"""Commands about one contribution: what goes wrong with it does not stop the run."""


class Conductor:
    """One run going on. `reception` takes contributions, `out` speaks to devices.

    `plans` are the latest by device: the kind, and why. `gave_up` says why the run was given up, if it was.
    """

    def __init__(self, rounds: OpenRun, ports: Ports, tell: Callable[[Happening], None]) -> None:
        self.rounds = rounds
        self.traffic = RoundTraffic(ports.mqtt5)
        self.out = Outbound(ports, self.traffic)
        self.plans: dict[str, tuple[str, str]] = {}
        self.gave_up = ""
        self._fruitless = 0
        self._most = ports.max_devices
        self.state = RoundsState(self._rules)
        self.reception = Reception(
            rounds, Desk(ports.clock, lambda device, get: self.out.send(device, "get", get), self.feed)
        )
        self._group = CommitGroup(rounds.store.contributions)
        self._strategies = {kind.name: kind.strategy for kind in rounds.task.kinds}
        self._offering = Offering(rounds, self.out, ports.clock)
        self._clock = ports.clock
        self._tell = tell
        self._events: deque[moves.Event] = deque()
        self._busy = False
        self._remembered = SavedSession(rounds.store)
        self._receipts = Receipts(self.reception, self.out, ports.clock, tell)

    @property
    def _rules(self) -> Rules:
        return replace(self.rounds.rules, max_contributions=self._most)

    def start(self) -> None:
        """Begin, or go on where the folder says."""
        saved = self.rounds.saved()
        if saved:
            self.traffic.begin(self.rounds.store.contributions.traffic(saved.round))
        if self.rounds.registry.pending():
            self.rounds.redeploy()
        state, commands = machine.resume(self._rules, saved, self._clock())
        self._fruitless = state.fruitless
        self._do(state, commands)
        self._drain()
        self._offering.started(self.state, saved.round if saved else 0)

    def feed(self, event: moves.Event) -> None:
        """Take an event; what it leads to is done when this returns, unless it came of a command itself."""
        self._events.append(event)
        if not self._busy:
            self._drain()

    def settle(self) -> None:
        """Commit what was counted and send its receipts; what the disk refuses is as if it had never come."""
        try:
            self._group.settle()
        except RunFolderError as error:
            self._lost(error)
            self._drain()
        self._remembered.settle(self.state)
        self._receipts.pay()

    def attend(self, device: str) -> None:
        """A device came, went, or is ready: the next life of the aggregator is to know it."""
        self._remembered.attend(device)

    def forget(self, device: str) -> None:
        """A device that is away need not be known any longer."""
        self.plans.pop(device, None)
        self.traffic.forget(device)
        self.out.forget(device)
        self.feed(moves.Forgotten(self._clock(), device))
        self._remembered.forget(device)

    def offer(self) -> None:
        """Publish where things are: a broker may have forgotten it."""
        self._offering.everybody(self.state)

    def answer(self, device: str) -> None:
        """Tell a device that has said hello where things are for it."""
        self._offering.one(self.state, device)

    def go_back(self, to: int) -> None:
        """Serve an earlier round's model and go on from it; see Rounds. Raises RollbackError, RunFolderError.

        What an open round has collected is settled first: it is receipted, and then does not count.
        """
        self.settle()
        self.rounds.go_back(to)
        self.feed(moves.RolledBack(self._clock(), self.rounds.given_up()))

    def heed(self) -> None:
        """Do what the owner of the machine has asked for in the run folder; what cannot be done is said."""
        if (to := rollback_request.taken(self.rounds.store.folder)) is None:
            return
        try:
            self.go_back(to)
            log.warning("went back to the model of round %d, as was asked for", to)
        except RollbackError as error:
            log.warning("cannot go back: %s", error)
        rollback_request.done(self.rounds.store.folder, to)

    def farewell(self) -> Offer | None:
        """What to leave behind on the broker; None when the run is to be resumed."""
        return self.rounds.farewell() if self.state.phase == "done" else None

    def reply(self, reply: moves.Reply) -> None:
        """Tell a device what became of its contribution."""
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
        self, state: RoundsState, commands: tuple[moves.Command, ...], event: moves.Event | None = None
    ) -> None:
        """Go to the state after an event; what cannot be kept is as if it had never come.

        Whatever rests on what was counted comes after its commit: if that fails, the event is taken again
        without it. Raises RunFolderError when the run itself cannot go on.
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
                if isinstance(command, moves.StoreContribution):
                    self._undo(before, event, error)
                    return
                log.warning("update from %s: %s: %s", command.update.device, type(error).__name__, error)
                self.reception.release(command.update)

    def _undo(self, before: RoundsState, event: moves.Event | None, error: Exception) -> None:
        """The disk has refused what was counted, with or without what this event has added to it."""
        self.state = before
        mine = event.update if isinstance(event, moves.Validated) else None
        if event is not None and mine is None:
            self._events.appendleft(event)
        self._lost(error, mine)

    def _lost(self, error: Exception, uncounted: moves.Update | None = None) -> None:
        """All that waited for its commit is gone, but for one that the state does not count anyway."""
        lost = self._group.drop()
        for update in dict.fromkeys((*lost, uncounted) if uncounted else lost):
            log.warning("update from %s: %s: %s", update.device, type(error).__name__, error)
            self.reception.release(update)
        counted = tuple(update for update in lost if update != uncounted)
        self._events.appendleft(moves.CommitFailed(self._clock(), counted))

    def _one(self, command: moves.Command) -> None:
        match command:
            case moves.Announce():
                self._announce(command)
            case moves.Extend():
                self._extend(command)
            case moves.GiveUp():
                self._give_up(command)
            case moves.Invite():
                self._invite(command)
            case moves.Fetch():
                self.reception.fetch(command.update, self.state.round)
            case moves.StoreContribution():
                self._keep(command)
            case moves.Reply():
                self._group.then(lambda: self.reply(command))
            case moves.DoPhase():
                self._work(command)
            case moves.Finish():
                self.rounds.finish(command.best)
                self._receipts.pay_all()
                self.offer()
                self._tell(Finished(self.rounds.run, self.state.round))

    def _announce(self, command: moves.Announce) -> None:
        task, number = self.rounds.task, command.round
        if not command.again:
            self.rounds.open(number)
            self.traffic.begin({})
            self._fruitless = 0
        kinds = tuple(kind.name for kind in task.offered(number))
        deadline_s, count = self.state.deadline_s(number), self.state.contributions
        self._tell(RoundOpened(number, kinds, deadline_s, command.again, count))
        self._receipts.pay_all(said=self._offering.opened(self.state))

    def _extend(self, command: moves.Extend) -> None:
        """How many deadlines were in vain is known after a crash too: else crashes make a run endless."""
        state, number = self.state, command.round
        if state.fruitless != self._fruitless:
            self.rounds.store.fruitless(number, state.fruitless)
            self._fruitless = state.fruitless
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

    def _give_up(self, command: moves.GiveUp) -> None:
        """Who starts it again wants it to be tried as often again."""
        self.rounds.store.fruitless(command.round, 0)
        self.gave_up = in_vain(command, {device: why for device, (_, why) in self.plans.items()})

    def _invite(self, command: moves.Invite) -> None:
        """The answer goes before whatever else waits: the next draw must know of this one."""
        devices = draw(self.state, command, self.rounds.task.seed)
        if devices:
            self.rounds.store.ask(command.round, devices, self.state.rules.earliest(command.round))
            self._offering.each(self.state, devices)
        self._events.appendleft(moves.Invited(self._clock(), command.round, devices))

    def _keep(self, command: moves.StoreContribution) -> None:
        """Content is durable already; the commit and then the receipt come with those of the group."""
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
            form=formed(self._strategies[message.kind], message.form).form,
        )
        self._group.keep(command.update, stored, moved)
        self._group.then(lambda: self._tell(Contributed(record_of(stored, moved))))

    def _why(self, update: moves.Update) -> str:
        """The reasons of the device's latest plan (sent when it changes), if this is what came of it."""
        kind, why = self.plans.get(update.device, ("", ""))
        return why if kind.split(" ")[0] == update.kind else ""

    def _work(self, command: moves.DoPhase) -> None:
        number, rounds = command.round, self.rounds
        worked = moves.PhaseDone(self._clock(), command.phase)
        match command.phase:
            case "merge":
                self._with_room(lambda: rounds.merge(number, command.durations, command.early))
            case "evaluate":
                self._with_room(lambda: rounds.evaluate(number))
            case "publish":
                duration_s = self._clock() - self.state.opened_s
                self._tell(self._with_room(lambda: rounds.publish(number, self.traffic.all(), duration_s)))
                worked = replace(worked, score=rounds.score(number), back=rounds.set_back(number))
        self._events.append(replace(worked, now=self._clock()))

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do a phase of a round, and do it again when the disk refused and uploads could make room for it."""
        try:
            return work()
        except (BlobError, RunFolderError) as error:
            freed = self.reception.make_room()
            if not freed:
                raise
            log.warning("%s; %d bytes of unfinished uploads were removed, trying again", error, freed)
            return work()


def _stuck(command: moves.Command, error: Exception) -> AggregatorError:
    if isinstance(error, RunFolderError | DatabaseError):
        return error
    text = f"{type(error).__name__}: {printable(str(error))}"
    return RunFolderError(f"the run cannot go on at {command}: {text}; start again to retry")


# FROM cohort: Which devices are asked for a round, where not all are: a draw that can be repeated.

PURPOSE = 0xC0407
"""Keeps these draws apart from all others of the same seed."""


def draw(state: RoundsState, invite: Invite, seed: int) -> tuple[str, ...]:
    """As many devices as are wanted, or as there are, of those that a round may ask; each as likely.

    Of those that are ready, neither asked for this round nor at work on an earlier one. The same for the
    same devices, task `seed`, round, and number of devices that were asked for the round before.
    """
    number = invite.round
    free = sorted(d for d in state.ready if state.asked.get(d) != number and d not in state.behind)
    before = sum(latest == number for latest in state.asked.values())
    rng = np.random.default_rng([seed, PURPOSE, number, before])
    chosen = rng.choice(len(free), size=min(invite.count, len(free)), replace=False)
    return tuple(free[i] for i in chosen)
