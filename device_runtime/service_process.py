"""Processes: exit status, signals and reports to systemd of services; commands that they run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum

LOOK_S = 0.2


class Exit(IntEnum):
    """Exit status of a service; `docs/service.md` and the systemd units say the same."""

    DONE = 0
    """The task is finished, or the service was told to stop (SIGTERM, SIGINT) and did."""
    MISTAKE = 1
    """An unexpected error, here or in a worker, with a traceback on stderr. Please report it."""
    SETTINGS = 2
    """Flags, server file, task file or bundle are invalid; the message names the key."""
    BROKER = 3
    """No broker answers, it refuses us, or our own could not be started."""
    FOLDER = 4
    """The run or state folder is in use, another's, or damaged, or its disk fails."""
    ADDRESS = 5
    """The service cannot listen on its HTTP address."""
    MISSING = 6
    """A package is not installed; the message says what to install."""
    DATABASE = 7
    """PostgreSQL does not answer, refuses us, or was away for too long."""
    FRUITLESS = 8
    """A run was abandoned, as no device contributed in many deadlines in a row; the message says why."""
    INTERRUPTED = 130
    """Ctrl-C before the service ran."""


STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(*stop: Callable[[], None], second_kills: bool = True) -> Iterator[None]:
    """Inside, SIGTERM and SIGINT (Ctrl-C, a notebook's stop button) call each of `stop`.

    second_kills: the second signal ends the process. Outside the main thread signals stay as they are.
    """

    def stopping(_number: int, _frame: object) -> None:
        if second_kills:
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
        for call in stop:
            call()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stopping) for number in STOPPING} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sleep_until(stop: threading.Event, seconds: float) -> bool:
    """Sleeps for some seconds, or until `stop` is set, and returns whether it is set.

    It looks every LOOK_S seconds. For the main thread, where a signal handler may set `stop`: the handler
    could wait for ever for the lock that `stop.wait` holds.
    """
    end = time.monotonic() + seconds
    while not stop.is_set() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))
    return stop.is_set()


def notify_systemd(state: str) -> None:
    """Sends systemd a state such as "READY=1" (sd_notify(3)); does nothing without $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def watchdog_s() -> float | None:
    """Seconds of silence that systemd takes for a hang; None when it does not watch."""
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None


class SystemdWatchdog:
    """Context manager that reports to systemd for as long as the loop works.

    `silence_s` gives the seconds since the loop last looked at the clock.
    """

    def __init__(self, silence_s: Callable[[], float]) -> None:
        self._silence_s = silence_s
        self._stop = threading.Event()
        self._limit_s = watchdog_s()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> SystemdWatchdog:
        notify_systemd("READY=1")
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        notify_systemd("STOPPING=1")
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        limit_s = self._limit_s or 0.0
        while not self._stop.wait(limit_s / 4):
            if self._silence_s() < limit_s / 2:
                notify_systemd("WATCHDOG=1")


_PATHS = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))"


def python_command(program: str, *arguments: str) -> list[str]:
    """The words of the command. The program finds its arguments in `sys.argv[1:]`.

    It imports the same modules, whatever lies in the folder where it runs.
    """
    paths = [path for path in map(_whole, sys.path) if path]
    return [sys.executable, "-c", f"{_PATHS}\n{program}", json.dumps(paths), *arguments]


def _whole(path: str) -> str:
    """A path that holds in any folder; empty for a relative one where the current folder is gone."""
    try:
        return os.path.abspath(path)  # noqa: PTH100 - paths of `sys.path` are texts
    except FileNotFoundError:
        return ""


def run_program(
    words: Sequence[str], timeout_s: float, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, without input, and return its exit code and output.

    Raises OSError or ValueError if it cannot be run, subprocess.TimeoutExpired if it does not end in time:
    all processes that it started are ended with it.
    """
    with subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, wrong = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, wrong)
