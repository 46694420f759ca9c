"""`device-runtime broker init DIR` and `broker renew DIR`: a broker for production."""

from __future__ import annotations

import argparse
import getpass
import os
import platform
import shlex
from datetime import datetime, timezone
from pathlib import Path

from . import register
from .mosquitto import find
from .site import Opened, Site, SiteError

INIT_EXAMPLE = "device-runtime broker init enrolment --name broker.example.org --name 192.0.2.7"
LOCAL = ("localhost", "127.0.0.1", "::1")
"""In every certificate: what runs on the broker's own machine."""


def add_actions(parser: argparse.ArgumentParser) -> None:
    """`init` and `renew`, as actions of the command."""
    actions = parser.add_subparsers(dest="action", metavar="[init | renew]", required=False)
    help_text = "write a production configuration of Mosquitto: certificates, credentials, access list"
    init = actions.add_parser(
        "init", help=help_text, description=help_text, epilog=f"Example: {INIT_EXAMPLE}"
    )
    init.add_argument(
        "folder", type=Path, metavar="DIR", help="made if need be; nothing in it is written over"
    )
    init.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="host name or address by which devices reach it; again for more (default: this host's name)",
    )
    init.add_argument(
        "--port", type=int, default=8883, dest="tls_port", help="of MQTT over TLS (default: 8883)"
    )
    init.add_argument(
        "--websockets", type=int, default=0, metavar="PORT", help="also over WebSockets, with TLS"
    )
    init.add_argument(
        "--listen", default="", metavar="ADDRESS", help="listen there only (default: everywhere)"
    )
    init.add_argument("--run-as", default="", metavar="USER", help="who runs Mosquitto (default: you)")
    help_text = "give the broker a new certificate, by the same authority"
    renew = actions.add_parser("renew", help=help_text, description=help_text)
    renew.add_argument("folder", type=Path, metavar="DIR", help="of `broker init`")
    for one in (init, renew):
        one.add_argument("--days", type=int, default=825, help="that the certificate is valid (default: 825)")


def run(args: argparse.Namespace) -> int:
    """Set it up, or renew its certificate. Raises BrokerError."""
    from . import production  # its certificates need the extra `aggregator`

    now = datetime.now(timezone.utc)
    if not 1 <= args.days <= production.CA_DAYS:
        raise SiteError(f"--days {args.days}: expected 1 to {production.CA_DAYS}")
    if args.action == "renew":
        opened = Opened(args.folder)
        until = production.renew(opened, now, args.days)
        print(f"the certificate of {opened.site.names[0]} is valid until {until:%Y-%m-%d}")
        print(register.tell(opened))
        return 0
    names = args.name or [platform.node()]
    site = Site(
        names=tuple(dict.fromkeys((*names, *LOCAL))),
        port=args.tls_port,
        websockets=args.websockets,
        listen=args.listen,
        run_as=args.run_as or (getpass.getuser() if os.geteuid() == 0 else ""),
    )
    opened = production.found(args.folder, site, now, args.days)
    print(_told(opened, args.days))
    return 0


def _told(opened: Opened, days: int) -> str:
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
