"""`device-runtime traffic`: shows the bytes that a device sent and received, day by day."""

from __future__ import annotations

import argparse

from tabulate import tabulate

from device_runtime.cli.options import add_format, as_json
from device_runtime.device import traffic
from device_runtime.device.connection.connecting import folder_of

from .policy_options import add_device_choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device_choice(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    days = traffic.read(folder_of(options))
    if options.format == "json":
        print(as_json(days))
        return 0
    rows = [(day, _kb(load.up), _kb(load.down)) for day, load in sorted(days.items())]
    rows.append(
        (
            "all",
            _kb(sum(load.up for load in days.values())),
            _kb(sum(load.down for load in days.values())),
        )
    )
    print(tabulate(rows, headers=("day", "kB up", "kB down"), disable_numparse=True, stralign="right"))
    return 0


def _kb(size: int) -> str:
    return f"{size / 1e3:.1f}"
