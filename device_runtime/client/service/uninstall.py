"""Taking a device off a machine: its process, its service, and all that it kept."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.enrolment import Enrolment, EnrolmentError
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.client.agent import DeviceInbox
from device_runtime.client.connection.connecting import Connection, is_device
from device_runtime.client.connection.presence import Voice
from device_runtime.client.errors import InstallError, NoDevice, PolicyError

from . import device_file
from . import install as installing
from . import instance_lock as guest

STOP_S = 120.0
"""Seconds that a process may take to end what it does."""

SETTINGS = "device.toml"
"""What a service joins with."""
KEPT = {
    "enrolment.json": "its credentials",
    "issued.json": "when the latest offers were issued",
    "outbox": "contributions, sent and not",
    "blobs": "models on their way, and the bodies of contributions",
    "bundles": "models as they were fetched",
    "stand": "where it stood on a line of steps",
    "left": "what codecs left out of updates",
    "empty": "the empty folder in which it works",
    "memory": "what kinds of update remember",
    "personal": "the personal model",
    "speed.json": "measurements",
    "speed.tmp": "measurements",
    "privacy.json": "what was spent of the samples' privacy: joining again begins anew",
    "traffic.json": "bytes by day",
    "policy.json": "its rules",
    SETTINGS: "its settings as a service",
    "paused": "that it is paused",
    "lock": "its lock",
}
"""What a device has in its folder. Samples are their owner's: they are not touched, wherever they are."""
UNSENT = ("outbox", "blobs", "left")
"""What sending later needs."""


def name_in(folder: Path) -> str:
    """Of the device whose folder this is."""
    if name := setting(folder, "name"):
        return name
    with suppress(EnrolmentError):
        if enrolment := Enrolment.load(folder):
            return enrolment.name
    return folder.name


def setting(folder: Path, key: str) -> str:
    """What its service joins with; empty where there is none, or it does not say."""
    with suppress(PolicyError):
        return str(dict(device_file.read(folder / SETTINGS)).get(key, ""))
    return ""


def check(folder: Path) -> None:
    """Raises NoDevice for a folder in which a `personal` or a `memory` is somebody else's."""
    if not is_device(folder):
        raise NoDevice(f"no device is in {folder}: nothing is removed")


def waiting(folder: Path) -> int:
    """Contributions without a receipt."""
    return len(list((folder / "outbox").glob("*.msg")))


def parts(folder: Path, keep_outbox: bool = False) -> dict[Path, str]:
    """What is to be removed, and what it is."""
    names = [name for name in KEPT if not (keep_outbox and name in UNSENT)]
    found = {folder / name: KEPT[name] for name in names if os.path.lexists(folder / name)}
    cut_off = [path for name in names for path in folder.glob(f".{name}*") if path.is_file()]
    return found | dict.fromkeys(cut_off, "a file that was being written")


def size(path: Path) -> int:
    """Bytes on the disk."""
    return sum(_bytes(one) for one in (path, *path.rglob("*")))


def stop(name: str, folder: Path) -> Iterator[str]:
    """Its service and its process; what was done is told. The process says goodbye as it ends.

    A service of the same name is another device's where no settings of one are here.
    Raises InstallError for a process that does not end.
    """
    service = installing.of(name) if (folder / SETTINGS).exists() else None
    if service is not None:
        yield from installing.remove(service)
        yield f"removed {service.files[0].path}"
    pid = guest.process(folder)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while guest.process(folder) is not None:
        if time.monotonic() > end:
            raise InstallError(f"process {pid} does not end: nothing is removed. End it, and leave again")
        time.sleep(0.1)
    yield f"stopped process {pid}"


def say_goodbye(connection: Connection, clock: Callable[[], float] = time.monotonic) -> str:
    """To the aggregator, where no process is there to do it. Returns what came of it."""
    voice = Voice(connection.name, secrets.randbits(32))
    will = voice.presence(online=False)
    link = Link(connection.url, connection.client_id, DeviceInbox(clock), LinkOptions(will))
    try:
        link.connect()
    except BrokerError as error:
        return f"nobody was told: {error}"
    greeting = voice.presence(online=True)
    link.publish(greeting.topic, greeting.payload, greeting.retain)
    link.close(voice.presence(online=False, leaving=True))
    return f"said goodbye at {connection.url}"


def remove(folder: Path, keep_outbox: bool) -> Path | None:
    """Everything in `parts`, and the folder if it is empty then; else it is returned. Raises InstallError."""
    for path in parts(folder, keep_outbox):
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise InstallError(f"cannot remove {path}: {error.strerror or error}") from None
    try:
        folder.rmdir()
    except OSError:
        return folder
    return None


def _bytes(path: Path) -> int:
    """Of a file; a device at work may just have taken it away."""
    try:
        known = path.lstat()
    except OSError:
        return 0
    return known.st_size if stat.S_ISREG(known.st_mode) else 0
