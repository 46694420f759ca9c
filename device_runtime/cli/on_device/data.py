"""`device-runtime data`: checks local data as a task would read it."""

from __future__ import annotations

import argparse

from device_runtime.cli.options import DATA_HELP, add_data, add_format, as_json, memory_bytes, place, positive
from device_runtime.client.training.engine_guard import limit_bytes
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.data import LocalSamples, Selection
from device_runtime.models.data.report import lines, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="check", required=True)
    check = actions.add_parser("check", help="Read everything, train nothing, and report.")
    check.add_argument("data", metavar="PATH", help=DATA_HELP)
    check.add_argument(
        "--bundle", default="digits-wrn-10-1", help="Check for the task of this bundle (default: the digits)."
    )
    add_format(check)
    check.add_argument(
        "--memory",
        type=positive,
        metavar="MB",
        help="Use at most this much memory in all (default: what is free).",
    )
    add_data(check)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if no sample fits the task. Raises DataError, BundleError."""
    bundle = Bundle.open(find_bundle(options.bundle))
    keep = Selection(options.held_out, room_bytes=limit_bytes(None, memory_bytes(options)) // 2)
    samples = LocalSamples(place(options.data, options), bundle.manifest, keep, bundle.texts)
    samples.refresh()
    told = report(samples)
    if options.format == "json":
        print(as_json(told))
    else:
        print("\n".join(lines(told)))
    return 0 if told.samples else 1
