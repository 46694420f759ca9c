"""Which devices may connect to a broker of one's own: enrolled, listed, revoked.

A device proves its name by a random password, of which Mosquitto keeps a hash. The password file alone
decides who gets in, so it is written first; the list tells people when.
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
import psutil

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.servers.broker_folder import DATA, DEVICES, PASSWORDS, PID, BrokerFolder, SiteError
from device_runtime.broker.servers.mosquitto import hash_passwords, is_of_password
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.topics import check_device

from .enrolment import Enrolment
from .signing import KEY_BYTES, DeviceSigner

PASSWORD_BYTES = 24
"""Random ones: 192 bits, so that their hash need not be slow."""


class RegisterError(BrokerError):
    """A device that cannot be enrolled or revoked, and why."""


class RegisteredDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device in the list; times are in ISO 8601. `revoked` is empty while it may connect. `revocation`: the
    how manyeth of all revocations here its last one was, 0 for none; two of one second are in order so.
    `key` is its public key in hex digits, empty where an earlier version enrolled it: it signs nothing.
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
    """All that were ever enrolled, by name. Raises SiteError."""
    try:
        found = msgspec.json.decode(opened.read(DEVICES), type=list[RegisteredDevice])
    except msgspec.DecodeError as error:
        raise SiteError(f"{opened.folder / DEVICES} cannot be read: {error}") from None
    return sorted(found, key=lambda entry: entry.name)


def revocations(opened: BrokerFolder) -> int:
    """How many there were so far, of any device. Raises SiteError."""
    return _revocations(entries(opened))


def add(opened: BrokerFolder, name: str, now: datetime, web: bool = False, again: bool = False) -> Enrolment:
    """Enrol a device; with `web` it connects over WebSockets. Mosquitto is to be told: see `tell`.

    Raises RegisterError for a name that is enrolled, unless `again`: its password so far is then void.
    """
    check_device(name)
    if name == opened.site.aggregator:
        raise RegisterError(f"{name!r} is the aggregator's own name at this broker: give another")
    url = opened.site.web_url if web else opened.site.url
    who = Agreed(name, secrets.token_urlsafe(PASSWORD_BYTES), secrets.token_bytes(KEY_BYTES), url)
    enrolment = _enrolment(opened, who, now)
    with opened.alone():
        known = {entry.name: entry for entry in entries(opened)}
        if name in known and not known[name].revoked and not again:
            raise RegisterError(
                f"{name!r} is enrolled already: `device revoke {name}` first, or --again for a new token, "
                "which makes the old one void"
            )
        _enter(opened, known, who, now)
    return enrolment


@dataclass(frozen=True)
class Agreed:
    """A device whose password and own key both sides know already, and the broker's address for it. It was
    agreed on `after` so many revocations: by a later one of this name it is void.
    """

    name: str
    password: str = field(repr=False)
    secret: bytes = field(repr=False)
    url: str
    after: int = 0


def settle(opened: BrokerFolder, who: Agreed, now: datetime) -> Enrolment:
    """Enrol a device with this password. Once it is done, doing it again changes nothing.

    Raises RegisterError for a name that is enrolled with another password, or was revoked since.
    """
    check_device(who.name)
    enrolment = _enrolment(opened, who, now)
    with opened.alone():
        known = {entry.name: entry for entry in entries(opened)}
        before = known.get(who.name)
        if before and before.revocation > who.after:
            raise RegisterError(f"device {who.name!r} was revoked since: ask for a new link")
        lines = (one for one in opened.read(PASSWORDS).splitlines() if one.partition(":")[0] == who.name)
        same = any(is_of_password(line, who.password) for line in lines)
        if before and not before.revoked:
            if not same:
                raise RegisterError(
                    f"device {who.name!r} was given another token meanwhile (`device add`), which alone is "
                    "good: use that, or ask for a link for another name"
                )
            if before.key != _public(who):  # an earlier version enrolled it, without
                _enter(opened, known, who, now)
            return enrolment
        _enter(opened, known, who, now)
    return enrolment


def revoke(opened: BrokerFolder, name: str, now: datetime) -> None:
    """Let a device in no more. Raises RegisterError for one that is not enrolled."""
    with opened.alone():
        known = {entry.name: entry for entry in entries(opened)}
        if name not in known or known[name].revoked:
            since = f": it was revoked at {known[name].revoked}" if name in known else ""
            raise RegisterError(f"{name!r} is not enrolled in {opened.folder}{since}")
        _set_password(opened, name, "")
        moment = now.isoformat(timespec="seconds")
        number = _revocations(known.values()) + 1
        known[name] = msgspec.structs.replace(known[name], revoked=moment, revocation=number)
        _keep(opened, known)


@dataclass(frozen=True)
class BrokerReload:
    """Whether Mosquitto was told to read its files again. `text`: what was done, or what is to be done."""

    reached: bool
    text: str


def tell(opened: BrokerFolder) -> BrokerReload:
    """Have a Mosquitto that runs on this machine read its files again."""
    by_hand = "have Mosquitto read its files anew: kill -HUP its process, or `systemctl reload mosquitto`"
    nobody = BrokerReload(
        False, f"no Mosquitto runs on this machine by {opened.folder}; where it does, {by_hand}"
    )
    try:
        number = int((opened.folder / DATA / PID).read_text())
        if psutil.Process(number).name() != "mosquitto":
            return nobody
        os.kill(number, signal.SIGHUP)
    except (PermissionError, psutil.AccessDenied):
        return BrokerReload(
            False, f"the Mosquitto of {opened.folder} may not be told by this user; {by_hand}"
        )
    except (OSError, ValueError, psutil.NoSuchProcess):
        return nobody
    return BrokerReload(True, f"Mosquitto (process {number}) has been told")


def tell_of_revoked(opened: BrokerFolder, name: str) -> BrokerReload:
    """As `tell`. Raises what `check_told` does."""
    told = tell(opened)
    check_told(opened, name, told)
    return told


def check_told(opened: BrokerFolder, name: str, told: BrokerReload) -> None:
    """Raises RegisterError when Mosquitto was not told: it still lets the device in by its old password."""
    if not told.reached:
        raise RegisterError(
            f"Mosquitto was not told that the password of {name!r} is void: until it reads "
            f"{opened.folder / PASSWORDS} again it lets the device in. {told.text}"
        )


def _enrolment(opened: BrokerFolder, who: Agreed, now: datetime) -> Enrolment:
    issued = int(now.timestamp())
    key, authority = opened.signer.public, opened.authority
    return Enrolment(who.url, who.name, who.password, authority, key, issued, who.secret)


def _public(who: Agreed) -> str:
    return DeviceSigner(who.secret).public.hex()


def _enter(opened: BrokerFolder, known: dict[str, RegisteredDevice], who: Agreed, now: datetime) -> None:
    _set_password(opened, who.name, hash_passwords(BrokerOptions(users={who.name: who.password})))
    before = known[who.name].revocation if who.name in known else 0
    moment = now.isoformat(timespec="seconds")
    known[who.name] = RegisteredDevice(name=who.name, enrolled=moment, revocation=before, key=_public(who))
    _keep(opened, known)


def _revocations(known: Iterable[RegisteredDevice]) -> int:
    return max((entry.revocation for entry in known), default=0)


def _set_password(opened: BrokerFolder, name: str, line: str) -> None:
    others = [one for one in opened.read(PASSWORDS).splitlines() if one.partition(":")[0] != name]
    opened.write(PASSWORDS, "\n".join([*others, *line.splitlines()]) + "\n")


def _keep(opened: BrokerFolder, known: dict[str, RegisteredDevice]) -> None:
    opened.write(DEVICES, msgspec.json.format(msgspec.json.encode(list(known.values()))).decode() + "\n")
