"""How a device takes part in a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.models.bundles.names import EngineWish
from device_runtime.models.data import Place
from device_runtime.strategies.terms.accountant import Limit

from .energy import Meter
from .personal.wish import PersonalWish
from .policy.rules import ANYTHING, AllowList
from .training.emulation import Pretence


@dataclass(frozen=True)
class Settings:
    """How a device takes part. `memory_bytes` limits the process; None leaves what the machine has free.

    `owner` limits what may be spent of the samples' privacy: None sets no limit but those of tasks.
    `aggregator` is the public key of the only one whose offers count; empty: any is taken. `secret` is the
    device's own key, by which it signs what it says; empty: it signs nothing. `task` is which it is here for,
    where the aggregator has several; empty: whichever there is, and then the next. `meter`
    tells the energy of training; without one, or on a pretended device, it is modelled. `personal` is what
    is wanted of a model of its own. `disk_bytes` limits what is fetched and unpacked of models; None sets no
    limit. `allowed` is what a task may ask for.
    """

    name: str
    data: Path | Place
    folder: Path
    pretence: Pretence | None = None
    memory_bytes: int | None = None
    engine: EngineWish = field(default_factory=EngineWish)
    owner: Limit | None = None
    aggregator: bytes = b""
    task: str = ""
    meter: Meter | None = None
    personal: PersonalWish = field(default_factory=PersonalWish)
    disk_bytes: int | None = None
    secret: bytes = field(default=b"", repr=False)
    allowed: AllowList = ANYTHING
