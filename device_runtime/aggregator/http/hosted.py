"""What HTTP knows of one task: who tells it of it, and what it may look at."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from device_runtime.aggregator.rounds.ports import Pulse
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.listener import Observer

from .journal import Journal
from .watch import Watch


class Wire(Protocol):
    """The part of `broker.wire.link.Link` that is used here; read from any thread."""

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
        """The bytes that are free for the run folder. Writes nothing: anybody may ask. Raises OSError where
        it cannot be written, by what the system says of it.
        """
        about = os.statvfs(self.folder)
        if about.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return about.f_bavail * about.f_frsize
