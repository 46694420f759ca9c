"""Meters an Android phone by its battery, with `termux-battery-status`.

It needs the packages Termux:API and termux-api.

Android documents BATTERY_PROPERTY_CURRENT_NOW in microamperes, positive while charging; phones differ: some
give milliamperes, some the other sign (github.com/termux/termux-api/pull/293). The status says which way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from .command import output
from .meter import MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

ABOUT = MeterInfo("termux", "the whole phone, from its battery", error=0.10, every_s=10.0)
"""The program takes a second or two of the phone's time."""
NO_VOLTAGE_ERROR = 0.20
COMMAND = "termux-battery-status"
NOMINAL_V = 3.85
"""Of a lithium-ion cell; used if the installed version does not give the voltage."""
LEAST_UA = 10_000
"""No phone that computes draws less than 10 mA, so a smaller number is in milliamperes."""

Status = Mapping[str, object]


def status(text: str) -> Status:
    """The parsed output of the program. Raises MeterError."""
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        excerpt = text.strip()[:80] or "nothing (is the app Termux:API installed?)"
        raise MeterError(f"{COMMAND} says {excerpt!r}, expected JSON") from None


def volts(reading: Status) -> float | None:
    """The battery's voltage, in mV in newer versions, in V on some phones; None if it is not given."""
    value = reading.get("voltage")
    if not isinstance(value, int | float) or value <= 0:
        return None
    return value / 1e3 if value > 100 else float(value)


def watts(reading: Status) -> float:
    """Power drawn from the battery. Raises MeterError while the phone is on a charger."""
    way, current = reading.get("status"), reading.get("current")
    if reading.get("plugged", "UNPLUGGED") != "UNPLUGGED":
        raise MeterError(f"{reading.get('plugged')}: what the phone uses comes from its charger")
    if way not in ("DISCHARGING", "NOT_CHARGING") or not isinstance(current, int | float):
        raise MeterError(f"status {way!r} and current {current!r}, expected a battery that discharges")
    amperes = abs(current) / (1e6 if abs(current) >= LEAST_UA else 1e3)
    return amperes * (volts(reading) or NOMINAL_V)


def find_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this phone. Raises NoMeter, MeterError."""
    if shutil.which(COMMAND) is None:
        raise NoMeter(f"no {COMMAND}")

    def look() -> float:
        return watts(status(output((COMMAND,))))

    first = status(output((COMMAND,)))
    watts(first)
    about = ABOUT if volts(first) else replace(ABOUT, error=NO_VOLTAGE_ERROR)
    return PolledMeter(about, look, PowerIntegral(about.every_s), clock)
