"""The responses of the REST API.

Times are seconds since 1970, UTC; a figure that was not measured is null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import msgspec

from device_runtime.broker.wire.messages import MODELLED, Status
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.strategies.settings import REQUIRED, SettingField, setting_fields

PLACE = "#/components/schemas/{name}"
LIMITS = {
    "minimum": "at_least",
    "exclusiveMinimum": "more_than",
    "maximum": "at_most",
    "exclusiveMaximum": "less_than",
}
"""Keywords of JSON schemas, and the limits of a `Setting`."""


def setting_schemas(settings: type) -> dict[str, dict[str, Any]]:
    """The schemas of a class of settings and of those of the tables within it, by name."""
    _, schemas = msgspec.json.schema_components([settings], ref_template=PLACE)
    tables = [settings, *(entry.table for entry in setting_fields(settings) if entry.table)]
    for table in tables:
        properties = schemas[table.__name__]["properties"]
        for entry in setting_fields(table):
            _complete(properties[entry.name], entry)
    return schemas


def _complete(schema: dict[str, Any], entry: SettingField) -> None:
    """Adds the meaning, an example, the default, the unit, and the limits or choices."""
    setting = entry.setting
    schema |= {"description": entry.meaning, "examples": [msgspec.to_builtins(setting.example)]}
    if entry.default is not REQUIRED:
        schema["default"] = msgspec.to_builtins(entry.default)
    if setting.unit != "-":
        schema["x-unit"] = setting.unit
    value = schema["anyOf"][0] if "anyOf" in schema else schema
    value = value.get("items", value)
    value |= {key: limit for key, name in LIMITS.items() if isfinite(limit := getattr(setting, name))}
    if setting.choices:
        value["enum"] = list(setting.choices)


Phase = Literal["starting", "waiting", "collecting", "unmasking", "finished"]
Doing = Literal["", "planned", "sits out", "rests", "sent", "late", "refused"]


def measured(value: float) -> float | None:
    """The value, or None if it is nan or infinite."""
    return value if isfinite(value) else None


@dataclass(frozen=True)
class DeviceStatus:
    """One device of the fleet.

    kind, why, round: of its latest plan, contribution or refusal; `kind` is empty when it sits out.
    variant: the form of the kind that it sent, as "epochs=2"; empty before it has, or if the kind has one.
    tags: what its owner says of it. version: of its program; empty of browsers, and if it says none.
    predicted_s: from the device's plan.
    train_s, energy_j: from its latest contribution.
    energy_source: the energy meter, or "modelled".
    energy_uncertainty: a fraction of the energy.
    last_seen: null for a device that was not seen since the aggregator started.
    battery_percent: null if the device has no battery or does not report it.
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
    variant: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class KindFigures:
    """Sums over the contributions of one kind in a round."""

    contributions: int = 0
    num_examples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    energy_j: float = 0.0
    train_s: float = 0.0


@dataclass(frozen=True)
class RoundStatus:
    """A closed round. `accuracy` and `loss` are of the served model, `base_accuracy` of the next base.

    `closed_at`: seconds since 1970. `metric` names what `accuracy` is; `metrics` has further ones by name.
    `held_out_accuracy` is on `held_out_samples` samples that the round's devices held out, of the head that
    the round before served (`held_out_head`: "closed-form" or "trained"), on the base of this round;
    `held_out_other_accuracy` of the other head, on the same samples.
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
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)
    held_out_accuracy: float | None = None
    held_out_samples: int = 0
    held_out_head: str = ""
    held_out_other_accuracy: float | None = None


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task now. `version` grows with every event.

    closes_at: the deadline of the open round.
    extended: how often that deadline was extended.
    contributions: of the open round, by kind.
    not_counted: the number of contributions that were late, refused or duplicates.
    metric: the name of the metric that accuracy is; metrics: further ones, by name.
    held_out_accuracy and others: as in `RoundStatus`, of the last closed round.
    broker: whether the aggregator is connected to its broker; without it, who is online is not known.
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
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)
    held_out_accuracy: float | None = None
    held_out_samples: int = 0
    held_out_head: str = ""
    held_out_other_accuracy: float | None = None
    broker: bool = True


@dataclass(frozen=True)
class LogEntry:
    """A contribution in the journal, whether it counted or not. `id` grows; `at` is null if it is not known.

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
    """The model that a round served. `kept`: a rollback to it is possible; `served`: it is served now.

    `metric` names what `accuracy` is; `metrics` has further ones by name.
    """

    round: int
    since: float | None
    accuracy: float | None
    loss: float | None
    sha256: str
    size: int
    kept: bool
    served: bool
    note: str
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RollbackAnswer:
    """A rollback to the model of this round is requested; `versions` shows when it is done."""

    round: int


@dataclass(frozen=True)
class TaskInfo:
    """A task of this service. `settings` are those of its task file, with defaults filled in.

    `version`: of the aggregator's program.
    """

    name: str
    bundle: str
    folder: str
    settings: dict[str, object]
    live: TaskStatus
    version: str = ""


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
    """A page of the journal, the latest first. `next` is `before` of the following page; null at the end."""

    entries: list[LogEntry]
    next: int | None


@dataclass(frozen=True)
class Check:
    """One check of /healthz. `detail` is shown only with the token."""

    name: str
    task: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Health:
    """The health of the service; `ok` if all checks are."""

    ok: bool
    checks: list[Check]
