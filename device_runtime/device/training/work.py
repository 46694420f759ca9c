"""One round's work on a device: choose a form of update, train it, and step down if it does not fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import Protocol

from device_runtime.device.energy import Account, Energy
from device_runtime.device.engine.engine_guard import EngineGuard
from device_runtime.device.errors import OutOfMemory, WorkerDeath
from device_runtime.device.policy.privacy_budget import PrivacyGuard
from device_runtime.device.selection.choose import (
    MARGIN,
    NO_LOADS,
    RICHEST,
    Candidate,
    ChoicePolicy,
    Loads,
    UpdateChoice,
    UploadTerms,
    choose,
    priced,
)
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError
from device_runtime.profiles import DeviceProfile, Power
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import (
    NO_TENSORS,
    LocalData,
    OutOfTime,
    Run,
    Update,
)
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.statistics import kind_statistics
from device_runtime.strategies.terms.accountant import PrivacyError

log = logging.getLogger(__name__)


FADE = 0.1
"""Share of a correction of time that is forgotten in each round in which the kind is not tried."""


class ClosedWhilePaused(OutOfTime):
    """The round closed while the work was paused, so its duration is not known."""

    def __init__(self, text: str) -> None:
        super().__init__(text, nan)


@dataclass(frozen=True)
class Decision:
    """What is tried now.

    `room_bytes`: bytes that can be sent before the update, within the plan's time.
    """

    plan: UpdateChoice
    gave_up: tuple[str, ...]
    room_bytes: float

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this and nothing richer, including what was given up before."""
        return (*self.plan.reasons, *self.gave_up)


@dataclass(frozen=True)
class Listener:
    """Callbacks of the work: `progress` as in Run, `decided` before anything is tried.

    `pause_s` gives the seconds that the work has been paused, as in Run.
    """

    progress: Callable[[float], None]
    decided: Callable[[Decision], None]
    pause_s: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True)
class Assignment:
    """What the offer asks. `closes_at` is on the device's own clock, in seconds, and includes the upload.

    `unfetched_loads`: workloads of models that were not fetched, to say why they were not. `pause_s` as in
    Listener. `deaths`: forms that were tried already and ended the worker process. `upload_terms`
    as in `choose`.
    """

    kinds: tuple[AnyStrategy, ...]
    seed: int
    closes_at: float
    decided: Callable[[Decision], None] = lambda _: None
    unfetched_loads: Loads = field(default_factory=lambda: NO_LOADS)
    pause_s: Callable[[], float] = lambda: 0.0
    deaths: tuple[WorkerDeath, ...] = ()
    policy: ChoicePolicy = RICHEST
    upload_terms: UploadTerms | None = None


class AssignmentWorker(Protocol):
    """Does an assignment: a device with its equipment, or a simulated one on a virtual clock."""

    @property
    def loads(self) -> Loads:
        """Workloads of the task with the samples and models here; by member, the main one's by ""."""

    @property
    def clock(self) -> Callable[[], float]:
        """In seconds; it may stop while the work is paused, see Assignment.pause_s."""

    @property
    def peak_bytes(self) -> int:
        """The most memory held since `begin`."""

    def begin(self) -> None:
        """Begin a new piece of work."""

    def energy(self, power: Power, seconds: float) -> Energy:
        """Energy since `begin`, which was `seconds` ago.

        It is modelled from `power` if no meter tells.
        """

    def forbidden_reason(self, strategy: AnyStrategy) -> str:
        """Why this form must not be trained here; empty when it may be."""

    def epsilon_spent(self, strategy: AnyStrategy) -> float:
        """Epsilon spent so far on the samples here, at this form's delta; nan if it is not private."""

    def train(self, chosen: Candidate, seed: int, upload_at: float) -> tuple[AnyStrategy, Update]:
        """Train; returns the form that it was in the end (see `EndsEarly.stopped`), and the update.

        Raises OutOfTime, OutOfMemory, PrivacyError; EngineError, BundleError; TensorError for one that
        diverged.
        """


@dataclass(frozen=True)
class Timing:
    """Seconds of computing of one attempt at a kind of update, as predicted and as measured."""

    kind: str
    predicted_s: float
    seconds: float


NO_ENERGY = Energy()
"""Of a device that has done nothing."""


@dataclass(frozen=True)
class WorkOutcome:
    """The result of a round's work. `update` is None when the device sat out.

    `plan` is the last one tried. `train_time_s` covers scoring and training, and attempts that were given up;
    so does `energy`, of the whole device if it was measured so. `timings` are of each attempt whose whole
    duration is known. `epsilon` is the privacy spent on the samples so far, if the update is private.
    `out_of_memory_kinds`: kinds given up for lack of memory.
    """

    plan: UpdateChoice
    update: Update | None
    train_time_s: float = 0.0
    energy: Energy = NO_ENERGY
    peak_memory_bytes: int = 0
    gave_up: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    epsilon: float = nan
    out_of_memory_kinds: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        return self.energy.joules

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this and nothing richer, including what was given up before."""
        return (*self.plan.reasons, *self.gave_up)


def train_richest(worker: AssignmentWorker, profile: DeviceProfile, assignment: Assignment) -> WorkOutcome:
    """Train the richest update that fits; if time, memory or the engine fails, try the next."""
    kinds, gave_up, out_of_memory_kinds = _survived(assignment)
    timings: tuple[Timing, ...] = ()
    unfetched = assignment.unfetched_loads
    worker.begin()
    began = worker.clock()
    while True:
        attempt = worker.clock()
        left_s = assignment.closes_at - assignment.pause_s() - attempt
        plan = choose(
            profile,
            kinds,
            worker.loads,
            left_s,
            worker.forbidden_reason,
            unfetched,
            assignment.policy,
            assignment.upload_terms,
        )
        chosen = plan.chosen
        assignment.decided(Decision(plan, gave_up, _room_bytes(chosen, profile, left_s)))
        update = None
        if chosen is not None:
            try:
                upload_at = _upload_at(chosen, profile, assignment)
                done, update = worker.train(chosen, assignment.seed, upload_at)
                if done is not chosen.strategy:
                    loads = {**unfetched, **worker.loads}
                    plan = plan.ended_as(done, priced(done, loads, profile))
                    chosen = plan.chosen or chosen
                timings += _timing(chosen, worker.clock() - attempt)
            except (OutOfTime, OutOfMemory, PrivacyError, ModelError, OwnCodeError) as error:
                gave_up = (*gave_up, f"{chosen.label} given up: {error}")
                log.warning(gave_up[-1])
                timings += _timing(chosen, error.whole_s) if isinstance(error, OutOfTime) else ()
                out_of_memory_kinds += (chosen.kind,) if isinstance(error, OutOfMemory) else ()
                kinds = cheaper(kinds, chosen)
                continue
        seconds = worker.clock() - began
        energy = worker.energy(profile.power, seconds)
        epsilon = nan if chosen is None else worker.epsilon_spent(chosen.strategy)
        peak = worker.peak_bytes
        return WorkOutcome(
            plan, update, seconds, energy, peak, gave_up, timings, epsilon, out_of_memory_kinds
        )


def _survived(
    assignment: Assignment,
) -> tuple[tuple[AnyStrategy, ...], tuple[str, ...], tuple[str, ...]]:
    """The forms left to try, what was given up and why, and the kinds given up for lack of memory."""
    forms = tuple(form for kind in assignment.kinds for form in kind.variants())
    gave_up = tuple(f"{death.label} given up: {death.why}" for death in assignment.deaths)
    out_of_memory_kinds: tuple[str, ...] = ()
    for death in assignment.deaths:
        labels = [Candidate(form, None, ()).label for form in forms]
        if death.label not in labels:
            return (), gave_up, out_of_memory_kinds
        place = labels.index(death.label)
        out_of_memory_kinds += (forms[place].name,) if death.memory else ()
        forms = forms[place + 1 :]
    return forms if assignment.deaths else assignment.kinds, gave_up, out_of_memory_kinds


def _room_bytes(chosen: Candidate | None, profile: DeviceProfile, left_s: float) -> float:
    """Bytes that the link carries in the time that a plan may fill, minus the update."""
    bytes_up = chosen.cost.bytes_up if chosen and chosen.cost else 0
    return MARGIN * left_s * profile.bandwidth.up - bytes_up


def _upload_at(chosen: Candidate, profile: DeviceProfile, assignment: Assignment) -> float:
    """When training must end for the upload to be in time."""
    upload_s = chosen.cost.bytes_up / profile.bandwidth.up if chosen.cost else 0.0
    return assignment.closes_at - upload_s


def _timing(chosen: Candidate, seconds: float) -> tuple[Timing, ...]:
    predicted = chosen.cost.compute_s if chosen.cost else 0.0
    return (Timing(chosen.kind, predicted, seconds),) if predicted > 0 and isfinite(seconds) else ()


def cheaper(kinds: Sequence[AnyStrategy], failed: Candidate) -> tuple[AnyStrategy, ...]:
    """The forms after the failed one, in the same order of preference."""
    forms = [form for kind in kinds for form in kind.variants()]
    labels = [Candidate(form, None, ()).label for form in forms]
    return tuple(forms[labels.index(Candidate(failed.strategy, None, ()).label) + 1 :])


def corrected(profile: DeviceProfile, outcome: WorkOutcome, rate: float = 0.3) -> Mapping[str, float]:
    """The profile's corrections after this round: a moving average of measured over predicted seconds.

    An attempt that ran out of time counts too, or it would be repeated in vain in each round. Corrections
    stay between 0.1 and 10. One of a kind that was too slow to be tried fades by `FADE` each round: one slow
    moment does not shut a kind out for good.
    """
    tried = {timing.kind for timing in outcome.timings}
    corrections = {
        kind: old if kind in tried or old <= 1 else 1 + (1 - FADE) * (old - 1)
        for kind, old in profile.corrections.items()
    }
    for timing in outcome.timings:
        old = corrections.get(timing.kind, 1.0)
        measured = profile.corrections.get(timing.kind, 1.0) * timing.seconds / timing.predicted_s
        corrections[timing.kind] = min(10.0, max(0.1, (1 - rate) * old + rate * measured))
    return corrections


@dataclass(frozen=True)
class RealWorker:
    """What a real device works with; see `AssignmentWorker`. `models` by member, the main one by "".

    `memory` gives the strategy state of a kind, `aside` are the tensors sent beside the base, `round` and
    `rare` are the offer's; `guard` charges the samples' privacy before training, `account` measures the
    energy.
    """

    name: str
    models: Mapping[str, DeviceModel]
    data: LocalData
    loads: Loads
    engine_guard: EngineGuard
    clock: Callable[[], float]
    guard: PrivacyGuard
    progress: Callable[[float], None] = lambda _: None
    memory: Callable[[str], Tensors] = lambda _: NO_TENSORS
    aside: Tensors = field(default_factory=lambda: NO_TENSORS)
    account: Account = field(default_factory=Account)
    pause_s: Callable[[], float] = lambda: 0.0
    round: int = 0
    rare: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        return self.engine_guard.peak_bytes

    def begin(self) -> None:
        self.engine_guard.start()
        self.account.begin()

    def energy(self, power: Power, seconds: float) -> Energy:
        return self.account.end(power, seconds)

    def forbidden_reason(self, strategy: AnyStrategy) -> str:
        return self.guard.forbidden_reason(strategy, len(self.data))

    def epsilon_spent(self, strategy: AnyStrategy) -> float:
        return self.guard.epsilon_spent(strategy)

    def train(self, chosen: Candidate, seed: int, upload_at: float) -> tuple[AnyStrategy, Update]:
        strategy = chosen.strategy
        model, memory = self.models[strategy.member], self.memory(strategy.name)
        run = Run(
            seed,
            self.name,
            self.clock,
            upload_at,
            self.progress,
            memory,
            self.aside,
            pause_s=self.pause_s,
            round=self.round,
            rare=self.rare,
        )
        self.guard.before(strategy, len(self.data))
        try:
            with own_code(type(strategy)):
                trained = kind_statistics.train(strategy, model, self.data, run)
                check(trained.tensors, kind_statistics.expected(strategy, model.manifest))
        except (OutOfTime, OutOfMemory, MemoryError, ModelError, OwnCodeError) as error:
            self.engine_guard.clear(model)
            if isinstance(error, MemoryError):  # see bounded.limit_memory
                raise OutOfMemory(f"no more memory is available: {error}") from None
            raise
        form = trained.variant or strategy.variant
        return _ended(strategy, form), replace(trained, variant=form)


def _ended(strategy: AnyStrategy, form: str) -> AnyStrategy:
    """The form with this name that remained when the clock stopped it, to a hundredth of its work."""
    if form == strategy.variant:
        return strategy
    left = (capabilities.stopped(strategy, n / 100) for n in range(1, 100))
    return next((part for part in left if part is not None and part.variant == form), strategy)
