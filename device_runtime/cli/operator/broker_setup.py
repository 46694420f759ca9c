"""`device-runtime broker init`, `renew`, `rotate-key` and `upgrade`: set up a production broker."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shlex
from datetime import datetime, timezone
from pathlib import Path

from device_runtime.broker.security.audit import recorded, this_user
from device_runtime.broker.security.signing import fingerprint
from device_runtime.broker.servers import register
from device_runtime.broker.servers.broker_folder import (
    AGGREGATOR_KEY,
    CONFIGURATION,
    SUCCESSION_SHOWN_S,
    SUCCESSIONS,
    BrokerFolder,
    BrokerSetup,
    SetupError,
    rotate_key,
)
from device_runtime.broker.servers.dependent_process import FILES
from device_runtime.broker.servers.mosquitto import USERS, find, shut_to, unprivileged_user

INIT_EXAMPLE = "device-runtime broker init enrolment --name broker.example.org --name 192.0.2.7"

log = logging.getLogger(__name__)

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names in every certificate, for programs on the broker's own machine."""


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add `init`, `renew`, `rotate-key` and `upgrade` as actions of the command."""
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
        "--run-as",
        default="",
        metavar="USER",
        help="Let this user run Mosquitto (default: you; as root, mosquitto or else nobody).",
    )
    changing = {
        "renew": "Give the broker a new certificate, by the same authority.",
        "rotate-key": "Give the aggregator a new signing key, which its old one signs: devices take it over.",
        "upgrade": "Write access list and configuration as this version does; older ones become NAME.old.",
    }
    parsers = {name: actions.add_parser(name, help=text, description=text) for name, text in changing.items()}
    for action in parsers.values():
        action.add_argument("folder", type=Path, metavar="DIR", help="Change this folder of `broker init`.")
    for action in (init, parsers["renew"]):
        action.add_argument(
            "--days",
            type=int,
            default=825,
            help="Make the certificate valid for this many days (default: 825).",
        )


def run(args: argparse.Namespace) -> int:
    """Do one of the actions. Raises BrokerError."""
    from device_runtime.broker.servers.production import CA_DAYS, init_broker, renew

    if args.action == "rotate-key":
        return _rotate_key(BrokerFolder(args.folder), int(datetime.now(timezone.utc).timestamp()))
    if args.action == "upgrade":
        return _upgrade(BrokerFolder(args.folder))
    now = datetime.now(timezone.utc)
    if not 1 <= args.days <= CA_DAYS:
        raise SetupError(f"--days {args.days}: expected 1 to {CA_DAYS}")
    if args.action == "renew":
        opened = BrokerFolder(args.folder)
        with recorded(opened.folder, this_user(), "renew", f"certificate, for {args.days} days"):
            until = renew(opened, now, args.days)
        print(f"the certificate of {opened.site.names[0]} is valid until {until:%Y-%m-%d}")
        print(register.reload_mosquitto(opened).text)
        return 0
    names = args.name or [platform.node()]
    site = BrokerSetup(
        names=tuple(dict.fromkeys((*names, *LOCAL))),
        port=args.tls_port,
        websockets=args.websockets,
        listen=args.listen,
        run_as=args.run_as or (_user() if os.geteuid() == 0 else ""),
    )
    if site.run_as == "root":
        log.warning("Mosquitto will run as root: leave --run-as out for a user with no rights but its files'")
    opened = init_broker(args.folder, site, now, args.days)
    if os.geteuid() == 0 and (shut := shut_to(opened.folder, site.run_as)):
        log.warning(
            "%s may not enter %s, so that Mosquitto cannot read its files: move the folder, to /etc say, or "
            "name another user by --run-as",
            site.run_as,
            shut,
        )
    print(_next_steps(opened, args.days))
    return 0


def _user() -> str:
    """The user whom Mosquitto becomes when root starts it. Raises SetupError where no usual one exists."""
    user = unprivileged_user()
    if user is None:
        raise SetupError(f"no user here is called {' or '.join(USERS)}: name one for Mosquitto by --run-as")
    if user != USERS[0]:
        log.warning("no user here is called %s: Mosquitto will run as %s", USERS[0], user)
    return user


def _rotate_key(opened: BrokerFolder, now: int) -> int:
    before = fingerprint(opened.signer.public)
    with recorded(opened.folder, this_user(), "rotate-key", f"from {before}"):
        new = fingerprint(rotate_key(opened, now).public)
    print(f"The aggregator's key is {new}. Before it was {before}, which has signed the new one.")
    print(
        "Restart `serve`: until then it signs by the old one. Where it is on another machine, copy "
        f"{AGGREGATOR_KEY} and {SUCCESSIONS} there first."
    )
    print(
        "Devices take the new key over with the next offer, and refuse the old one from then on. One that "
        f"hears no offer for {SUCCESSION_SHOWN_S // 86400} days must be enrolled again."
    )
    return 0


def _upgrade(opened: BrokerFolder) -> int:
    """Update the folder. Mosquitto reads its access list at a signal, its configuration only at its start."""
    from device_runtime.broker.servers.production import upgrade

    with recorded(opened.folder, this_user(), "upgrade", "access list and configuration"):
        changed = upgrade(opened)
    if not changed:
        print(f"{opened.folder} is as this version writes it")
        return 0
    print(
        f"written in {opened.folder}: {', '.join(changed)} (before: {', '.join(f'{n}.old' for n in changed)})"
    )
    print(register.reload_mosquitto(opened).text)
    if CONFIGURATION in changed:
        print(
            "Start Mosquitto anew for the limits in mosquitto.conf: `systemctl restart mosquitto`, or by hand"
        )
    return 0


def _next_steps(opened: BrokerFolder, days: int) -> str:
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
        f"  LimitNOFILE={FILES}",
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
