"""One comparison at a time in a folder, and no run that outlives the command that started it."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from device_runtime.simulation.errors import ScenarioError

PATIENCE_S = 3.0
"""For processes of a command that was killed, which are about to end."""
POLL_S = 0.05
ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def occupied(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[int]:
    """A lock on the folder, as a file descriptor: it holds until every process that inherits it is gone.

    Raises ScenarioError when another command has it. On a file system that knows no locks there is none.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        ends = time.monotonic() + patience_s
        while not _taken(handle):
            if time.monotonic() >= ends:
                raise ScenarioError(
                    f"another simulation is at work in {folder}: wait for it, or give another --run-dir"
                )
            time.sleep(POLL_S)
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it the signals that end a process, a closed terminal too, are a KeyboardInterrupt.

    What is ignored (nohup) stays so; outside the main thread nothing changes.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    mine = [number for number in ENDING if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """If the standard input is a pipe: end this process as soon as nobody holds its other end any more."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return
    if piped:
        threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
