"""Starts the demo's device processes: the installed command, and Node for devices in JavaScript."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from device_runtime.aggregator.errors import MissingExtra
from device_runtime.broker.servers.dependent_process import DependentProcess
from device_runtime.content import content
from device_runtime.simulation.compare.running import command
from device_runtime.simulation.digits import Labelled

from .fleet import SLOW, DemoDevice

WEB = content("web")
RUNS = WEB / "node" / "run.js"
NEEDED = (WEB / "vendor" / "ort" / "ort-wasm-simd-threaded.wasm", WEB / "node_modules" / "mqtt")
FLAGS = ("--liftoff-only",)
"""WASM is compiled once and not optimised.

Starting takes half the memory and a fraction of the processor time; training steps take longer.
"""
STOP_S = 5.0
"""Seconds that a device has to end by itself."""


@dataclass(frozen=True)
class PlacedMember:
    """A member of the fleet with its samples."""

    member: DemoDevice
    samples: Labelled


class FleetProcesses(AbstractContextManager["FleetProcesses"]):
    """A process for each device, `device-runtime join` or `node`, which ends with the `with` block.

    The processes also end with this process. Each has a folder of its own below `folder`, with its data, its
    state and its log.
    """

    def __init__(
        self, fleet: Sequence[PlacedMember], broker_url: str, folder: Path, scale: float = 1.0
    ) -> None:
        """`scale` as in DemoSetting."""
        self._processes: list[DependentProcess] = []
        self._logs: list[Path] = []
        for placed in fleet:
            home = folder / placed.member.name
            home.mkdir(parents=True)
            np.savez_compressed(home / "samples.npz", x=placed.samples.x, y=placed.samples.y)
            self._logs.append(home / "device.log")
            self._processes.append(
                DependentProcess(_arguments(placed.member, broker_url, home, scale), self._logs[-1])
            )

    def wait(self, timeout_s: float) -> None:
        """Waits until all have ended by themselves, but at most `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))

    def failed(self) -> str:
        """The last line of the first device that ended with an error, and its log; empty if none has."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.ended:
                lines = log.read_text("utf-8", "replace").splitlines() or ["nothing"]
                return f"{log.parent.name} ended: {lines[-1]} ({log})"
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.signal(signal.SIGTERM)
        for process in self._processes:
            process.stop(STOP_S)


def _arguments(member: DemoDevice, broker_url: str, home: Path, scale: float) -> list[str]:
    options = (
        *("--name", member.name),
        *("--data", str(home / "samples.npz")),
        *("--state", str(home / "state")),
        *("--held-out", "0"),  # the demo's evaluation is the aggregator's
        "--until-done",
    )
    if not member.profile:
        return [*node_command(), *("--broker", broker_url), *options]
    limits = {
        "--uplink": member.uplink and member.uplink / scale,
        "--downlink": member.downlink and member.downlink / scale,
        "--smallest-count": member.smallest_count,
    }
    return [
        command(),
        "join",
        broker_url,
        *options,
        "--no-keep-model",
        "--in-process",  # eight devices on one machine, none of which is idle for long
        *("--as", member.profile, "--slow", str(SLOW * scale)),
        *(word for option, limit in limits.items() if limit for word in (option, str(limit))),
    ]


def node_command() -> tuple[str, ...]:
    """The command that starts a device in JavaScript (web/, run by Node), without its options.

    Raises MissingExtra.
    """
    node = shutil.which("node")
    if node is None:
        raise MissingExtra("devices in JavaScript need Node.js 20 or newer: node is not installed")
    if not RUNS.is_file():
        raise MissingExtra(f"devices in JavaScript need a checkout of the project: {RUNS} is not there")
    for path in NEEDED:
        if not path.exists():
            raise MissingExtra(
                f"devices in JavaScript need their libraries: {path} is missing; run `make web`"
            )
    return (node, *FLAGS, str(RUNS))
