"""Finds a device's broker, name, folder and enrolment, and makes its first connection.

Options of the command line take precedence over what the enrolment says.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Protocol

from device_runtime.broker.errors import BrokerUnreachable, UrlError
from device_runtime.broker.security.enrolment import FILE, Enrolment, EnrolmentError
from device_runtime.broker.wire.durable_files import shut_to_others
from device_runtime.broker.wire.link import LinkOptions
from device_runtime.broker.wire.link_events import ReconnectDelay
from device_runtime.broker.wire.topics import check_device
from device_runtime.broker.wire.url import TLS, BrokerUrl
from device_runtime.device.errors import NoDevice
from device_runtime.service_process import sleep_until
from device_runtime.system_errors import disk_reason
from device_runtime.user_account import NoHome, state_folder

from .trust import ISSUED

log = logging.getLogger(__name__)


MARKS = (FILE, "outbox", "lock", "device.toml")
"""A device's folder has at least one of these from the start; no other folder does."""


@dataclass(frozen=True)
class Connection:
    """`folder` is the device's own; `key` is its aggregator's public key, empty if it is not enrolled."""

    url: BrokerUrl
    name: str
    folder: Path
    client_id: str
    key: bytes = b""
    enrolment: Enrolment | None = None

    @property
    def secret(self) -> bytes:
        """The device's own key; empty where it has none."""
        return self.enrolment.secret if self.enrolment else b""

    def renewed(self) -> BrokerUrl:
        """The URL with the credentials that are in the device's folder now. Raises EnrolmentError, UrlError.

        A certificate, its key and `--ca` are read at each connection in any case.
        """
        before = self.enrolment
        if before is None or self.url.user != before.name or self.url.password != before.password:
            return self.url  # they came with the URL
        now = Enrolment.load(self.folder)
        if now is None:
            raise EnrolmentError(f"{self.folder / FILE} is missing")
        if self.url == before.address:
            return now.address
        return now.at(replace(self.url, tls=replace(self.url.tls, authority="")))


class DeviceChoice(Protocol):
    """Which device of this machine: its name, or its folder; None: the only one there is."""

    @property
    def name(self) -> str | None: ...

    @property
    def state(self) -> Path | None: ...


class ConnectionOptions(DeviceChoice, Protocol):
    """The options of `add_connection`: a device, its broker's URL (None: as enrolled), its files."""

    @property
    def broker(self) -> str | None: ...

    @property
    def ca(self) -> Path | None: ...

    @property
    def cert(self) -> Path | None: ...

    @property
    def key(self) -> Path | None: ...

    @property
    def insecure(self) -> bool: ...


def enrol(token: str, options: DeviceChoice) -> Enrolment:
    """Save the enrolment that a token holds, in place of an earlier one of the same device.

    Raises EnrolmentError.
    """
    enrolment = Enrolment.of_token(token)
    if options.name not in (None, enrolment.name):
        raise EnrolmentError(f"the token is for a device called {enrolment.name!r}, not {options.name!r}")
    folder = options.state or _root() / enrolment.name
    before = Enrolment.load(folder)
    if before is not None and before.name != enrolment.name:
        raise EnrolmentError(
            f"{folder} is the folder of {before.name!r}, the token is for {enrolment.name!r}: "
            "give another --state"
        )
    claim(folder)
    if before is not None and before.key != enrolment.key:
        log.warning("the aggregator's key has changed: offers signed with the old key are refused now")
    (folder / ISSUED).unlink(missing_ok=True)
    enrolment.save(folder)
    return enrolment


def connect(options: ConnectionOptions) -> Connection:
    """The connection that the options of `add_connection` describe.

    Raises EnrolmentError, UrlError, TopicError.
    """
    address, tls = options.broker, TLS(options.ca, options.cert, options.key)
    url = BrokerUrl.parse(address, tls, options.insecure) if address else None
    password_file = getattr(options, "password_file", None)  # older callers have none
    if url:
        url = url.with_password(password_file, options.name)
    elif password_file:
        raise UrlError("--password-file is for a broker's URL, and none is given: mqtts://USER@host")
    if tls != TLS() and not (url and url.secure):
        raise UrlError("--ca, --cert and --key are for a broker with TLS: give its URL, mqtts:// or wss://")
    if tls.key and not tls.cert:
        raise UrlError("--key is the key of a certificate: give that, too, by --cert")
    folder, enrolment = _home(options, url)
    if enrolment is None:
        if url is None:
            raise UrlError(
                "where is the broker? Give its URL, or enrol first: join (or mask-helper) --enrol -"
            )
        name = check_device(options.name or url.user or _host())
        if options.name is None and (names := _enrolled()):
            others = ", ".join(names)
            log.warning("joining %s as %s, which is not enrolled: offers of any aggregator count", url, name)
            log.warning("enrolled here: %s; --name says which to join as", others)
        return Connection(url, name, folder or _root() / name, name)
    if options.name not in (None, enrolment.name):
        raise EnrolmentError(f"{folder} is enrolled as {enrolment.name!r}, not {options.name!r}")
    if url is None:
        url = enrolment.address
    elif url.user is None:
        url = enrolment.at(url)
    folder = folder or _root() / enrolment.name
    return Connection(url, enrolment.name, folder, enrolment.client_id, enrolment.key, enrolment)


class Connects(Protocol):
    """The part of `broker.wire.link.Link` that is used here."""

    def connect(self, *, stop: threading.Event) -> None:
        """Returns early when `stop` is set. Raises BrokerUnreachable, BrokerRefused; may be called again."""


def first_connection(
    link: Connects,
    stop: threading.Event,
    delay: ReconnectDelay | None = None,
    waits: Callable[[], None] = lambda: None,
) -> bool:
    """Connect, waiting as long as it takes: a device may start before its broker or its network.

    Returns False if `stop` was set first. Logs the reason for waiting once in a row, and calls `waits` before
    each wait. Raises BrokerRefused: a device that is refused now would be refused later, too.
    """
    delay = delay or ReconnectDelay(LinkOptions.reconnect_s)
    reason = ""
    while not stop.is_set():
        try:
            link.connect(stop=stop)
        except BrokerUnreachable as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("%s; trying again", reason)
            waits()
            delay.failed()
            sleep_until(stop, delay.wait_s())
        else:
            return not stop.is_set()
    return False


def folder_of(options: DeviceChoice) -> Path:
    """The folder of the device that the options of `add_device_choice` name, or of the only one here.

    Raises NoDevice.
    """
    if options.state is None and options.name is None:
        names = sorted(path.parent.name for path in _root().glob("*/outbox")) or _enrolled()
        if len(names) != 1:
            here = f"devices here: {', '.join(names)}" if names else f"no device is in {_root()}"
            raise NoDevice(f"{here}: say which with --name or --state")
        return _root() / names[0]
    folder = options.state or _root() / check_device(options.name or "")
    if not folder.is_dir():
        raise NoDevice(f"no device is in {folder}")
    return folder


def is_device(folder: Path) -> bool:
    """Whether the folder is a device's, so that files in it with our names are ours."""
    return any((folder / mark).exists() for mark in MARKS)


@contextmanager
def no_trace(folder: Path) -> Iterator[Callable[[], None]]:
    """Remove the device's folder on leaving, unless the yielded function was called or it existed before.

    So a device that never joined is not listed among the devices here. Raises NoDevice as `claim` does.
    """
    was_there, was_device = folder.is_dir(), is_device(folder)
    claim(folder)
    joined: list[bool] = []
    try:
        yield lambda: joined.append(True)
    finally:
        if not (was_device or joined):
            rmtree(folder, ignore_errors=True)
            if was_there:
                folder.mkdir(mode=0o700)


def claim(folder: Path) -> None:
    """Make the folder a device's own, open to its owner only. Raises NoDevice if it has other files."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_device(folder):
            shut_to_others(folder)
            stranger = None
        else:
            stranger = next(folder.iterdir(), None)
        if stranger is None:
            (folder / "lock").touch(mode=0o600)
    except OSError as error:
        raise NoDevice(f"no device can be in {folder}: {disk_reason(error)}") from None
    if stranger is not None:
        raise NoDevice(
            f"{folder} has other things in it, as {stranger.name}: a device has its folder to itself. "
            "Give another --state, a new or an empty one"
        )


def is_enrolled(options: DeviceChoice) -> bool:
    """Whether there is an enrolment that `connect` would use, readable or not."""
    try:
        return _home(options, None)[1] is not None
    except EnrolmentError:
        return True


def _home(options: DeviceChoice, url: BrokerUrl | None) -> tuple[Path | None, Enrolment | None]:
    """The device's folder, if known, with its enrolment; otherwise those of the only device enrolled here."""
    name = options.name or (url and (url.user or _host()))
    folder = options.state or (_root() / check_device(name) if name else None)
    if folder is not None:
        return folder, Enrolment.load(folder)
    names = _enrolled()
    if len(names) > 1:
        raise EnrolmentError(f"several devices are enrolled here ({', '.join(names)}): say which with --name")
    return (_root() / names[0], Enrolment.load(_root() / names[0])) if names else (None, None)


def _enrolled() -> list[str]:
    """Names of the folders here that have an enrolment; none for a user without a home."""
    try:
        return sorted(path.parent.name for path in _root().glob(f"*/{FILE}"))
    except NoHome:
        return []


def _root() -> Path:
    return state_folder()


def _host() -> str:
    return platform.node().split(".")[0] or "device"
