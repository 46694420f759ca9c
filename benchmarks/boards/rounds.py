"""One round of one device against an aggregator and a broker on this machine, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from device_runtime.broker.servers import brokers
from device_runtime.models.bundles import tensors

from . import clients
from .kinds import COMMAND, Trial

LONGEST_S = 900.0
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """Where a device runs: the words before `join`, its environment, its data, and options of `join`."""

    command: Sequence[str]
    data: Path
    environment: Mapping[str, str] | None = None
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Done:
    """A device's part in a run.

    log: the output of the device. sent: the aggregator's line on its update, empty if none counted.
    peak_bytes: the most memory that its process held. served: the model that the run served.
    """

    log: str
    code: int
    seconds: float
    sent: Mapping[str, Any]
    peak_bytes: int
    served: Mapping[str, Values]

    @property
    def accepted(self) -> bool:
        return self.code == 0 and bool(self.sent)


def one_round(trial: Trial, place: Place, folder: Path, bundles: Path) -> Done:
    """The device is called "board", whatever it is: so that what it draws is the same everywhere."""
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(trial.task(bundles))
    running = brokers.start("mosquitto")
    serve = [COMMAND, "serve", str(folder / "task.toml"), "--broker", running.url]
    serve += ["--run-dir", str(folder / "run"), "--quiet"]
    join = [*place.command, "join", running.url, "--data", str(place.data), "--name", "board"]
    join += ["--state", str(folder / "state"), "--until-done", *place.options]
    began = time.monotonic()
    service = _started(serve, folder / "serve.log")
    device = _started(join, folder / "device.log", place.environment)
    try:
        log_file = folder / "device.log"
        peak = _ended(
            device,
            began + LONGEST_S,
            lambda: service.poll() not in (None, 0) or " refused " in log_file.read_text(errors="replace"),
        )
        with suppress(subprocess.TimeoutExpired):
            service.wait(30)
    finally:
        for process in (device, service):
            process.kill()
            process.wait()
        running.stop()
    lines = folder / "run" / "contributions.jsonl"
    sent = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    model = folder / "run" / "served.safetensors"
    served = tensors.decode(model.read_bytes()) if model.exists() else {}
    log = (folder / "device.log").read_text(errors="replace")
    seconds = time.monotonic() - began
    return Done(log, device.returncode, seconds, sent[0] if sent else {}, peak, served)


def last_words(done: Done) -> str:
    """What the device said of its round, or last of all."""
    lines = done.log.splitlines() or ["nothing"]
    return next((line for line in lines if line.startswith("round 1: ")), lines[-1])


def why(done: Done) -> str:
    """Why a device sent no more than it did, as it told the aggregator, or the last that it said."""
    return str(done.sent["why"]) if done.sent else last_words(done)


def off_by(left: Mapping[str, Values], other: Mapping[str, Values]) -> float:
    """The largest difference of a tensor, relative to its largest value; 0 for the same bits."""
    if left.keys() != other.keys():
        raise ValueError("not the same tensors")
    worst = 0.0
    for name, value in left.items():
        if value.tobytes() != other[name].tobytes():
            scale = max(float(np.abs(other[name]).max()), 1e-9)
            worst = max(worst, float(np.abs(value.astype(float) - other[name]).max()) / scale)
    return worst


def _started(
    words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **(environment or {})}
        )


def _ended(device: subprocess.Popen[bytes], until: float, pointless: Callable[[], bool]) -> int:
    """Wait for the end of a process; returns the most bytes that it and its children held (Linux).

    Of one process the system knows the peak; of several, the largest sum that was seen is returned.
    """
    peak = 0
    while device.poll() is None and time.monotonic() < until and not pointless():
        members = list(clients.family(device.pid))
        of_each = [_memory_bytes(member.pid, "VmHWM" if len(members) == 1 else "VmRSS") for member in members]
        peak = max(peak, sum(of_each))
        time.sleep(0.02)
    if device.poll() is None:
        device.kill()
        device.wait()
    return peak


def _memory_bytes(pid: int, what: str) -> int:
    """Bytes; 0 for a process that is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
    return 0
