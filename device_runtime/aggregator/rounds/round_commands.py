"""Executes the machine's commands about a round: opens it, asks devices, merges, and ends the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from device_runtime.aggregator.delivery.offering import OfferPublisher
from device_runtime.aggregator.delivery.offers import OfferMaker
from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.views.listener import Finished, RoundExtended, RoundOpened
from device_runtime.aggregator.views.text import abandoned_text
from device_runtime.broker.errors import BlobError

from .contribution_commands import ContributionCommands
from .events import (
    Announce,
    DoPhase,
    Event,
    Extend,
    Finish,
    GiveUp,
    Invite,
    Invited,
    PhaseDone,
    RoundCommand,
)
from .phases import RoundPhases
from .ports import Ports
from .run import OpenRun
from .state import RoundsState

log = logging.getLogger(__name__)

T = TypeVar("T")

COHORT_DRAW = 0xC0407
"""Keeps the draws of devices apart from all others of the same seed."""


class RoundCommands:
    """The rounds of one run. `gave_up`: why the run was abandoned; empty if it was not."""

    def __init__(
        self, rounds: OpenRun, contributions: ContributionCommands, out: Outbound, ports: Ports
    ) -> None:
        self.phases, self.offers = RoundPhases(rounds), OfferMaker(rounds)
        self.offering = OfferPublisher(rounds, self.offers, out, ports.clock)
        self.gave_up = ""
        self._rounds, self._contributions, self._ports = rounds, contributions, ports
        self._traffic = out.traffic

    def do(self, command: RoundCommand, state: RoundsState) -> Event | None:
        """Executes a command in this state. Returns the event that answers it, if any."""
        match command:
            case Announce():
                self._announce(command, state)
            case Extend():
                self._extend(command, state)
            case GiveUp():
                self._give_up(command)
            case Invite():
                return self._invite(command, state)
            case DoPhase():
                return self._do_phase(command, state)
            case Finish():
                self._rounds.registry.end_with(command.best)
                self._contributions.receipts.pay_all()
                self.offering.everybody(state)
                self._ports.tell(Finished(self._rounds.run, state.round))
        return None

    def _announce(self, command: Announce, state: RoundsState) -> None:
        number = command.round
        if not command.again:
            self.phases.open(number)
            self._traffic.begin({})
        kinds = tuple(kind.name for kind in self._rounds.task.offered(number))
        deadline_s, count = state.deadline_s(number), state.contributions
        self._ports.tell(RoundOpened(number, kinds, deadline_s, command.again, count))
        self._contributions.receipts.pay_all(said=self.offering.opened(state))

    def _extend(self, command: Extend, state: RoundsState) -> None:
        """Extends a round. Fruitless deadlines are stored: else a run that keeps crashing would never end."""
        number = command.round
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

    def _give_up(self, command: GiveUp) -> None:
        """Abandons the run. Stores 0 fruitless deadlines, so that a restart counts them from 0."""
        self._rounds.store.session.fruitless(command.round, 0)
        plans = self._contributions.statements.plans
        self.gave_up = abandoned_text(command, {device: why for device, (_, why) in plans.items()})

    def _invite(self, command: Invite, state: RoundsState) -> Invited:
        """Draws devices and offers them the round."""
        devices = draw(state, command, self._rounds.task.seed)
        if devices:
            self._rounds.store.session.ask(command.round, devices, state.rules.earliest(command.round))
            self.offering.each(state, devices)
        return Invited(self._ports.clock(), command.round, devices)

    def _do_phase(self, command: DoPhase, state: RoundsState) -> PhaseDone:
        number, phases, progress = command.round, self.phases, self._rounds.progress
        match command.phase:
            case "merge":
                self._with_room(lambda: phases.merge(number, command.durations, command.early))
            case "evaluate":
                self._with_room(lambda: phases.evaluate(number))
            case "publish":
                traffic, duration_s = self._traffic.all(), self._ports.clock() - state.opened_s
                self._ports.tell(self._with_room(lambda: phases.publish(number, traffic, duration_s)))
                score, back = progress.score(number), progress.restored(number)
                return PhaseDone(self._ports.clock(), "publish", score, back)
        return PhaseDone(self._ports.clock(), command.phase)

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


def draw(state: RoundsState, invite: Invite, seed: int) -> tuple[str, ...]:
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
