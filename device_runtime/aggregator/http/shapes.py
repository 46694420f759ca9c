"""What HTTP answers with. Times are seconds since 1970, UTC; a figure that was not measured is null."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from device_runtime.aggregator.views.listener import MODELLED
from device_runtime.broker.wire.messages import Status

Phase = Literal["starting", "waiting", "collecting", "finished"]
Doing = Literal["", "planned", "sits out", "sent", "late", "refused"]


def measured(value: float) -> float | None:
    """The number, or None where there is none."""
    return value if isfinite(value) else None


@dataclass(frozen=True)
class DeviceStatus:
    """One device of the fleet.

    `kind` and `why` are of its latest plan, contribution or refusal, in round `round`; `kind` is empty when
    it sits out. `predicted_s` is by its own plan, `train_s` and `energy_j` were told with its latest
    contribution: the energy by the meter `energy_source`, or "modelled", to within a fraction of it.
    `last_seen` is null for one known from earlier lives of the run only. `battery_percent` is null where
    there is none, or it does not say.
    """

    device: str
    online: bool = True
    profile: str = ""
    engine: str = ""
    num_examples: int = 0
    memory_bytes: int = 0
    battery_percent: int | None = None
    doing: Doing = ""
    round: int = 0
    kind: str = ""
    why: str = ""
    predicted_s: float | None = None
    train_s: float | None = None
    energy_j: float | None = None
    energy_source: str = MODELLED
    energy_uncertainty: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    contributions: int = 0
    not_counted: int = 0
    last_seen: float | None = None


@dataclass(frozen=True)
class KindFigures:
    """What the contributions of one kind came to in a round: sums over them."""

    contributions: int = 0
    num_examples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    energy_j: float = 0.0
    train_s: float = 0.0


@dataclass(frozen=True)
class RoundStatus:
    """A closed round. `accuracy` and `loss` are of the served model, `base_accuracy` of the distributed one.

    `closed_at` is null for rounds of earlier lives of the run.
    """

    round: int
    closed_at: float | None
    accuracy: float | None
    loss: float | None
    base_accuracy: float | None
    train_loss: float | None
    participants: int
    bytes_up: int
    bytes_down: int
    energy_j: float
    train_s: float
    duration_s: float
    note: str
    kinds: dict[str, KindFigures]


@dataclass(frozen=True)
class TaskStatus:
    """Where a task is now. `version` grows with everything that happens.

    `closes_at` is when the open round's deadline passes; `extended` counts how often that has been put off.
    `contributions` is by kind, in the open round; `not_counted` how many were late, refused or came again.
    """

    task: str
    run: str = ""
    version: int = 0
    phase: Phase = "starting"
    round: int = 0
    rounds: int = 0
    offered: tuple[str, ...] = ()
    opened_at: float | None = None
    closes_at: float | None = None
    moved_at: float | None = None
    deadline_s: float | None = None
    extended: int = 0
    needed: int = 0
    contributions: dict[str, int] = field(default_factory=dict)
    not_counted: int = 0
    sitting_out: int = 0
    devices: int = 0
    online: int = 0
    closed_rounds: int = 0
    accuracy: float | None = None
    loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    energy_j: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class LogEntry:
    """A contribution in the log, counted or not. `id` grows; `at` is null where it was not seen to come.

    `round` is the round that it counted in, or was made for when it did not count. `why` is the device's
    reason for its choice of this kind, or why it did not count.
    """

    id: int
    at: float | None
    round: int
    device: str
    kind: str
    status: Status
    why: str
    num_examples: int | None = None
    train_loss: float | None = None
    train_s: float | None = None
    energy_j: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None


@dataclass(frozen=True)
class ModelVersion:
    """The model that a round served. `kept`: it is there, and can be gone back to; `served`: deployed now."""

    round: int
    since: float | None
    accuracy: float | None
    loss: float | None
    sha256: str
    size: int
    kept: bool
    served: bool
    note: str


@dataclass(frozen=True)
class RollbackAnswer:
    """The aggregator has been asked to go back to the model of this round; `versions` tells when it has."""

    round: int


@dataclass(frozen=True)
class TaskInfo:
    """A task of this service. `settings` are those of its task file, with the defaults."""

    name: str
    bundle: str
    folder: str
    settings: dict[str, object]
    live: TaskStatus


@dataclass(frozen=True)
class DevicePage:
    """A page of devices, those online first, then by name. `total` is how many match."""

    total: int
    devices: list[DeviceStatus]


@dataclass(frozen=True)
class RoundPage:
    """A page of closed rounds, in order."""

    total: int
    rounds: list[RoundStatus]


@dataclass(frozen=True)
class Entries:
    """A page of the log, the latest first. `next` is `before` of the page after it; null at the end."""

    entries: list[LogEntry]
    next: int | None


@dataclass(frozen=True)
class Check:
    """One thing that /healthz looks at. `detail` is told only to who has the token."""

    name: str
    task: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Health:
    """`ok` is whether all checks are."""

    ok: bool
    checks: list[Check]
