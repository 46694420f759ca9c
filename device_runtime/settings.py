"""How a device takes part in a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from models.names import EngineWish
from strategies.accountant import Limit

from .data import Place
from .meters import Meter
from .personal.wish import Wish
from .pretence import Pretence


@dataclass(frozen=True)
class Settings:
    """How a device takes part. `memory_bytes` limits the process; None leaves what the machine has free.

    `owner` limits what may be spent of the samples' privacy: None sets no limit but those of tasks.
    `aggregator` is the public key of the only one whose offers count; empty: any is taken. `task` is which
    it is here for, where the aggregator has several; empty: whichever there is, and then the next. `meter`
    tells the energy of training; without one, or on a pretended device, it is modelled. `personal` is what
    is wanted of a model of its own.
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
    personal: Wish = field(default_factory=Wish)
