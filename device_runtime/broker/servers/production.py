"""Sets up a broker for production: certificates, credentials, Mosquitto's configuration."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from device_runtime.broker.security import authority
from device_runtime.broker.wire.durable_files import private_folder, sync_folder

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
    BrokerSetup,
    SetupError,
    write,
)
from .mosquitto import CONNECTIONS, LIMITS, access_list, hash_passwords
from .server import BrokerOptions

CA_DAYS = 3650
SERVER_DAYS = 825
"""Days that a broker's certificate is valid: the most that some platforms accept."""
AUTOSAVE_S = 60
"""Seconds between saves of retained messages; aggregators publish them again if they are lost."""
KEEPALIVE_S = 300
"""The longest keep-alive of a client, in seconds; this project's clients use 30.

The broker refuses a client with a longer one (MQTT 3.1.1), or gives it this one (MQTT 5).
"""
BEGUN = ".begun"
"""A file that exists while a folder is being made: until it is gone, the keys beside it are in no use."""
_PUBLIC = (CA, SERVER, SITE, CONFIGURATION, ACCESS)
_FOR_MOSQUITTO = (CA, SERVER, SERVER_KEY, CONFIGURATION, ACCESS, PASSWORDS, DATA)


def init_broker(folder: Path, site: BrokerSetup, now: datetime, days: int = SERVER_DAYS) -> BrokerFolder:
    """Make everything that a broker needs. `days`: how long the broker's certificate is valid.

    After a failure half-way it may be called again. Raises SetupError when files of a broker exist already,
    AuthorityError for an invalid host name.
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
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write(folder / BEGUN, "")
        private_folder(folder / DATA)
    except OSError as error:
        raise SetupError(f"cannot make {folder}: {error.strerror or error}") from None
    for name, text in texts.items():
        write(folder / name, text, 0o644 if name in _PUBLIC else 0o600)
    opened = BrokerFolder(folder)
    _ = opened.signer
    _hand_over(folder, site.run_as)
    _end(folder)
    return opened


def renew(opened: BrokerFolder, now: datetime, days: int = SERVER_DAYS) -> datetime:
    """Renew the broker's certificate, with the same key and authority. Returns when it expires.

    Devices notice nothing. Only one file changes, so that certificate and key always fit each other. Raises
    SetupError, AuthorityError.
    """
    signing, key = (opened.read(CA), opened.read(CA_KEY)), opened.read(SERVER_KEY)
    pair = authority.renew(signing, key, opened.site.names, (now, days))
    write(opened.folder / SERVER, pair.certificate, 0o644)
    return pair.until


def upgrade(opened: BrokerFolder) -> tuple[str, ...]:
    """Update the configuration and the access list of a folder that an older version made.

    They become as `init_broker` writes them now; the old files are kept as NAME.old. Returns the names of
    the files that changed. Raises SetupError.
    """
    options = BrokerOptions(users={opened.site.aggregator: "x"}, aggregator=opened.site.aggregator)
    texts = {CONFIGURATION: configure(opened.site, opened.folder), ACCESS: access_list(options)}
    changed = tuple(name for name, text in texts.items() if opened.read(name) != text)
    for name in changed:
        write(opened.folder / f"{name}.old", opened.read(name), 0o644)
        write(opened.folder / name, texts[name], 0o644)
    return changed


def configure(site: BrokerSetup, folder: Path) -> str:
    """The text of mosquitto.conf for a production broker."""
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


def _listener(port: int, site: BrokerSetup, folder: Path) -> Iterator[str]:
    yield ""
    yield f"listener {port} {site.listen}".rstrip()
    yield f"max_connections {CONNECTIONS}"
    yield f"certfile {folder / SERVER}"
    yield f"keyfile {folder / SERVER_KEY}"
    yield "tls_version tlsv1.2"


def _check(folder: Path, site: BrokerSetup) -> None:
    """Raise SetupError when the folder is taken, or a setting is invalid."""
    ours = (*_FOR_MOSQUITTO, CA_KEY, SITE, DEVICES, AGGREGATOR_KEY, AGGREGATOR_PASSWORD)
    names = [name for name in ours if (folder / name).exists()]
    if names and not (folder / BEGUN).exists():
        raise SetupError(
            f"{folder} has {', '.join(names)} already, which is never written over: give another"
        )
    if any(letter in str(folder) for letter in "\n\r#"):
        raise SetupError(f"{folder}: a path with '#' or line ends cannot stand in Mosquitto's configuration")
    if any(letter.isspace() or letter == "#" for letter in site.listen + site.run_as):
        raise SetupError(
            f"{site.listen!r}, {site.run_as!r}: an address or a user's name has no spaces and no '#'"
        )
    for port in (site.port, site.websockets):
        if not 0 <= port < 65536 or (port == site.websockets == site.port):
            raise SetupError(f"ports {site.port} and {site.websockets}: give two different ones up to 65535")
    if site.run_as and os.geteuid() == 0:
        try:
            pwd.getpwnam(site.run_as)
        except KeyError:
            raise SetupError(f"no user of this machine is called {site.run_as!r}") from None


def _end(folder: Path) -> None:
    """Mark the folder as complete: from here on nothing in it is overwritten."""
    try:
        (folder / BEGUN).unlink()
        sync_folder(folder)
    except OSError as error:
        raise SetupError(f"cannot write {folder}: {error.strerror or error}") from None


def _hand_over(folder: Path, user: str) -> None:
    """As root, make Mosquitto's user the owner of the files that Mosquitto reads."""
    if not user or os.geteuid() != 0:
        return
    owner = pwd.getpwnam(user)
    try:
        for name in _FOR_MOSQUITTO:
            os.chown(folder / name, owner.pw_uid, owner.pw_gid)
    except OSError as error:
        raise SetupError(f"cannot give {folder} to {user!r}: {error.strerror or error}") from None
