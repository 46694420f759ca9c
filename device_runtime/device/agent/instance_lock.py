"""Allows one process for each device, by a lock in its folder, and pauses it by a signal."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from device_runtime.broker.wire.durable_files import lock, sync_folder
from device_runtime.broker.wire.link import Link
from device_runtime.device.errors import InUse
from device_runtime.device.policy import work_gate
from device_runtime.device.policy.process_priority import ProcessPriority
from device_runtime.device.policy.rules import Policy
from device_runtime.device.policy.work_gate import OwnerRules

from .agent import Agent

log = logging.getLogger(__name__)

LOCK = "lock"
DIGITS = 20
"""Width of the process id in the lock file, padded with blanks: one write replaces the old id."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder: inside, no other process is this device. Raises InUse."""
    with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        try:
            lock(file.fileno(), folder / LOCK)
        except BlockingIOError:
            raise InUse(
                f"{folder} is in use by process {_number(folder / LOCK)}: one device is one process"
            ) from None
        with suppress(OSError):  # a full disk
            written = os.pwrite(file.fileno(), f"{os.getpid():<{DIGITS}}\n".encode(), 0)
            os.ftruncate(file.fileno(), written)
        yield


def process(folder: Path) -> int | None:
    """The id of the process that runs this device now, or None. Raises InUse if its id is unknown."""
    try:
        with (folder / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        if (pid := _number(folder / LOCK)) is None:
            raise InUse(f"{folder} is in use by a process, but {folder / LOCK} does not say which") from None
        return pid
    except OSError:
        return None
    return None


def pause_on_signals(folder: Path, also: Callable[[], None] = lambda: None) -> None:
    """From now on SIGUSR1 pauses the device, which it would otherwise end, and SIGUSR2 resumes it.

    `also` is called then, in the signal handler. Outside the main thread, signals stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def on_signal(number: int, _frame: object) -> None:
        try:
            (work_gate.pause if number == signal.SIGUSR1 else work_gate.resume)(folder)
        except OSError as error:
            log.warning("cannot be paused: %s", error)
        also()

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, on_signal)


@contextmanager
def running_as_device(
    agent: Agent, link: Link, policy: Policy, priority: ProcessPriority | None
) -> Iterator[None]:
    """Lock the agent's folder, and apply its rules and priority, if any, inside.

    SIGUSR1 pauses it and SIGUSR2 resumes it. Raises InUse.
    """
    folder = agent.settings.folder
    rules = OwnerRules(policy, folder, lambda: (link.bytes_up, link.bytes_down))

    def again() -> None:
        agent.work_gate.look_again()
        agent.inbox.wake()

    with folder_lock(folder):
        for directory in (folder, folder.parent):
            sync_folder(directory)  # files in it are durable only if the folder is
        if priority is not None:
            priority.apply()
        work_gate.keep(policy, folder)
        agent.work_gate.judge = rules.verdict
        pause_on_signals(folder, again)
        try:
            yield
        finally:
            rules.count()
            rules.traffic.write()


def _number(path: Path) -> int | None:
    text = path.read_text().strip()
    return int(text) if text.isdecimal() else None
