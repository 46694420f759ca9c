"""Events that the service reports to its observers: views, the files of a run, tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Protocol

from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import MODELLED, RESTS, Status
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import ACCURACY


@dataclass(frozen=True)
class ContributionRecord:
    """One counted contribution; a line of contributions.jsonl. Energy is as the device reports it.

    round: the round in which it counted.
    bytes_up, bytes_down: those of the device in that round, in whole MQTT packets; of several contributions
    of a device, the first has them and the others have 0.
    epsilon: the privacy budget spent on the device's samples so far; nan for an update that is not private.
    energy_source: the name of the meter, or "modelled".
    energy_uncertainty: a fraction; nan if not reported.
    variant: the form of the kind that was sent, as "epochs=2"; empty if the kind has one.
    """

    round: int
    device: str
    kind: str
    num_examples: int
    train_loss: float
    train_time_s: float
    energy_j: float
    peak_memory_bytes: int
    bytes_up: int
    bytes_down: int
    why: str
    epsilon: float = nan
    energy_source: str = MODELLED
    energy_uncertainty: float = nan
    variant: str = ""


@dataclass(frozen=True)
class RoundRecord:
    """One closed round; a line of rounds.jsonl.

    eval_acc, eval_loss: of the served model; nan without evaluation data. eval_acc is the metric that
    `metric` names; metrics: further ones of the served model, by name.
    base_eval_acc: of the next base; nan without evaluation data.
    train_loss: the mean over the contributions that have a loss, weighted by num_examples.
    energy_j, train_time_s: sums over the contributions.
    bytes_up, bytes_down: sums over all devices, also those that did not contribute.
    deadline_s: fixed or learnt; nan without a deadline.
    central_epsilon: what the run has spent of its privacy budget by the noise of mask helpers; nan without.
    held_out_acc: on `held_out_samples` samples that devices held out, of the head that the round before
    served (`held_out_head`: "closed-form" or "trained"), on the base that this round distributed;
    held_out_other_acc: of the other head, on the same samples and base; nan without.
    """

    round: int
    eval_acc: float
    eval_loss: float
    base_eval_acc: float
    train_loss: float
    participants: int
    energy_j: float
    train_time_s: float
    bytes_up: int
    bytes_down: int
    duration_s: float
    deadline_s: float = nan
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)
    central_epsilon: float = nan
    held_out_acc: float = nan
    held_out_samples: int = 0
    held_out_head: str = ""
    held_out_other_acc: float = nan

    @property
    def held_out_of(self) -> str:
        """The model that `held_out_acc` is of, for people."""
        if self.held_out_head == "closed-form":
            return f"the closed-form head of round {self.round - 1} on the base of round {self.round}"
        return f"the model of round {self.round - 1}"

    @property
    def held_out_other_head(self) -> str:
        """The head that `held_out_other_acc` is of."""
        return "trained" if self.held_out_head == "closed-form" else "closed-form"


@dataclass(frozen=True)
class RoundClosed:
    """A round is closed and its model published.

    note: what was unusual; empty for nothing.
    at: when, in seconds since 1970; nan for rounds of releases that did not keep it.
    """

    record: RoundRecord
    contributions: tuple[ContributionRecord, ...]
    note: str = ""
    at: float = nan


@dataclass(frozen=True)
class Started:
    """The service has started.

    resumed: the run existed already.
    closed: the closed rounds of the run.
    manifest: the bundle's, as it was read at the start; None where no observer needs it.
    model_bytes: what a device fetches before its first round, the bundle and the first base.
    """

    task: Task
    run: str
    resumed: bool
    closed: tuple[RoundClosed, ...]
    manifest: Manifest | None = None
    model_bytes: int = 0


@dataclass(frozen=True)
class RoundOpened:
    """A round is open. `again`: it was open before a restart, and has `contributions` already."""

    round: int
    kinds: tuple[str, ...]
    deadline_s: float
    again: bool = False
    contributions: int = 0


@dataclass(frozen=True)
class RoundExtended:
    """The deadline passed with too few contributions; the new one is `deadline_s` seconds from now.

    devices: the number of devices that are ready.
    fruitless: the number of deadlines in a row that brought no contribution though devices were ready.
    left: the number of further fruitless deadlines after which the run ends; None: no number does, or a
    learnt deadline is made longer first.
    """

    round: int
    deadline_s: float
    contributions: int
    needed: int
    devices: int = 1
    fruitless: int = 0
    left: int | None = None

    @property
    def outlook(self) -> str:
        """Text to append that says how the run continues; empty after a deadline that was not fruitless."""
        if not self.devices:
            return "; no device is there, waiting for one"
        if self.left is not None:
            more = "1 more deadline" if self.left == 1 else f"{self.left} more deadlines"
            return f"; the run ends after {more} without any"
        return "; this deadline is a longer one" if self.fruitless else ""


@dataclass(frozen=True)
class SumsAwaited:
    """A round waits for mask helpers, which have not answered for some of its sums.

    sums: the number of those. deadlines: the number of deadlines in a row that brought no answer.
    left: the number of further ones after which the run ends; None: no number does.
    """

    round: int
    helpers: tuple[str, ...]
    sums: int
    deadlines: int = 0
    left: int | None = None

    @property
    def text(self) -> str:
        """Whom the round waits for, and how the run continues."""
        many = "s" if len(self.helpers) > 1 else ""
        waits = f"waits for mask helper{many} {', '.join(self.helpers)}"
        if self.left is None:
            return waits
        more = "1 more deadline" if self.left == 1 else f"{self.left} more deadlines"
        return f"{waits}; the run ends after {more} without an answer"


@dataclass(frozen=True)
class DeviceSeen:
    """A device came or went. The profile and what follows are empty until it has said hello."""

    device: str
    online: bool
    profile: str = ""
    num_examples: int = 0
    engine: str = ""
    memory_bytes: int = 0
    battery_percent: int | None = None
    tags: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class PlanReported:
    """A device's plan, with the costs that it predicts; `kind` is empty when it sits out."""

    device: str
    round: int
    kind: str
    seconds: float
    memory_bytes: int
    energy_j: float
    reasons: tuple[str, ...]

    @property
    def rests(self) -> bool:
        """Whether the device sends nothing because nothing of it is wanted, as its first reason says."""
        return not self.kind and bool(self.reasons) and self.reasons[0].startswith(RESTS)


@dataclass(frozen=True)
class Contributed:
    """A contribution is stored and counts. The bytes are those of the device in the round so far."""

    record: ContributionRecord


@dataclass(frozen=True)
class ContributionRefused:
    """A contribution does not count: refused, late, or a duplicate of one that does."""

    device: str
    round: int
    kind: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Finished:
    """The last round is closed. `run` as in Started, `rounds`: the number of the last one."""

    run: str
    rounds: int


RunEvent = (
    Started
    | RoundOpened
    | RoundExtended
    | SumsAwaited
    | DeviceSeen
    | PlanReported
    | Contributed
    | ContributionRefused
    | RoundClosed
    | Finished
)


class Observer(Protocol):
    """A callable that takes events, in the service's own thread: it must be quick. Its errors are logged."""

    def __call__(self, event: RunEvent) -> None: ...
