"""Meters with a program that prints watts, or the joules of a counter."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from device_runtime.device.external_programs import run_program

from .meter import CounterIntegral, Integral, MeterError, MeterInfo, PolledMeter, PowerIntegral
from .quantity import Quantity, quantity

POWER = MeterInfo("command", "what the command measures", error=0.05, every_s=1.0)
ENERGY = MeterInfo("command", "what the command measures", error=0.05, every_s=60.0)
USAGE = (
    "command:PROGRAM ARGUMENTS, which prints as its last line watts (12.3) or another unit (815 J, 0.5 kWh)"
)


def last_line(text: str) -> Quantity:
    """The quantity that a program printed last. Raises MeterError."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise MeterError(f"nothing was printed: expected {USAGE}")
    return quantity(lines[-1])


def command_meter(command: str, clock: Callable[[], float]) -> PolledMeter:
    """The meter that this command line runs. Raises MeterError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MeterError(f"{error}") from None
    if not words:
        raise MeterError(f"expected {USAGE}")
    folder = str(Path.cwd())  # file names are relative to it, and the worker process runs in another
    energy = last_line(output(words, folder)).energy

    def look() -> float:
        amount = last_line(output(words, folder))
        if amount.energy is not energy:
            raise MeterError(f"{command} prints power at one time, energy at another")
        return amount.value

    about = ENERGY if energy else POWER
    integral: Integral = CounterIntegral() if energy else PowerIntegral(POWER.every_s)
    return PolledMeter(about, look, integral, clock)


TIMEOUT_S = 20.0


def output(words: Sequence[str], folder: str | None = None) -> str:
    """Run a program in `folder` (None: the current one) and return its standard output.

    Raises MeterError if it does not run, fails, or does not end in time.
    """
    line = " ".join(words)
    try:
        ended = run_program(words, TIMEOUT_S, folder)
    except subprocess.TimeoutExpired:
        raise MeterError(f"{line}: no answer in {TIMEOUT_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise MeterError(f"{line}: {error}") from None
    if ended.returncode:
        lines = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing said"]
        raise MeterError(f"{line} ended with {ended.returncode}: {lines[-1]}")
    return ended.stdout
