"""`device-runtime audit`: shows what operators did to runs and enrolments."""

from __future__ import annotations

import argparse
from pathlib import Path

from tabulate import tabulate

from device_runtime.broker.security.audit import AuditError, entries
from device_runtime.cli.options import add_format, as_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="Show the log of this run folder, or of this folder of `broker init`; or of several together.",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Raises AuditError for a folder that is not there, and for a log that cannot be read."""
    for folder in options.folders:
        if not folder.is_dir():
            raise AuditError(f"{folder} is no folder: expected a run folder, or one of `broker init`")
    actions = entries(options.folders)
    if options.format == "json":
        print(as_json(actions))
        return 0
    rows = [(e.at[:19] + "Z", e.user, e.address, e.action, e.subject, e.result) for e in actions]
    print(tabulate(rows, ("time", "who", "from", "did", "to", "result"), disable_numparse=True))
    return 0
