"""One round's work on the device: choose, train, step down rather than miss the deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models.engine import DeviceModel
from profiles import DeviceProfile, Workload
from strategies.kind import AnyStrategy, Contribution, LocalData, OutOfTime, Run

from .choose import Candidate, Plan, choose
from .errors import OutOfMemory
from .watching import Watcher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """What the offer asks. `deadline` is on the device's own clock, in seconds, uploads included."""

    kinds: tuple[AnyStrategy, ...]
    seed: int
    deadline: float


@dataclass(frozen=True)
class Equipment:
    """What the device has to work with."""

    name: str
    model: DeviceModel
    data: LocalData
    workload: Workload
    watcher: Watcher
    clock: Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """What came of it. `contribution` is None when the device sat out; `plan` is the one that was kept.

    `train_time_s` covers scoring and training; `energy_j` is modelled from the profile's load power.
    """

    plan: Plan
    contribution: Contribution | None
    train_time_s: float = 0.0
    energy_j: float = 0.0
    peak_memory_bytes: int = 0
    gave_up: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this and nothing richer, what was given up on the way included."""
        return (*self.plan.reasons, *self.gave_up)


def perform(equipment: Equipment, profile: DeviceProfile, assignment: Assignment) -> Outcome:
    """Train the richest update that fits; when the clock or the memory says no midway, the next that fits."""
    kinds = assignment.kinds
    gave_up: tuple[str, ...] = ()
    while True:
        remaining = assignment.deadline - equipment.clock()
        plan = choose(profile, kinds, equipment.workload, remaining)
        if plan.chosen is None:
            return Outcome(plan, None, gave_up=gave_up)
        equipment.watcher.start()
        began = equipment.clock()
        try:
            contribution = _train(equipment, plan.chosen, profile, assignment)
        except (OutOfTime, OutOfMemory) as error:
            gave_up = (*gave_up, f"{plan.chosen.label} given up: {error}")
            log.warning(gave_up[-1])
            kinds = cheaper(kinds, plan.chosen)
            continue
        seconds = equipment.clock() - began
        return Outcome(
            plan,
            contribution,
            train_time_s=seconds,
            energy_j=seconds * profile.power.load_w,
            peak_memory_bytes=equipment.watcher.peak_bytes,
            gave_up=gave_up,
        )


def _train(
    equipment: Equipment, chosen: Candidate, profile: DeviceProfile, assignment: Assignment
) -> Contribution:
    upload_s = chosen.cost.bytes_up / profile.bandwidth.up if chosen.cost else 0.0
    run = Run(assignment.seed, equipment.name, equipment.clock, assignment.deadline - upload_s)
    return chosen.strategy.train(equipment.model, equipment.data, run)


def cheaper(kinds: Sequence[AnyStrategy], failed: Candidate) -> tuple[AnyStrategy, ...]:
    """The forms after the failed one, in the same order of preference."""
    forms = [form for kind in kinds for form in kind.variants()]
    return tuple(forms[forms.index(failed.strategy) + 1 :])


def corrected(profile: DeviceProfile, outcome: Outcome, rate: float = 0.3) -> Mapping[str, float]:
    """The profile's corrections after this round: a moving average of measured over predicted seconds.

    Held between 0.1 and 10, so that one freak round cannot shut a kind out for good.
    """
    chosen = outcome.plan.chosen
    if chosen is None or chosen.cost is None or outcome.contribution is None or chosen.cost.compute_s <= 0:
        return profile.corrections
    old = profile.corrections.get(chosen.kind, 1.0)
    seen = old * outcome.train_time_s / chosen.cost.compute_s
    new = min(10.0, max(0.1, (1 - rate) * old + rate * seen))
    return {**profile.corrections, chosen.kind: new}
