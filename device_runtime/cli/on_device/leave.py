"""`device-runtime leave`: says goodbye, and removes everything that this device stored."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from device_runtime.broker.errors import BrokerError
from device_runtime.cli.options import add_connection
from device_runtime.device.agent import instance
from device_runtime.device.connection.connecting import connect, folder_of, is_enrolled
from device_runtime.device.errors import InstallError
from device_runtime.device.service import uninstall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection(parser, "--broker")
    parser.add_argument("--keep-outbox", action="store_true", help="Keep what was not sent yet.")
    parser.add_argument("--yes", action="store_true", help="Do not ask.")
    parser.add_argument(
        "--force", action="store_true", help="Remove contributions that wait for a receipt, too."
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if the answer to "Go on?" was no."""
    folder = folder_of(options)
    uninstall.check(folder)
    if (count := uninstall.unreceipted(folder)) and not (options.keep_outbox or options.force):
        raise InstallError(
            f"contributions in {folder} that wait for a receipt: {count}. Join until they are sent "
            "(a device that runs sends them by itself), "
            "or give --keep-outbox, or --force to lose them"
        )
    running = instance.process(folder)
    print(_named(folder, options.keep_outbox, running))
    options.state, options.name = folder, uninstall.name_in(folder)
    options.broker = options.broker or uninstall.setting(folder, "broker") or None
    silent = not (running or options.broker or is_enrolled(options))
    if silent:
        print("Its broker is not known, so no goodbye will be said: to say one, give --broker URL.")
    if not (options.yes or _agreed()):
        print("Nothing was removed.")
        return 1
    goodbye = "" if running else "no goodbye was said" if silent else _goodbye(options)
    for done in uninstall.stop(uninstall.name_in(folder), folder):
        print(done)
    if goodbye:
        print(goodbye)
    late = 0 if options.force else uninstall.unreceipted(folder)  # contributions made until it had stopped
    left = uninstall.remove(folder, options.keep_outbox or late > 0)
    names = ", ".join(sorted(path.name for path in left.iterdir())) if left else ""
    print(f"removed {folder}" if left is None else f"kept in {left}: {names}")
    if left and late:
        again = f"`device-runtime leave --state {left} --force` loses them"
        print(f"contributions without a receipt: {late}; {again}")
    return 0


def _named(folder: Path, keep_outbox: bool, running: int | None) -> str:
    parts = uninstall.parts(folder, keep_outbox).items()
    lines = [f"To be removed from {folder}:"]
    lines += [f"  {path.name}: {what}, {uninstall.size(path) / 1e3:.1f} kB" for path, what in parts]
    lines += [f"Process {running} is to be stopped."] if running else []
    return "\n".join([*lines, "Samples are not touched."])


def _agreed() -> bool:
    """Ask whether to go on. Raises InstallError without a terminal."""
    if not sys.stdin.isatty():
        raise InstallError("there is no terminal to ask at: give --yes")
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def _goodbye(options: argparse.Namespace) -> str:
    """Say goodbye to the aggregator, and return a line about it."""
    try:
        return uninstall.say_goodbye(connect(options))
    except BrokerError as error:
        return f"the aggregator was not notified: {error}"
