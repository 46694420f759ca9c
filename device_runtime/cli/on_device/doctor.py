"""`device-runtime doctor`: examines this installation and its broker, and advises on problems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.broker.errors import BrokerError
from device_runtime.cli.options import add_connection, add_format, as_json
from device_runtime.device.connection.connecting import connect, is_enrolled
from device_runtime.models.errors import BundleError
from device_runtime.user_account import NoHome, provide_temporary_folder, state_folder

if TYPE_CHECKING:
    from device_runtime.device.doctor.installation import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", default="digits-wrn-10-1", help="Try this bundle: a folder, a zip, or a shipped one."
    )
    add_connection(parser, "--broker")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if anything that a device needs is a problem.

    The broker is examined if one is given, or this device is enrolled.
    """
    from tabulate import tabulate

    findings = list(examine(options.bundle, options.state))
    if options.broker or is_enrolled(options):
        findings += list(broker_findings(options))
    problems = [finding for finding in findings if finding.state == "problem"]
    if options.format == "json":
        print(as_json(findings))
    else:
        rows = [(f.state, f.what, "; ".join(filter(None, (f.found, f.advice)))) for f in findings]
        print(tabulate(rows, tablefmt="plain"))
        what = ", ".join(finding.what for finding in problems)
        print(f"This device cannot take part: {what}." if problems else "This device can take part.")
    return 1 if problems else 0


def examine(bundle: str, folder: Path | None) -> Iterator[Finding]:
    """All findings about this installation; without a valid bundle, those that need none.

    folder: of a device, or of all of them; None for that of this user.
    """
    from device_runtime.device.doctor import installation
    from device_runtime.models.bundles.bundle import Bundle, find_bundle

    yield from installation.machine()
    provide_temporary_folder(folder)
    try:
        folder = folder or state_folder()
    except NoHome as error:
        yield installation.Finding("storage", "problem", str(error))
    try:
        opened = Bundle.open(find_bundle(bundle))
    except BundleError as error:
        yield installation.Finding("bundle", "problem", str(error), "name a sound one with --bundle")
    else:
        size = (
            f"{len(opened.manifest.graphs)} graphs, {opened.manifest.weights.bytes / 1e3:.0f} kB of weights"
        )
        yield installation.Finding("bundle", "ok", f"{opened.manifest.name}, {size}")
        found_engines = list(installation.engines(opened))
        yield from found_engines
        if all(finding.state != "problem" for finding in found_engines):
            yield from installation.work(opened)
        yield installation.memory(opened)
        if folder is not None:
            yield installation.storage(folder, opened)
    if folder is not None:
        yield from installation.rules(folder)
        yield from installation.privacy(folder)
    yield from installation.energy()
    yield from installation.extras()
    yield installation.broker()


def broker_findings(options: argparse.Namespace) -> Iterator[Finding]:
    """Findings about the connection to the broker."""
    from device_runtime.device.doctor import connection as broker_connection
    from device_runtime.device.doctor.installation import Finding

    try:
        connection = connect(options)
    except BrokerError as error:
        yield Finding("broker", "problem", str(error), "mend --broker, or enrol the device anew")
        return
    yield from broker_connection.examine(connection, time.time())
