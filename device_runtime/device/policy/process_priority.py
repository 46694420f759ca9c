"""Lowers this process's share of processor, disk and memory, where its owner asks for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from device_runtime.machine_readings import use_idle_disk

log = logging.getLogger(__name__)

FIRST_TO_GO = 500
"""OOM score, of 1000: the kernel ends this process first when memory runs out, as its work can be redone."""


@dataclass(frozen=True)
class ProcessPriority:
    """How much of the machine the process takes.

    `nice` from 0 to 19; `idle_io`: use the disk only when nobody else does; `cores`: use at most so many.
    """

    nice: int = 0
    idle_io: bool = False
    cores: int | None = None

    def apply(self, oom: Path = Path("/proc/self/oom_score_adj")) -> None:
        """Apply to this process and its children. What the system does not allow is logged and skipped."""
        if self.nice:
            _try("--nice", lambda: _each(lambda number: os.setpriority(os.PRIO_PROCESS, number, self.nice)))
        if self.idle_io:
            _try("--idle-io", use_idle_disk)
        if self.cores is not None:
            cores = self.cores
            _try("--cores", lambda: _keep_to(sorted(os.sched_getaffinity(0))[:cores]))
        try:
            if int(oom.read_text()) < FIRST_TO_GO:
                oom.write_text(str(FIRST_TO_GO))
        except (OSError, ValueError) as error:
            log.debug("the OOM score of this process stays as it is: %s", error)


def _each(act: Callable[[int], None], tasks: Path = Path("/proc/self/task")) -> None:
    """Call `act` for each thread of this process, numpy's included: Linux sets priorities by thread."""
    try:
        numbers = [int(path.name) for path in tasks.iterdir()]
    except OSError:
        numbers = [0]
    for number in numbers:
        with suppress(ProcessLookupError):
            act(number)


def _keep_to(cores: list[int]) -> None:
    _each(lambda number: os.sched_setaffinity(number, cores))


def _try(what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, AttributeError) as error:
        log.warning("%s is not possible here: %s", what, error)
