"""`device-runtime resume`: ends a `pause`."""

from __future__ import annotations

import argparse

from device_runtime.device.connection.connecting import folder_of
from device_runtime.device.policy import work_gate

from .policy_options import add_device_choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device_choice(parser)


def run(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    work_gate.resume(folder)
    print(f"{folder.name} works again, as far as its policy lets it")
    return 0
