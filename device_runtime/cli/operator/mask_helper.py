"""`device-runtime mask-helper`: runs a mask helper, until stopped."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

from device_runtime.broker.errors import BlobError, BrokerRefused, BrokerUnreachable
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.cli.on_device import service
from device_runtime.cli.options import add_connection, count
from device_runtime.console import log_as_service
from device_runtime.device.agent.instance import folder_lock
from device_runtime.device.connection.connecting import Connection, claim, connect, enrol, first_connection
from device_runtime.device.errors import InUse, NoDevice
from device_runtime.device.service import device_file
from device_runtime.device.service.install import ServiceCommand
from device_runtime.mask_helper.helper import HelperClocks, HelperSettings, MaskHelper
from device_runtime.mask_helper.ledger import Ledger
from device_runtime.mask_helper.summing import LedgerError, MaskHelperError, MetricsError, SumLimits
from device_runtime.service_process import Exit, SystemdWatchdog, stopped_by_signals

log = logging.getLogger(__name__)

ERRORS = (MaskHelperError,)
_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (BrokerUnreachable, Exit.BROKER),
    (BrokerRefused, Exit.BROKER),
    (BlobError, Exit.FOLDER),
    (LedgerError, Exit.FOLDER),
    (InUse, Exit.FOLDER),
    (NoDevice, Exit.FOLDER),
    (MetricsError, Exit.ADDRESS),
    (ModuleNotFoundError, Exit.MISSING),
)


def exit_code(error: Exception) -> int:
    """The exit code of an expected error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.SETTINGS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options as of `join` for the connection, and those of what the helper's owner allows."""
    add_connection(parser, "broker", "the enrolment, and the ledger with the helper's key,")
    add = parser.add_argument
    add(
        "--enrol",
        metavar="TOKEN",
        help="Enrol with this token of `device add` first; '-' reads it from stdin.",
    )
    add("--print-key", action="store_true", help="Print the name and the public key, NAME=KEY, and end.")
    add("--config", type=Path, metavar="FILE", help="Read these options from a TOML file.")
    limits = SumLimits()
    add(
        "--min-group",
        type=count,
        default=limits.min_group,
        metavar="N",
        help="Sum no fewer devices than N, whatever a task promises (default: %(default)s).",
    )
    add(
        "--most-devices",
        type=count,
        default=limits.most_devices,
        metavar="N",
        help="Sum at most N devices at a time (default: %(default)s).",
    )
    add(
        "--most-values",
        type=count,
        default=limits.most_numbers,
        metavar="N",
        help="Sum vectors of at most N values, 4 to 8 bytes of memory each (default: %(default)s).",
    )
    add(
        "--metrics",
        type=address,
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus here (default: none).",
    )
    add(
        "--log-format",
        choices=("text", "json"),
        help="Write the log with times and fields (default: bare lines).",
    )
    add(
        "--service",
        action="store_true",
        help="Install and start it as a service of this user (as root: of this machine), with these options.",
    )


def address(text: str) -> str:
    """An argument HOST:PORT, :PORT or PORT."""
    port = text.rpartition(":")[2]
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, nor a port of this machine")
    return text


def run(options: argparse.Namespace) -> int:
    """Answer requests until stopped. Raises the errors to which `exit_code` gives numbers."""
    if options.config is not None:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        device_file.fill(options, parser, frozenset())
    if options.enrol:
        enrolment = enrol(sys.stdin.readline() if options.enrol == "-" else options.enrol, options)
        options.name = enrolment.name  # another device may be enrolled on this machine too
        print(f"enrolled as {enrolment.name} at {enrolment.url}", file=sys.stderr, flush=True)
    connection = connect(options)
    if options.insecure and not connection.url.secure:
        log.warning("--insecure: passwords cross the network in the clear")
    claim(connection.folder)
    log_as_service(options.log_format)
    with closing(Ledger(connection.folder, secrets.token_bytes)) as ledger:
        print(f"{connection.name}={ledger.public.hex()}", flush=True)
        if options.print_key:
            return Exit.DONE
        if options.service:
            return _install(options, connection)
        with folder_lock(connection.folder):
            _serve(options, connection, ledger)
    return Exit.DONE


def _serve(options: argparse.Namespace, connection: Connection, ledger: Ledger) -> None:
    limits = SumLimits(options.min_group, options.most_devices, options.most_values)
    settings = HelperSettings(connection.name, connection.folder, limits)
    clocks = HelperClocks(time.monotonic, time.time)
    helper, stop = MaskHelper(settings, secrets.randbits(32), ledger, clocks), threading.Event()
    link_options = LinkOptions(
        helper.will(), helper.subscriptions, greeting=helper.greeting(), renewed=connection.renewed
    )
    link = Link(connection.url, connection.client_id, helper.inbox, link_options)
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals(stop.set, helper.wake))
        if options.metrics:
            from device_runtime.mask_helper.metrics import served_metrics  # needs an extra

            host, _, port = options.metrics.rpartition(":")
            host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
            metrics_port = stack.enter_context(served_metrics(helper.figures, host, int(port)))
            log.info("metrics at http://%s:%d/metrics", host, metrics_port)
        stack.enter_context(SystemdWatchdog(helper.silence_s))
        stack.callback(lambda: link.close(helper.farewell()))
        if first_connection(link, stop, waits=helper.look):
            helper.run(link, stop)


def _install(options: argparse.Namespace, connection: Connection) -> int:
    """Install a service of this user with these options, and start it. Raises InstallError."""
    options.name, options.state = connection.name, connection.folder
    file = service.write_settings(options, add_arguments)
    return service.start(
        ServiceCommand(connection.name, service.command("mask-helper", file), Path.cwd()), file
    )
