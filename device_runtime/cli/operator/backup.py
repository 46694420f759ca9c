"""`device-runtime backup`: backs up a run folder while `serve` uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.views.console_log import size
from device_runtime.broker.security.audit import note, this_user

ERRORS = (AggregatorError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Back up this run folder.")
    parser.add_argument("archive", type=Path, metavar="FILE.tar", help="Write it into this archive.")


def run(options: argparse.Namespace) -> int:
    """Raises RunFolderError for a folder without a run, and where it cannot be read or written."""
    from device_runtime.aggregator.storage.backup import back_up

    written = back_up(options.run_dir, options.archive)
    note(options.run_dir, this_user(), "backup", str(options.archive))
    name = options.run_dir.resolve().name
    print(f"{options.archive}: {size(written)}; to restore: tar -xf {options.archive} -C DIR, then")
    print(f"device-runtime serve with the same task and --run-dir DIR/{name}")
    return 0
