"""The register of the devices that may connect to a production broker: enrol, list, revoke.

A device proves its name by a random password, of which Mosquitto keeps a hash. The password file alone
decides who may connect, so it is written first; the list is for people, with the times.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.signing import KEY_BYTES, DeviceSigner
from device_runtime.broker.servers.broker_folder import (
    DATA,
    DEVICES,
    PASSWORDS,
    PID,
    BrokerFolder,
    SetupError,
)
from device_runtime.broker.servers.mosquitto import hash_passwords, matches_password
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.topics import check_device
from device_runtime.machine_readings import process_name

PASSWORD_BYTES = 24
"""Random bytes of a password: 192 bits, so that its hash need not be slow."""


class RegisterError(BrokerError):
    """A device that cannot be enrolled or revoked, and why."""


class RegisteredDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device in the list; times are in ISO 8601.

    `revoked` is empty while it may connect. `revocation`: the number of its last revocation among all
    revocations here, from 1 on, 0 for none; it orders two within one second. `key`: its public key in hex
    digits, empty if an earlier version enrolled it: then it signs nothing.
    """

    name: str
    enrolled: str
    revoked: str = ""
    revocation: int = 0
    key: str = ""

    @property
    def state(self) -> Literal["enrolled", "revoked"]:
        return "revoked" if self.revoked else "enrolled"


def entries(opened: BrokerFolder) -> list[RegisteredDevice]:
    """All devices that were ever enrolled, by name. Raises SetupError."""
    try:
        devices = msgspec.json.decode(opened.read(DEVICES), type=list[RegisteredDevice])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{opened.folder / DEVICES} cannot be read: {error}") from None
    return sorted(devices, key=lambda entry: entry.name)


def revocations(opened: BrokerFolder) -> int:
    """The number of revocations so far, of any device. Raises SetupError."""
    return _revocations(entries(opened))


def add(opened: BrokerFolder, name: str, now: datetime, web: bool = False, again: bool = False) -> Enrolment:
    """Enrol a device; with `web` it connects over WebSockets. Call `reload_mosquitto` afterwards.

    Raises RegisterError for a name that is enrolled, unless `again`, which makes its old password void.
    """
    check_device(name)
    if name == opened.site.aggregator:
        raise RegisterError(f"{name!r} is the aggregator's own name at this broker: give another")
    url = opened.site.web_url if web else opened.site.url
    agreed = AgreedCredentials(
        name, secrets.token_urlsafe(PASSWORD_BYTES), secrets.token_bytes(KEY_BYTES), url
    )
    enrolment = _enrolment(opened, agreed, now)
    with opened.alone():
        devices = {entry.name: entry for entry in entries(opened)}
        if name in devices and not devices[name].revoked and not again:
            raise RegisterError(
                f"{name!r} is enrolled already: `device revoke {name}` first, or --again for a new token, "
                "which makes the old one void"
            )
        _enter(opened, devices, agreed, now)
    return enrolment


@dataclass(frozen=True)
class AgreedCredentials:
    """The credentials of a device that both sides know already, and the broker's address for it.

    They were agreed on after `after` revocations: a later revocation of this name makes them void.
    """

    name: str
    password: str = field(repr=False)
    secret: bytes = field(repr=False)
    url: str
    after: int = 0


def enrol_agreed(opened: BrokerFolder, agreed: AgreedCredentials, now: datetime) -> Enrolment:
    """Enrol a device with agreed credentials. A repetition changes nothing.

    Raises RegisterError for a name that is enrolled with another password, or was revoked since.
    """
    check_device(agreed.name)
    enrolment = _enrolment(opened, agreed, now)
    with opened.alone():
        devices = {entry.name: entry for entry in entries(opened)}
        before = devices.get(agreed.name)
        if before and before.revocation > agreed.after:
            raise RegisterError(f"device {agreed.name!r} was revoked since: ask for a new link")
        lines = (row for row in opened.read(PASSWORDS).splitlines() if row.partition(":")[0] == agreed.name)
        same = any(matches_password(line, agreed.password) for line in lines)
        if before and not before.revoked:
            if not same:
                raise RegisterError(
                    f"device {agreed.name!r} was given another token meanwhile (`device add`), the only "
                    "valid one: use that, or ask for a link for another name"
                )
            if before.key != _public(agreed):  # an earlier version enrolled it, without a key
                _enter(opened, devices, agreed, now)
            return enrolment
        _enter(opened, devices, agreed, now)
    return enrolment


def revoke(opened: BrokerFolder, name: str, now: datetime) -> None:
    """Void a device's password. Raises RegisterError for a device that is not enrolled."""
    with opened.alone():
        devices = {entry.name: entry for entry in entries(opened)}
        if name not in devices or devices[name].revoked:
            since = f": it was revoked at {devices[name].revoked}" if name in devices else ""
            raise RegisterError(f"{name!r} is not enrolled in {opened.folder}{since}")
        _set_password(opened, name, "")
        moment = now.isoformat(timespec="seconds")
        number = _revocations(devices.values()) + 1
        devices[name] = msgspec.structs.replace(devices[name], revoked=moment, revocation=number)
        _write_list(opened, devices)


@dataclass(frozen=True)
class BrokerReload:
    """Whether Mosquitto was told to read its files again. `text`: what was done, or what remains to do."""

    reached: bool
    text: str


def reload_mosquitto(opened: BrokerFolder) -> BrokerReload:
    """Tell a Mosquitto on this machine to read its files again (SIGHUP)."""
    by_hand = "have Mosquitto read its files anew: kill -HUP its process, or `systemctl reload mosquitto`"
    nobody = BrokerReload(
        False, f"no Mosquitto of {opened.folder} runs on this machine; where it runs, {by_hand}"
    )
    try:
        number = int((opened.folder / DATA / PID).read_text())
        if process_name(number) != "mosquitto":
            return nobody
        os.kill(number, signal.SIGHUP)
    except PermissionError:
        return BrokerReload(False, f"this user may not signal the Mosquitto of {opened.folder}; {by_hand}")
    except (OSError, ValueError):
        return nobody
    return BrokerReload(True, f"Mosquitto (process {number}) has been told")


def reload_after_revocation(opened: BrokerFolder, name: str) -> BrokerReload:
    """`reload_mosquitto`, then `check_reloaded`."""
    reload = reload_mosquitto(opened)
    check_reloaded(opened, name, reload)
    return reload


def check_reloaded(opened: BrokerFolder, name: str, reload: BrokerReload) -> None:
    """Raise RegisterError when Mosquitto was not told: it still accepts the device's old password."""
    if not reload.reached:
        raise RegisterError(
            f"Mosquitto was not told that the password of {name!r} is void: until it reads "
            f"{opened.folder / PASSWORDS} again it lets the device in. {reload.text}"
        )


def _enrolment(opened: BrokerFolder, agreed: AgreedCredentials, now: datetime) -> Enrolment:
    issued = int(now.timestamp())
    key, authority = opened.signer.public, opened.authority
    return Enrolment(agreed.url, agreed.name, agreed.password, authority, key, issued, agreed.secret)


def _public(agreed: AgreedCredentials) -> str:
    return DeviceSigner(agreed.secret).public.hex()


def _enter(
    opened: BrokerFolder, devices: dict[str, RegisteredDevice], agreed: AgreedCredentials, now: datetime
) -> None:
    _set_password(opened, agreed.name, hash_passwords(BrokerOptions(users={agreed.name: agreed.password})))
    before = devices[agreed.name].revocation if agreed.name in devices else 0
    moment = now.isoformat(timespec="seconds")
    devices[agreed.name] = RegisteredDevice(
        name=agreed.name, enrolled=moment, revocation=before, key=_public(agreed)
    )
    _write_list(opened, devices)


def _revocations(devices: Iterable[RegisteredDevice]) -> int:
    return max((entry.revocation for entry in devices), default=0)


def _set_password(opened: BrokerFolder, name: str, line: str) -> None:
    others = [row for row in opened.read(PASSWORDS).splitlines() if row.partition(":")[0] != name]
    opened.write(PASSWORDS, "\n".join([*others, *line.splitlines()]) + "\n")


def _write_list(opened: BrokerFolder, devices: dict[str, RegisteredDevice]) -> None:
    opened.write(DEVICES, msgspec.json.format(msgspec.json.encode(list(devices.values()))).decode() + "\n")
