"""`device-runtime device`: enrols, lists and revokes devices at a broker of `broker init`."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from tabulate import tabulate

from device_runtime.broker.security.audit import recorded, this_user
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers import register
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.cli.options import add_format, as_json

DEFAULT = Path("enrolment")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="add | link | revoke | list", required=True)
    add = actions.add_parser("add", help="Enrol a device: print one line to paste on it, and its QR code.")
    add.add_argument(
        "name", metavar="NAME", help="Enrol under this name: 1 to 64 letters, digits, '.', '_' or '-'."
    )
    add.add_argument("--websockets", action="store_true", help="Let the device connect over WebSockets.")
    add.add_argument("--again", action="store_true", help="Make a new token; the previous one becomes void.")
    _qr(add)
    link = actions.add_parser("link", help="Make a one-time link by which a browser joins (serve --web).")
    link.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="Enrol the browser under this name (default: the browser chooses).",
    )
    link.add_argument(
        "--minutes", type=float, default=15.0, help="Make the link good for this many minutes (default: 15)."
    )
    link.add_argument(
        "--page",
        metavar="URL",
        help="Lead to the join page at this URL (default: where it was offered last).",
    )
    _qr(link)
    revoke = actions.add_parser("revoke", help="Stop letting a device in, or make a link void.")
    revoke.add_argument("name", metavar="NAME", help="Revoke the device, or the link, of this name.")
    listed = actions.add_parser("list", help="List who is enrolled, since when, and who was revoked.")
    add_format(listed)
    for action in (add, link, revoke, listed):
        action.add_argument(
            "--dir",
            type=Path,
            default=DEFAULT,
            help="Use this folder of `broker init` (default: the folder 'enrolment' here).",
        )


def run(options: argparse.Namespace) -> int:
    """Print the text to paste to stdout, all else to stderr. Raises BrokerError."""
    opened, now = BrokerFolder(options.dir), datetime.now(timezone.utc)
    if options.action == "list":
        return _list(opened, now.timestamp(), options.format)
    if options.action == "link":
        return _link(opened, now.timestamp(), options)
    if options.action == "revoke":
        with recorded(opened.folder, this_user(), "revoke", options.name):
            return _revoke(opened, options.name, now)
    again = ", a new token" if options.again else ""
    with recorded(opened.folder, this_user(), "enrol", options.name + again):
        enrolment = register.add(opened, options.name, now, options.websockets, options.again)
    line = f"device-runtime join --enrol {enrolment.token}"
    reload = register.reload_mosquitto(opened)
    _say(f"{options.name} is enrolled at {enrolment.url}; {reload.text}")
    _say(
        "Run `device-runtime join --enrol - --data FOLDER --service` on the device and paste this there, and "
        "nowhere else: it holds the password."
    )
    print(line, flush=True)
    _draw(line, options.qr)
    if options.again:
        register.check_reloaded(opened, options.name, reload)  # until Mosquitto is told, the old token works
    return 0


def _revoke(opened: BrokerFolder, name: str, now: datetime) -> int:
    """Revoke a device, or a link and the device that used it.

    Raises RegisterError when Mosquitto was not told.
    """
    device = name
    if name in {link.id for link in links.read_links(opened).links}:
        link = links.revoke(opened, name, now.timestamp())
        if not link.used:
            _say(f"{name} is revoked; nobody used it")
            return 0
        device = link.device
    else:
        register.revoke(opened, name, now)
    _say(f"{name} is revoked; {register.reload_after_revocation(opened, device).text}")
    return 0


def _qr(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--qr",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="Print the QR code (default: on a terminal).",
    )


def _draw(text: str, qr: bool | None) -> None:
    if qr or (qr is None and sys.stdout.isatty()):
        import segno  # in the extra `aggregator`

        segno.make(text, error="l", micro=False).terminal(compact=True)


def _link(opened: BrokerFolder, now: float, options: argparse.Namespace) -> int:
    page = options.page or links.read_links(opened).page
    if not page:
        raise links.LinkError("where is the page? serve --web --enrolment DIR offers it; or give --page URL")
    if not page.startswith(("https://", "http://")):
        raise links.LinkError(f"--page {page}: expected a URL, as https://example.org/")
    if options.minutes <= 0:
        raise links.LinkError(f"--minutes {options.minutes:g}: expected more than 0")
    with recorded(opened.folder, this_user(), "make a link", options.name or "a browser"):
        link, secret = links.make(opened, now, 60 * options.minutes, options.name)
    address = links.address(page, secret)
    _say(f"Link {link.id} is good for one browser, for {options.minutes:g} minutes.")
    print(address, flush=True)
    _draw(address, options.qr)
    return 0


def _list(opened: BrokerFolder, now: float, form: str) -> int:
    """Print the devices, and below them the recent links."""
    entries, recent_links = register.entries(opened), links.read_links(opened).recent(now)
    if form == "json":
        print(as_json(entries))
        return 0
    rows = [
        (entry.name, entry.state, entry.enrolled, entry.revoked, "yes" if entry.key else "no: enrol it again")
        for entry in entries
    ]
    print(tabulate(rows, headers=("device", "state", "enrolled", "revoked", "signs")))
    if recent_links:
        link_rows = [
            (link.id, link.state(now), link.device, _moment(link.made), _moment(link.ends))
            for link in recent_links
        ]
        print("\n" + tabulate(link_rows, headers=("link", "state", "device", "made", "good until")))
    return 0


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _say(text: str) -> None:
    """Print to stderr, which may be a file on a full disk: what was done stays done."""
    with suppress(OSError):
        print(text, file=sys.stderr)
