"""Meters with a program that prints watts, or joules; reads quantities as people write them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import msgspec

from device_runtime.service_process import run_program

from .meter import CounterIntegral, Integral, MeterError, MeterInfo, PolledMeter, PowerIntegral

UNITS: Mapping[str, tuple[bool, float]] = {
    "W": (False, 1.0),
    "mW": (False, 1e-3),
    "kW": (False, 1e3),
    "J": (True, 1.0),
    "mJ": (True, 1e-3),
    "kJ": (True, 1e3),
    "mWh": (True, 3.6),
    "Wh": (True, 3.6e3),
    "kWh": (True, 3.6e6),
}
"""Unit -> whether it is of energy, and its factor to watts or joules."""

FIELDS = {
    "apower": "W",  # Shelly, second generation: .../status/switch:0
    "power": "W",
    "ENERGY.Power": "W",  # Tasmota: tele/NAME/SENSOR
    "StatusSNS.ENERGY.Power": "W",
}
"""Where smart plugs have their power in JSON, and its unit; without a path the first found counts."""

LONGEST = 100
"""Most characters of a figure with its unit, spaces included."""
LARGEST = 64 * 1024
"""Most bytes of a message: no plug sends more."""

_TEXT = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Quantity:
    """Watts; with `energy`, joules of a counter."""

    value: float
    energy: bool = False


def quantity(text: str, unit: str = "W") -> Quantity:
    """From "12.3", "12.3 W", "815J", "0.52 kWh"; `unit` is that of a bare number. Raises MeterError."""
    match = _TEXT.fullmatch(text) if len(text) <= LONGEST else None
    unit = (match[2] if match else "") or unit
    if match is None or unit not in UNITS or not isfinite(float(match[1])):
        raise MeterError(
            f"{text.strip()[:60]!r} is no power or energy: expected a number and {', '.join(UNITS)}"
        )
    energy, factor = UNITS[unit]
    return Quantity(float(match[1]) * factor, energy)


def in_message(payload: bytes, path: str = "", unit: str = "") -> Quantity:
    """From a message: a number, with unit or without, or JSON with one at `path` ("meters.0.power").

    Raises MeterError.
    """
    if len(payload) > LARGEST:
        raise MeterError(f"a message of {len(payload)} bytes; at most {LARGEST} are read")
    text = payload.decode("utf-8", "replace")
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = text
    if not path and isinstance(value, dict):
        path = next((field for field in FIELDS if _at(value, field) is not None), "")
        if not path:
            raise MeterError(f"{text[:80]!r} has none of {', '.join(FIELDS)}: say where the figure is: #PATH")
    if path:
        value = _at(value, path)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MeterError(f"{text[:80]!r} has no number at {path!r}")
    try:
        number = value if isinstance(value, str) else repr(float(value))
    except OverflowError:
        raise MeterError(f"{text[:80]!r} is no power or energy") from None
    return quantity(number, unit or FIELDS.get(path, "W"))


def _at(value: object, path: str) -> object:
    """The value at this path of keys and indices; None if there is none."""
    for key in path.split("."):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


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
