"""`device-runtime compare`: shows finished comparisons side by side in one table."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.cli.options import add_format
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.report.folders import side_by_side

ERRORS = (SimulationError, AggregatorError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="RUN_DIR",
        help="Compare the runs of these folders; those of one scenario are joined by policy and seed.",
    )
    parser.add_argument(
        "--apart", action="store_true", help="Show each folder by itself, also those of one scenario."
    )
    parser.add_argument("--all-tables", action="store_true", help="Print all tables.")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Raises SimulationError for a folder without a comparison."""
    comparison = side_by_side(options.folders, options.apart)
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(comparison.json() if options.format == "json" else comparison.text(wide, options.all_tables))
    return 0
