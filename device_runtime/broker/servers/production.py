"""Setting up a broker for production: certificates, credentials, Mosquitto's configuration."""

from __future__ import annotations

import argparse
import getpass
import os
import platform
import pwd
import secrets
import shlex
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from device_runtime.broker.security import authority, register
from device_runtime.broker.security.signing import fingerprint
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
    SHOWN_S,
    SITE,
    SUCCESSIONS,
    BrokerFolder,
    BrokerSite,
    SiteError,
    rotate_key,
    write,
)
from .mosquitto import CONNECTIONS, LIMITS, access_list, find, hash_passwords
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


# FROM broker_setup: `device-runtime broker init DIR`, `broker renew DIR` and `broker upgrade DIR`: a broker
# for production.

INIT_EXAMPLE = "device-runtime broker init enrolment --name broker.example.org --name 192.0.2.7"
LOCAL = ("localhost", "127.0.0.1", "::1")
"""In every certificate: what runs on the broker's own machine."""


def add_actions(parser: argparse.ArgumentParser) -> None:
    """`init`, `renew`, `rotate-key` and `upgrade`, as actions of the command."""
    actions = parser.add_subparsers(
        dest="action", metavar="[init | renew | rotate-key | upgrade]", required=False
    )
    help_text = "Write a production configuration of Mosquitto: certificates, credentials, access list."
    init = actions.add_parser(
        "init", help=help_text, description=help_text, epilog=f"Example: {INIT_EXAMPLE}"
    )
    init.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="Write into this folder, which is made if need be; nothing in it is overwritten.",
    )
    init.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="Let devices reach it by this name or address; may be repeated (default: this host's name).",
    )
    init.add_argument(
        "--port",
        type=int,
        default=8883,
        dest="tls_port",
        help="Listen on this port for MQTT over TLS (default: 8883).",
    )
    init.add_argument(
        "--websockets",
        type=int,
        default=0,
        metavar="PORT",
        help="Listen for WebSockets with TLS, too, on this port.",
    )
    init.add_argument(
        "--listen", default="", metavar="ADDRESS", help="Listen at this address only (default: everywhere)."
    )
    init.add_argument(
        "--run-as", default="", metavar="USER", help="Let this user run Mosquitto (default: you)."
    )
    help_text = "Give the broker a new certificate, by the same authority."
    renew = actions.add_parser("renew", help=help_text, description=help_text)
    renew.add_argument("folder", type=Path, metavar="DIR", help="Change this folder of `broker init`.")
    help_text = "Give the aggregator a new signing key, which its old one signs: devices take it over."
    rotate = actions.add_parser("rotate-key", help=help_text, description=help_text)
    rotate.add_argument("folder", type=Path, metavar="DIR", help="Change this folder of `broker init`.")
    help_text = "Write access list and configuration as this version does; what was there becomes NAME.old."
    upgrade = actions.add_parser("upgrade", help=help_text, description=help_text)
    upgrade.add_argument("folder", type=Path, metavar="DIR", help="Change this folder of `broker init`.")
    for one in (init, renew):
        one.add_argument(
            "--days",
            type=int,
            default=825,
            help="Make the certificate valid for this many days (default: 825).",
        )


def run(args: argparse.Namespace) -> int:
    """Set it up, renew its certificate, or write its configuration anew. Raises BrokerError."""

    if args.action == "rotate-key":
        return _rotate_key(BrokerFolder(args.folder), int(datetime.now(timezone.utc).timestamp()))
    if args.action == "upgrade":
        return _upgrade(BrokerFolder(args.folder))
    now = datetime.now(timezone.utc)
    if not 1 <= args.days <= CA_DAYS:
        raise SiteError(f"--days {args.days}: expected 1 to {CA_DAYS}")
    if args.action == "renew":
        opened = BrokerFolder(args.folder)
        until = renew(opened, now, args.days)
        print(f"the certificate of {opened.site.names[0]} is valid until {until:%Y-%m-%d}")
        print(register.tell(opened).text)
        return 0
    names = args.name or [platform.node()]
    site = BrokerSite(
        names=tuple(dict.fromkeys((*names, *LOCAL))),
        port=args.tls_port,
        websockets=args.websockets,
        listen=args.listen,
        run_as=args.run_as or (getpass.getuser() if os.geteuid() == 0 else ""),
    )
    opened = found(args.folder, site, now, args.days)
    print(_told(opened, args.days))
    return 0


def _rotate_key(opened: BrokerFolder, now: int) -> int:
    before = fingerprint(opened.signer.public)
    new = fingerprint(rotate_key(opened, now).public)
    print(f"The aggregator's key is {new}. Before it was {before}, which has signed the new one.")
    print(
        "Restart `serve`: until then it signs by the old one. Where it is on another machine, copy "
        f"{AGGREGATOR_KEY} and {SUCCESSIONS} there first."
    )
    print(
        "Devices take the new key over with the next offer, and refuse the old one from then on. One that "
        f"hears no offer for {SHOWN_S // 86400} days must be enrolled again."
    )
    return 0


def _upgrade(opened: BrokerFolder) -> int:
    """Mosquitto reads its access list at a signal, and its configuration at its start alone."""

    changed = upgrade(opened)
    if not changed:
        print(f"{opened.folder} is as this version writes it")
        return 0
    print(
        f"written in {opened.folder}: {', '.join(changed)} (before: {', '.join(f'{n}.old' for n in changed)})"
    )
    print(register.tell(opened).text)
    if CONFIGURATION in changed:
        print(
            "Start Mosquitto anew for the limits in mosquitto.conf: `systemctl restart mosquitto`, or by hand"
        )
    return 0


def _told(opened: BrokerFolder, days: int) -> str:
    site, folder = opened.site, shlex.quote(str(opened.folder))
    program = find()
    lines = [
        f"A broker is set up in {opened.folder}, for {', '.join(site.names)}.",
        f"Its certificate is valid for {days} days; then, and for it: device-runtime broker renew {folder}",
        "Keep ca.key where only you can read it: who has it can pretend to be the broker.",
        "",
        "Start it:",
        f"  {shlex.quote(program or 'mosquitto')} -c {folder}/mosquitto.conf",
        "or as a service of systemd:",
        f"  ExecStart={program or '/usr/sbin/mosquitto'} -c {opened.folder}/mosquitto.conf",
        "  ExecReload=/bin/kill -HUP $MAINPID",
        "The aggregator, on this machine or where a copy of the folder's files for it is:",
        f"  device-runtime serve --enrolment {folder} --bundle digits-wrn-10-1",
        "Each device:",
        f"  device-runtime device add NAME --dir {folder}",
    ]
    if program is None:
        lines.insert(4, "Mosquitto is not installed here: install it, 2.0 or newer.")
    if site.websockets:
        lines.insert(4, "WebSockets need a Mosquitto that was built with them: not every package is.")
    return "\n".join(lines)
