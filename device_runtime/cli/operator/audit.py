"""`device-runtime audit`: shows what operators did to runs and enrolments."""

from __future__ import annotations

import argparse
from pathlib import Path

from tabulate import tabulate

from device_runtime.broker.security.audit import AUDIT, AuditError, entries
from device_runtime.cli.options import add_format, as_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="Show the log of this run folder, folder of `broker init` or site; or of several together.",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Raises AuditError for a folder that has no log, and for a log that cannot be read."""
    actions = entries([folder for place in options.folders for folder in _logged(place)])
    if options.format == "json":
        print(as_json(actions))
        return 0
    rows = [(e.at[:19] + "Z", e.user, e.address, e.action, e.subject, e.result) for e in actions]
    print(tabulate(rows, ("time", "who", "from", "did", "to", "result"), disable_numparse=True))
    return 0


def _logged(folder: Path) -> list[Path]:
    """The folder if it has a log, else those of a site in it. Raises AuditError where there is none."""
    folders = [each for each in (folder, folder / "run", folder / "enrolment") if (each / AUDIT).exists()]
    if not folders:
        raise AuditError(
            f"{folder} has no {AUDIT}: expected a run folder, one of `broker init`, or a site of `serve-init`"
        )
    return folders
