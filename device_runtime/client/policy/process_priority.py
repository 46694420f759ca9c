"""How this process takes its share of the machine: politely, where its owner asks for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

FIRST_TO_GO = 500
"""Of 1000: whom the kernel ends first where memory runs out. What is lost by that is done again."""


@dataclass(frozen=True)
class Manners:
    """`nice` from 0 to 19; `idle_io`: the disk only when nobody else wants it; `cores`: at most so many."""

    nice: int = 0
    idle_io: bool = False
    cores: int | None = None

    def apply(self, oom: Path = Path("/proc/self/oom_score_adj")) -> None:
        """To this process and all that it starts. What the system does not allow is said, and left."""
        if self.nice:
            _try("--nice", lambda: _each(lambda number: os.setpriority(os.PRIO_PROCESS, number, self.nice)))
        if self.idle_io:
            _try("--idle-io", _idle_io)
        if self.cores is not None:
            cores = self.cores
            _try("--cores", lambda: _keep_to(sorted(os.sched_getaffinity(0))[:cores]))
        try:
            if int(oom.read_text()) < FIRST_TO_GO:
                oom.write_text(str(FIRST_TO_GO))
        except (OSError, ValueError) as error:
            log.debug("the order in which processes go when memory runs out stays as it is: %s", error)


def _each(act: Callable[[int], None], tasks: Path = Path("/proc/self/task")) -> None:
    """For this process and its threads that are there, as those of numpy: Linux has these by thread."""
    try:
        numbers = [int(path.name) for path in tasks.iterdir()]
    except OSError:
        numbers = [0]
    for number in numbers:
        with suppress(ProcessLookupError):
            act(number)


def _keep_to(cores: list[int]) -> None:
    _each(lambda number: os.sched_setaffinity(number, cores))


def _idle_io() -> None:
    import psutil  # 2 MB: not for who does without

    try:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    except psutil.Error as error:
        raise OSError(str(error)) from None


def _try(what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, AttributeError) as error:
        log.warning("%s is not possible here: %s", what, error)
