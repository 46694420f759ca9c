"""Which devices may connect to a broker of one's own: enrolled, listed, revoked.

A device proves its name by a random password, of which Mosquitto keeps a hash. The password file alone
decides who gets in, so it is written first; the list tells people when.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec
import psutil

from .enrolment import Enrolment
from .errors import BrokerError
from .mosquitto import hash_passwords, is_of_password
from .running import BrokerOptions
from .site import DATA, DEVICES, PASSWORDS, PID, SITE, Opened, SiteError
from .topics import check_device

PASSWORD_BYTES = 24
"""Random ones: 192 bits, so that their hash need not be slow."""


class RegisterError(BrokerError):
    """A device that cannot be enrolled or revoked, and why."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A device in the list; times are in ISO 8601. `revoked` is empty while it may connect."""

    name: str
    enrolled: str
    revoked: str = ""

    @property
    def state(self) -> Literal["enrolled", "revoked"]:
        return "revoked" if self.revoked else "enrolled"


def entries(opened: Opened) -> list[Entry]:
    """All that were ever enrolled, by name. Raises SiteError."""
    try:
        found = msgspec.json.decode(opened.read(DEVICES), type=list[Entry])
    except msgspec.DecodeError as error:
        raise SiteError(f"{opened.folder / DEVICES} cannot be read: {error}") from None
    return sorted(found, key=lambda entry: entry.name)


def add(opened: Opened, name: str, now: datetime, web: bool = False, again: bool = False) -> Enrolment:
    """Enrol a device; with `web` it connects over WebSockets. Mosquitto is to be told: see `tell`.

    Raises RegisterError for a name that is enrolled, unless `again`: its password so far is then void.
    """
    check_device(name)
    if name == opened.site.aggregator:
        raise RegisterError(f"{name!r} is the aggregator's own name at this broker: give another")
    url = opened.site.web_url if web else opened.site.url
    who = Agreed(name, secrets.token_urlsafe(PASSWORD_BYTES), url)
    enrolment = _enrolment(opened, who, now)
    with _alone(opened):
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
    """A device whose password both sides know already, and the broker's address for it."""

    name: str
    password: str = field(repr=False)
    url: str


def settle(opened: Opened, who: Agreed, now: datetime) -> Enrolment:
    """Enrol a device with this password. Once it is done, doing it again changes nothing.

    Raises RegisterError for a name that is enrolled with another password.
    """
    check_device(who.name)
    enrolment = _enrolment(opened, who, now)
    with _alone(opened):
        known = {entry.name: entry for entry in entries(opened)}
        lines = (one for one in opened.read(PASSWORDS).splitlines() if one.partition(":")[0] == who.name)
        same = any(is_of_password(line, who.password) for line in lines)
        if who.name in known and not known[who.name].revoked:
            if not same:
                raise RegisterError(f"{who.name!r} was enrolled otherwise meanwhile: ask for another link")
            return enrolment
        _enter(opened, known, who, now)
    return enrolment


def revoke(opened: Opened, name: str, now: datetime) -> None:
    """Let a device in no more. Raises RegisterError for one that is not enrolled."""
    with _alone(opened):
        known = {entry.name: entry for entry in entries(opened)}
        if name not in known or known[name].revoked:
            since = f": it was revoked at {known[name].revoked}" if name in known else ""
            raise RegisterError(f"{name!r} is not enrolled in {opened.folder}{since}")
        _set_password(opened, name, "")
        moment = now.isoformat(timespec="seconds")
        known[name] = msgspec.structs.replace(known[name], revoked=moment)
        _keep(opened, known)


def tell(opened: Opened) -> str:
    """Have a Mosquitto that runs on this machine read its files anew. Returns what was, or is to be, done."""
    by_hand = "have Mosquitto read its files anew: kill -HUP its process, or `systemctl reload mosquitto`"
    try:
        number = int((opened.folder / DATA / PID).read_text())
        process = psutil.Process(number)
        if process.name() != "mosquitto":
            return f"no Mosquitto runs on this machine by {opened.folder}; where it does, {by_hand}"
        os.kill(number, signal.SIGHUP)
    except (PermissionError, psutil.AccessDenied):
        return by_hand
    except (OSError, ValueError, psutil.NoSuchProcess):
        return f"no Mosquitto runs on this machine by {opened.folder}; where it does, {by_hand}"
    return f"Mosquitto (process {number}) has been told"


def _enrolment(opened: Opened, who: Agreed, now: datetime) -> Enrolment:
    issued = int(now.timestamp())
    return Enrolment(who.url, who.name, who.password, opened.authority, opened.signer.public, issued)


def _enter(opened: Opened, known: dict[str, Entry], who: Agreed, now: datetime) -> None:
    _set_password(opened, who.name, hash_passwords(BrokerOptions(users={who.name: who.password})))
    known[who.name] = Entry(name=who.name, enrolled=now.isoformat(timespec="seconds"))
    _keep(opened, known)


def _set_password(opened: Opened, name: str, line: str) -> None:
    others = [one for one in opened.read(PASSWORDS).splitlines() if one.partition(":")[0] != name]
    opened.write(PASSWORDS, "\n".join([*others, *line.splitlines()]) + "\n")


def _keep(opened: Opened, known: dict[str, Entry]) -> None:
    opened.write(DEVICES, msgspec.json.format(msgspec.json.encode(list(known.values()))).decode() + "\n")


@contextmanager
def _alone(opened: Opened) -> Iterator[None]:
    """Two that enrol at once must not lose each other's device."""
    with (opened.folder / SITE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
