"""Removes a device from a machine: its process, its service, and its files."""

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
from device_runtime.device.agent import instance
from device_runtime.device.agent.agent import DeviceInbox
from device_runtime.device.connection.connecting import Connection, is_device
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.device.errors import InstallError, NoDevice, PolicyError

from . import device_file, install, system_account

GOODBYE_S = 20.0
"""Seconds to connect for a goodbye."""
STOP_S = 120.0
"""Seconds that a process may take to end its work."""

SETTINGS = "device.toml"
"""The file of a service's settings."""
PASSWORD = "broker-password"  # noqa: S105
"""The file in a device's folder with the broker's password, where it was in the environment."""
KEPT = {
    "enrolment.json": "its credentials",
    "issued.json": "when the latest offers were issued",
    "outbox": "contributions, sent and not",
    "blobs": "models on their way, and the bodies of contributions",
    "bundles": "models as they were fetched",
    "stand": "how far it has replayed the step log",
    "left": "what codecs left out of updates",
    "empty": "the empty folder in which it works",
    "tmp": "temporary files, where the system has no folder for them",
    "memory": "state of kinds of update",
    "personal": "the personal model",
    "speed.json": "measurements",
    "privacy.json": "what was spent of the samples' privacy: joining again begins anew",
    "traffic.json": "bytes by day",
    "policy.json": "its rules",
    "masks.sqlite": "a mask helper's key, and which masks it has summed",
    "masks.sqlite-wal": "what was written there last",
    "masks.sqlite-shm": "an index of that",
    "site": "runs of a site, with contributions of its devices",
    "aggregator.key": "a site's key",
    "issued": "when the site's latest offers were issued",
    "port": "the port of the site's broker",
    SETTINGS: "its settings as a service",
    PASSWORD: "the broker's password",
    "ca.pem": "the broker's certificate authority",
    "cert.pem": "its certificate",
    "key.pem": "its private key",
    "paused": "that it is paused",
    "lock": "its lock",
}
"""Names in a device's folder, and what they are. Samples are their owner's: they are never removed."""
UNSENT = ("outbox", "blobs", "left", "site")
"""What is needed to send contributions later."""


def name_in(folder: Path) -> str:
    """The name of the device with this folder."""
    if name := setting(folder, "name"):
        return name
    with suppress(EnrolmentError):
        if enrolment := Enrolment.load(folder):
            return enrolment.name
    return folder.name


def setting(folder: Path, key: str) -> str:
    """A setting of its service; empty if there is no service, or no such setting."""
    with suppress(PolicyError):
        return str(dict(device_file.read(folder / SETTINGS)).get(key, ""))
    return ""


def check(folder: Path) -> None:
    """Raises NoDevice unless the folder is a device's, so that no other files are removed."""
    if not is_device(folder):
        raise NoDevice(f"no device is in {folder}: nothing is removed")


def unreceipted(folder: Path) -> int:
    """Number of contributions without a receipt."""
    return len(list((folder / "outbox").glob("*.msg")))


def parts(folder: Path, keep_outbox: bool = False) -> dict[Path, str]:
    """Paths to be removed, and what each is."""
    names = [name for name in KEPT if not (keep_outbox and name in UNSENT)]
    paths = {folder / name: KEPT[name] for name in names if os.path.lexists(folder / name)}
    cut_off = [path for name in names for path in folder.glob(f".{name}*") if path.is_file()]
    return paths | dict.fromkeys(cut_off, "a file that was being written")


def size(path: Path) -> int:
    """Bytes on the disk."""
    return sum(_bytes(entry) for entry in (path, *path.rglob("*")))


def stop(name: str, folder: Path) -> Iterator[str]:
    """Stop its service and its process, which says goodbye as it ends; yields what was done.

    Without service settings in this folder, a service of the same name is another device's. Raises
    InstallError if the process does not end.
    """
    services = install.installed_services(name) if (folder / SETTINGS).exists() else []
    for service in services:
        yield from install.remove(service)
        yield f"removed {service.files[0].path}"
    pid = instance.process(folder)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while instance.process(folder) is not None:
        if time.monotonic() > end:
            raise InstallError(f"process {pid} does not end: nothing is removed. End it, and leave again")
        time.sleep(0.1)
    yield f"stopped process {pid}"


def say_goodbye(connection: Connection, clock: Callable[[], float] = time.monotonic) -> str:
    """Tell the aggregator that the device leaves, if no process can. Returns the result in words."""
    messages = DeviceMessages(connection.name, secrets.randbits(32))
    will = messages.presence(online=False)
    link = Link(
        connection.url,
        connection.client_id,
        DeviceInbox(clock),
        LinkOptions(will, renewed=connection.renewed),
    )
    try:
        link.connect(GOODBYE_S)
    except BrokerError as error:
        return f"nobody was told: {error}"
    greeting = messages.presence(online=True)
    link.publish(greeting.topic, greeting.payload, greeting.retain)
    link.close(messages.presence(online=False, leaving=True))
    return f"said goodbye at {connection.url}"


def remove(folder: Path, keep_outbox: bool) -> Path | None:
    """Remove everything in `parts`, and the folder if it is then empty; else the folder is returned.

    With the last device of the machine's account, its home is removed. Raises InstallError.
    """
    for path in parts(folder, keep_outbox):
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise InstallError(f"cannot remove {path}: {error.strerror or error}") from None
    try:
        folder.rmdir()
    except OSError:
        return folder
    if folder.parent == system_account.SYSTEM_STATE:
        with suppress(OSError):  # of other devices
            folder.parent.rmdir()
    return None


def _bytes(path: Path) -> int:
    """Size of a file; a running device may just have removed it."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
