"""`device-runtime pause`: pauses the work of a device until `resume`."""

from __future__ import annotations

import argparse

from device_runtime.device.connection.connecting import folder_of, is_device
from device_runtime.device.errors import NoDevice
from device_runtime.device.policy import work_gate

from .policy_options import add_device_choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device_choice(parser)


def run(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    if not is_device(folder):
        raise NoDevice(f"no device is in {folder}")
    work_gate.pause(folder)
    print(f"{folder.name} is paused; `device-runtime resume` ends that")
    return 0
