"""`device-runtime device`: which devices may connect to the broker that `broker init` set up."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from tabulate import tabulate

from . import register
from .site import Opened

HELP = "Enrol a device at a broker of your own, revoke it, or list them."
EXAMPLE = "device-runtime device add kitchen-pi --dir enrolment"
DEFAULT = Path("enrolment")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="add | revoke | list", required=True)
    add = actions.add_parser("add", help="enrol a device: prints one line to paste on it, and its QR code")
    add.add_argument("name", metavar="NAME", help="1 to 64 letters, digits, '.', '_' or '-'")
    add.add_argument("--websockets", action="store_true", help="the device connects over WebSockets")
    add.add_argument("--again", action="store_true", help="a new token; the one of before is void")
    add.add_argument(
        "--qr",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="print the QR code (default: on a terminal)",
    )
    revoke = actions.add_parser("revoke", help="let a device in no more")
    revoke.add_argument("name", metavar="NAME")
    listed = actions.add_parser("list", help="who is enrolled, since when, and who was revoked")
    listed.add_argument("--format", choices=("text", "json"), default="text")
    for action in (add, revoke, listed):
        action.add_argument(
            "--dir",
            type=Path,
            default=DEFAULT,
            help="of `broker init` (default: the folder 'enrolment' here)",
        )


def run(options: argparse.Namespace) -> int:
    """What is to be pasted goes to stdout, all else to stderr. Raises BrokerError."""
    opened, now = Opened(options.dir), datetime.now(timezone.utc)
    if options.action == "list":
        return _list(register.entries(opened), options.format)
    if options.action == "revoke":
        register.revoke(opened, options.name, now)
        print(f"{options.name} is revoked; {register.tell(opened)}", file=sys.stderr)
        return 0
    enrolment = register.add(opened, options.name, now, options.websockets, options.again)
    line = f"device-runtime join --enrol {enrolment.token}"
    told = register.tell(opened)
    print(f"{options.name} is enrolled at {enrolment.url}; {told}", file=sys.stderr)
    print("Paste this on the device, and nowhere else: it holds the password.", file=sys.stderr)
    print(line, flush=True)
    if options.qr or (options.qr is None and sys.stdout.isatty()):
        import segno  # in the extra `aggregator`

        segno.make(line, error="l", micro=False).terminal(compact=True)
    return 0


def _list(entries: list[register.Entry], form: str) -> int:
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(entries)).decode())
    else:
        rows = [(entry.name, entry.state, entry.enrolled, entry.revoked) for entry in entries]
        print(tabulate(rows, headers=("device", "state", "enrolled", "revoked")))
    return 0
