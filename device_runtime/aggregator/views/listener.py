"""What the service tells whoever listens: a view, the files of a run, tests."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Protocol

from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import Status
from device_runtime.models.bundles.manifest import Manifest

MODELLED = "modelled"
"""The source of energy that no meter has measured."""


@dataclass(frozen=True)
class ContributionRecord:
    """One counted contribution; a line of contributions.jsonl. Energy is the device's own figure.

    `round` is the round it counted in. `bytes_up` and `bytes_down` are those of the device in that round,
    whole MQTT packets; they stand at the first of several contributions, the others have 0. `epsilon` is what
    the device has spent of its samples' privacy, nan for an update that is not private. `energy_source` names
    the meter, "modelled" where there was none; `energy_uncertainty` is a fraction, nan where it is not told.
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


@dataclass(frozen=True)
class RoundRecord:
    """One closed round; a line of rounds.jsonl. Without evaluation data its figures are nan.

    `eval_*` are of the served model, `base_eval_acc` of the distributed one. `train_loss` is the mean over
    the contributions that have one, by num_examples. `energy_j`, `train_time_s` (of all devices together),
    `bytes_up` and `bytes_down` are sums; the bytes are those of every device, contributor or not.
    `deadline_s` is the time that the round had, fixed or learnt; nan where it had as much as it needed.
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


@dataclass(frozen=True)
class RoundClosed:
    """A round is over and published. `note` says what was odd about it; empty when nothing was."""

    record: RoundRecord
    contributions: tuple[ContributionRecord, ...]
    note: str = ""


@dataclass(frozen=True)
class Started:
    """The service runs. `closed`: the rounds of earlier lives of this run; `resumed`: there was one.
    `manifest`: of the bundle that it goes by, whatever becomes of its files; None where nobody asks.
    """

    task: Task
    run: str
    resumed: bool
    closed: tuple[RoundClosed, ...]
    manifest: Manifest | None = None


@dataclass(frozen=True)
class RoundOpened:
    """`again`: it was open before a restart, and has `contributions` already."""

    round: int
    kinds: tuple[str, ...]
    deadline_s: float
    again: bool = False
    contributions: int = 0


@dataclass(frozen=True)
class RoundExtended:
    """The deadline passed with too few contributions; it begins anew, `deadline_s` seconds from now.

    `devices` are there. `fruitless` deadlines in a row have brought no contribution though some were; `left`
    more of them end the run (None: no number does, or not yet, as a learnt deadline is made longer).
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
        """How it goes on, to follow the figures in a text; empty where that was a deadline as any other."""
        if not self.devices:
            return "; no device is there, waiting for one"
        if self.left is not None:
            more = "1 more deadline" if self.left == 1 else f"{self.left} more deadlines"
            return f"; the run ends after {more} without any"
        return "; this deadline is a longer one" if self.fruitless else ""


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


@dataclass(frozen=True)
class PlanMade:
    """What a device decided, by its own prediction; `kind` is empty when it sits out."""

    device: str
    round: int
    kind: str
    seconds: float
    memory_bytes: int
    energy_j: float
    reasons: tuple[str, ...]


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
    """The last round is closed. `run` and `rounds` as in Started."""

    run: str
    rounds: int


Happening = (
    Started
    | RoundOpened
    | RoundExtended
    | DeviceSeen
    | PlanMade
    | Contributed
    | ContributionRefused
    | RoundClosed
    | Finished
)


class Observer(Protocol):
    """Called in the service's own thread: it must not take long. What it raises is logged, not obeyed."""

    def __call__(self, happening: Happening) -> None: ...
