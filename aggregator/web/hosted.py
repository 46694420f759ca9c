"""What HTTP knows of one task: who tells it of it, and what it may look at."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aggregator.observer import Observer
from aggregator.ports import Pulse
from aggregator.task import Task

from .journal import Journal
from .watch import Watch

PROBE = ".writable"
"""In the run folder: what is written to see whether it can be."""


class Wire(Protocol):
    """The part of `broker.link.Link` that is used here; read from any thread."""

    bytes_up: int
    bytes_down: int

    @property
    def connected(self) -> bool:
        """Whether the broker has us now."""


class Hosted:
    """A task, its run folder, and what watches it. `clock`: seconds since 1970; `database` as in Ports."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        link: Wire,
        pulse: Pulse,
        clock: Callable[[], float] = time.time,
        database: str = "",
    ) -> None:
        self.task = task
        self.folder = folder
        self.database = database
        self.link = link
        self.pulse = pulse
        self.clock = clock
        self.watch = Watch(task.name, clock)
        self.journal = Journal(folder, clock)

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self.watch, self.journal

    def writable(self) -> int:
        """Write a few bytes into the run folder; returns the bytes that are free. Raises OSError."""
        probe = self.folder / PROBE
        probe.write_bytes(b"ok")
        probe.unlink(missing_ok=True)  # whoever asks at the same time may have been first
        return shutil.disk_usage(self.folder).free
