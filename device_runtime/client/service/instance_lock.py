"""Being a guest on a machine: alone in its folder, by its owner's rules, and to be paused by a signal."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.partial_blob import sync_folder
from device_runtime.client.agent import Agent
from device_runtime.client.errors import InUse
from device_runtime.client.policy import work_gate as owner
from device_runtime.client.policy.process_priority import Manners
from device_runtime.client.policy.rules import Policy
from device_runtime.client.policy.work_gate import Owner

log = logging.getLogger(__name__)

LOCK = "lock"
DIGITS = 20
"""Of the number in it, with blanks: it is written over another one at once."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process is this device while inside. Raises InUse."""
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"{folder} is in use by process {_number(file.name)}: one device is one process"
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("that %s is one device's alone cannot be seen to: %s", folder, error.strerror)
        with suppress(OSError):  # of a full disk: it is for people
            os.pwrite(file.fileno(), f"{os.getpid():<{DIGITS}}\n".encode(), 0)
        yield


def process(folder: Path) -> int | None:
    """The process that is this device now, if any."""
    try:
        with (folder / LOCK).open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _number(file.name)
    except OSError:
        return None
    return None


def heed_pauses(folder: Path, also: Callable[[], None] = lambda: None) -> None:
    """From now on SIGUSR1 pauses the device, which would else end it, and SIGUSR2 lets it go on.

    `also` is called then, in the signal's handler.
    """

    def heard(number: int, _frame: object) -> None:
        try:
            (owner.pause if number == signal.SIGUSR1 else owner.resume)(folder)
        except OSError as error:
            log.warning("cannot be paused: %s", error)
        also()

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, heard)


@contextmanager
def welcome(agent: Agent, link: Link, policy: Policy, manners: Manners) -> Iterator[None]:
    """`agent` works by these rules inside; SIGUSR1 pauses it and SIGUSR2 lets it go on. Raises InUse."""
    folder = agent.settings.folder
    rules = Owner(policy, folder, lambda: (link.bytes_up, link.bytes_down))

    def again() -> None:
        agent.hours.look_again()
        agent.inbox.wake()

    with alone(folder):
        for made in (folder, folder.parent):
            sync_folder(made)  # what is kept in it is durable only if it is
        manners.apply()
        owner.keep(policy, folder)
        agent.hours.judged = rules.judged
        heed_pauses(folder, again)
        try:
            yield
        finally:
            rules.count()
            rules.traffic.write()


def _number(path: str) -> int | None:
    text = Path(path).read_text().strip()
    return int(text) if text.isdecimal() else None
