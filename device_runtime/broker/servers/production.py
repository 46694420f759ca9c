"""Setting up a broker for production: certificates, credentials, Mosquitto's configuration."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from device_runtime.broker.security import authority
from device_runtime.broker.wire.partial_blob import sync_folder

from .broker_folder import (
    ACCESS,
    AGGREGATOR_KEY,
    AGGREGATOR_PASSWORD,
    CA,
    CA_KEY,
    CONFIGURATION,
    DATA,
    DEVICES,
    PASSWORDS,
    PID,
    SERVER,
    SERVER_KEY,
    SITE,
    BrokerFolder,
    BrokerSite,
    SiteError,
    write,
)
from .mosquitto import CONNECTIONS, LIMITS, access_list, hash_passwords
from .server import BrokerOptions

CA_DAYS = 3650
SERVER_DAYS = 825
"""The longest that some platforms accept."""
AUTOSAVE_S = 60
"""Seconds between writings of what is retained: aggregators say it anew, should it be lost."""
KEEPALIVE_S = 300
"""Seconds. Who wants to be silent for longer is not let in (MQTT 3.1.1) or told this (5); ours say 30."""
BEGUN = ".begun"
"""There while a folder is being made: what else is there then was never told to anybody."""
_PUBLIC = (CA, SERVER, SITE, CONFIGURATION, ACCESS)
_FOR_MOSQUITTO = (CA, SERVER, SERVER_KEY, CONFIGURATION, ACCESS, PASSWORDS, DATA)


def found(folder: Path, site: BrokerSite, now: datetime, days: int = SERVER_DAYS) -> BrokerFolder:
    """Make everything that a broker needs. `days`: how long the broker's certificate is valid.

    One that came to nothing half-way may be made again. Raises SiteError where something of it exists
    already, AuthorityError for a name that is none.
    """
    folder = folder.resolve()
    _check(folder, site)
    ours = authority.make_authority("device-runtime", now, CA_DAYS, site.names)
    server = authority.issue(ours, site.names, now, days)
    password = secrets.token_urlsafe(24)
    options = BrokerOptions(users={site.aggregator: password}, aggregator=site.aggregator)
    texts = {
        CA: ours.certificate,
        CA_KEY: ours.key,
        SERVER: server.certificate,
        SERVER_KEY: server.key,
        AGGREGATOR_PASSWORD: password + "\n",
        PASSWORDS: hash_passwords(options),
        ACCESS: access_list(options),
        CONFIGURATION: configure(site, folder),
        DEVICES: "[]\n",
        SITE: msgspec.json.format(msgspec.json.encode(site)).decode() + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / BEGUN, "")
        (folder / DATA).mkdir(exist_ok=True)
        (folder / DATA).chmod(0o700)
    except OSError as error:
        raise SiteError(f"cannot make {folder}: {error.strerror or error}") from None
    for name, text in texts.items():
        write(folder / name, text, 0o644 if name in _PUBLIC else 0o600)
    opened = BrokerFolder(folder)
    _ = opened.signer
    _hand_over(folder, site.run_as)
    _end(folder)
    return opened


def renew(opened: BrokerFolder, now: datetime, days: int = SERVER_DAYS) -> datetime:
    """A new certificate for the broker's key, by the same authority: devices notice nothing. Returns when it
    ends. Only one file changes: whatever happens, certificate and key are of each other.

    Raises SiteError, AuthorityError.
    """
    signing, key = (opened.read(CA), opened.read(CA_KEY)), opened.read(SERVER_KEY)
    pair = authority.renew(signing, key, opened.site.names, (now, days))
    write(opened.folder / SERVER, pair.certificate, 0o644)
    return pair.until


def upgrade(opened: BrokerFolder) -> tuple[str, ...]:
    """Write the configuration and the access list as `found` would write them now, for a folder that an older
    version made; what was there is kept beside it, as NAME.old. Returns the names of those that changed.

    Raises SiteError.
    """
    options = BrokerOptions(users={opened.site.aggregator: "x"}, aggregator=opened.site.aggregator)
    texts = {CONFIGURATION: configure(opened.site, opened.folder), ACCESS: access_list(options)}
    changed = tuple(name for name, text in texts.items() if opened.read(name) != text)
    for name in changed:
        write(opened.folder / f"{name}.old", opened.read(name), 0o644)
        write(opened.folder / name, texts[name], 0o644)
    return changed


def configure(site: BrokerSite, folder: Path) -> str:
    """The text of mosquitto.conf."""
    lines = [
        "# Written by `device-runtime broker init`. Mosquitto reads it at its start; passwords, the access",
        "# list and certificates also at SIGHUP.",
        "per_listener_settings false",
        *_listener(site.port, site, folder),
    ]
    if site.websockets:
        lines += [*_listener(site.websockets, site, folder), "protocol websockets"]
    lines += [
        "",
        "allow_anonymous false",
        f"password_file {folder / PASSWORDS}",
        f"acl_file {folder / ACCESS}",
        "",
        *LIMITS,
        f"max_keepalive {KEEPALIVE_S}",
        "",
        "persistence true",
        f"persistence_location {folder / DATA}/",
        f"autosave_interval {AUTOSAVE_S}",
        f"pid_file {folder / DATA / PID}",
        "log_dest stderr",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
    ]
    if site.run_as:
        lines.append(f"user {site.run_as}")
    return "\n".join(lines) + "\n"


def _listener(port: int, site: BrokerSite, folder: Path) -> Iterator[str]:
    yield ""
    yield f"listener {port} {site.listen}".rstrip()
    yield f"max_connections {CONNECTIONS}"
    yield f"certfile {folder / SERVER}"
    yield f"keyfile {folder / SERVER_KEY}"
    yield "tls_version tlsv1.2"


def _check(folder: Path, site: BrokerSite) -> None:
    """Raises SiteError."""
    ours = (*_FOR_MOSQUITTO, CA_KEY, SITE, DEVICES, AGGREGATOR_KEY, AGGREGATOR_PASSWORD)
    there = [name for name in ours if (folder / name).exists()]
    if there and not (folder / BEGUN).exists():
        raise SiteError(f"{folder} has {', '.join(there)} already, which is never written over: give another")
    if any(letter in str(folder) for letter in "\n\r#"):
        raise SiteError(f"{folder}: a path with '#' or line ends cannot stand in Mosquitto's configuration")
    if any(letter.isspace() or letter == "#" for letter in site.listen + site.run_as):
        raise SiteError(
            f"{site.listen!r}, {site.run_as!r}: an address or a user's name has no spaces and no '#'"
        )
    for port in (site.port, site.websockets):
        if not 0 <= port < 65536 or (port == site.websockets == site.port):
            raise SiteError(f"ports {site.port} and {site.websockets}: give two different ones up to 65535")
    if site.run_as and os.geteuid() == 0:
        try:
            pwd.getpwnam(site.run_as)
        except KeyError:
            raise SiteError(f"no user of this machine is called {site.run_as!r}") from None


def _end(folder: Path) -> None:
    """From here on nothing is written over."""
    try:
        (folder / BEGUN).unlink()
        sync_folder(folder)
    except OSError as error:
        raise SiteError(f"cannot write {folder}: {error.strerror or error}") from None


def _hand_over(folder: Path, user: str) -> None:
    """Whoever runs Mosquitto must read what it reads."""
    if not user or os.geteuid() != 0:
        return
    owner = pwd.getpwnam(user)
    try:
        for name in _FOR_MOSQUITTO:
            os.chown(folder / name, owner.pw_uid, owner.pw_gid)
    except OSError as error:
        raise SiteError(f"cannot give {folder} to {user!r}: {error.strerror or error}") from None
