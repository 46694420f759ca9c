"""A device that takes part in tasks, from its first connection to its last message.

Each device is one process. A lock in its folder keeps other processes away; a signal pauses it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from device_runtime.broker.wire.durable_files import lock, sync_folder
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.device.backend.base import MakeBackend
from device_runtime.device.backend.child_process import STAYS_S
from device_runtime.device.backend.subprocess import Subprocess
from device_runtime.device.connection.connecting import Connection, first_connection
from device_runtime.device.energy import needs_listening
from device_runtime.device.errors import InUse
from device_runtime.device.policy import work_gate
from device_runtime.device.policy.rules import Policy
from device_runtime.device.policy.work_gate import OwnerRules, ProcessPriority
from device_runtime.device.training.settings import Settings

from .agent import Agent
from .runner import in_this_process

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


@dataclass(frozen=True)
class WorkRules:
    """The backend that works, when it may, and how much of the machine it takes.

    priority: None leaves this process as it is.
    """

    backend: MakeBackend
    policy: Policy = field(default_factory=Policy)
    priority: ProcessPriority | None = None


class JoinedDevice:
    """One device in this process; `agent` does its rounds. It connects when it is run."""

    def __init__(self, connection: Connection, settings: Settings, rules: WorkRules) -> None:
        self.agent = Agent(settings, secrets.randbits(32), time.monotonic, rules.backend)
        agent = self.agent
        options = LinkOptions(
            agent.will(), agent.subscriptions(), greeting=agent.greeting(), renewed=connection.renewed
        )
        self._link = Link(connection.url, connection.client_id, agent.inbox, options)
        self._connection, self._rules = connection, rules
        self._stop = threading.Event()

    def stop(self) -> None:
        """Makes `run` end; may be called by a signal handler, or from another thread."""
        self._stop.set()
        self.agent.inbox.wake()

    def run(self, until_done: bool = False, joined: Callable[[], None] = lambda: None) -> None:
        """Takes part until stopped or, with `until_done`, until the task is done; runs once.

        Calls `joined` when it has connected. Raises InUse, BrokerRefused, and as `Agent.run` does.
        """
        agent, link, stop = self.agent, self._link, self._stop
        with running_as_device(agent, link, self._rules.policy, self._rules.priority):
            agent.warm_up()
            try:
                if first_connection(link, stop, waits=agent.close):
                    joined()
                    if agent.settings.task:
                        from device_runtime.device.connection.offers import warn_if_absent  # 45 kB

                        warn_if_absent(self._connection, agent.settings.task, lambda: agent.has_offer, stop)
                    agent.run(link, stop, until_done=until_done)
            finally:
                agent.close()
                link.close(agent.farewell())


def backend_for(meter: str, here: bool) -> MakeBackend:
    """The backend that works: this process, or one of its own, with the energy meter of this name.

    A process of its own ends when idle, unless the meter must be read all the time. Raises MeterError.
    """
    if here:
        return in_this_process
    return partial(Subprocess, meter=meter, stays_s=inf if needs_listening(meter) else STAYS_S)
