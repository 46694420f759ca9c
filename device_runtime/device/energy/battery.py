"""Meters this machine by its battery, on Linux and in Termux.

Meters this machine by its battery, as Linux shows it: /sys/class/power_supply/NAME/uevent.

Source of the format: Documentation/ABI/testing/sysfs-class-power of the Linux kernel: millionths of W, Wh, A,
Ah and V. Drivers differ in the sign of a current; the status says which way it flows.

Meters an Android phone by its battery, with `termux-battery-status`.

It needs the packages Termux:API and termux-api.

Android documents BATTERY_PROPERTY_CURRENT_NOW in microamperes, positive while charging; phones differ: some
give milliamperes, some the other sign (github.com/termux/termux-api/pull/293). The status says which way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from .command import output
from .meter import CounterIntegral, MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

FOLDER = "sys/class/power_supply"
POWER = MeterInfo("battery", "the whole device, from its battery", error=0.05, every_s=1.0)
CHARGE = MeterInfo(
    "battery", "the whole device, from its battery's charge", error=0.10, step_j=36.0, every_s=10.0
)
"""Measures by a counter, whose usual step is 10 mWh."""

Supply = Mapping[str, str]
_PREFIX = "POWER_SUPPLY_"


def supply(text: str) -> Supply:
    """The properties in a uevent file, without their prefix: {"STATUS": "Discharging", ...}."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.removeprefix(_PREFIX): value.strip() for name, _, value in lines if name.startswith(_PREFIX)}


def is_battery(properties: Supply) -> bool:
    """Whether this is the machine's battery: not a charger, nor the battery of a mouse."""
    is_type = ("STATUS" in properties) and properties.get("TYPE", "Battery") == "Battery"
    return is_type and properties.get("SCOPE") != "Device" and properties.get("PRESENT") != "0"


def watts(batteries: Sequence[Supply]) -> float | None:
    """Power drawn from them, from their power or current and voltage; None if they do not tell.

    Raises MeterError while the load is on the charger.
    """
    drawn = [_power(battery) for battery in _discharging(batteries)]
    return None if None in drawn else sum(value for value in drawn if value is not None)


def joules_left(batteries: Sequence[Supply]) -> float | None:
    """Energy in them; None if they do not tell.

    It is read as energy, or as charge times the design voltage: the present voltage falls under load without
    energy being used. Raises MeterError while the load is on the charger.
    """
    left = [_energy(battery) for battery in _discharging(batteries)]
    return None if None in left else sum(value for value in left if value is not None)


def find_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this machine. Raises NoMeter, MeterError."""
    paths = [path for path in sorted((root / FOLDER).glob("*/uevent")) if is_battery(_read(path))]
    if not paths:
        raise NoMeter(f"no battery below /{FOLDER}")

    def now() -> list[Supply]:
        return [_read(path) for path in paths]

    if watts(now()):
        return PolledMeter(POWER, lambda: _reading(watts(now())), PowerIntegral(POWER.every_s), clock)
    if joules_left(now()) is None:
        raise MeterError(f"{paths[0].parent}: neither power nor charge is told")
    return PolledMeter(CHARGE, lambda: -_reading(joules_left(now())), CounterIntegral(), clock)


def _discharging(batteries: Sequence[Supply]) -> list[Supply]:
    """The batteries that carry the load; a second one may rest. Raises MeterError if none does."""
    statuses = [battery.get("STATUS", "Unknown") for battery in batteries]
    if "Discharging" not in statuses or "Charging" in statuses:
        state = " and ".join(statuses).lower() or "gone"
        raise MeterError(f"the battery is {state}: what the device uses comes from its charger")
    return [battery for battery, status in zip(batteries, statuses, strict=True) if status == "Discharging"]


def _power(battery: Supply) -> float | None:
    if (power := _number(battery, "POWER_NOW")) is not None:
        return abs(power) / 1e6
    current, volts = _number(battery, "CURRENT_NOW"), _number(battery, "VOLTAGE_NOW")
    return None if current is None or volts is None else abs(current) * volts / 1e12


def _energy(battery: Supply) -> float | None:
    if (energy := _number(battery, "ENERGY_NOW")) is not None:
        return energy * 3600 / 1e6
    charge, volts = _number(battery, "CHARGE_NOW"), _number(battery, "VOLTAGE_MIN_DESIGN")
    return None if charge is None or volts is None else charge * volts * 3600 / 1e12


def _number(battery: Supply, name: str) -> float | None:
    try:
        return float(battery[name])
    except (KeyError, ValueError):
        return None


def _reading(value: float | None) -> float:
    if value is None:
        raise MeterError("the battery no longer tells its power")
    return value


def _read(path: Path) -> Supply:
    try:
        return supply(path.read_text(errors="replace"))
    except OSError as error:
        raise MeterError(f"{path}: {error.strerror or error}") from None


PHONE = MeterInfo("termux", "the whole phone, from its battery", error=0.10, every_s=10.0)
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


def phone_watts(reading: Status) -> float:
    """Power drawn from the battery. Raises MeterError while the phone is on a charger."""
    way, current = reading.get("status"), reading.get("current")
    if reading.get("plugged", "UNPLUGGED") != "UNPLUGGED":
        raise MeterError(f"{reading.get('plugged')}: what the phone uses comes from its charger")
    if way not in ("DISCHARGING", "NOT_CHARGING") or not isinstance(current, int | float):
        raise MeterError(f"status {way!r} and current {current!r}, expected a battery that discharges")
    amperes = abs(current) / (1e6 if abs(current) >= LEAST_UA else 1e3)
    return amperes * (volts(reading) or NOMINAL_V)


def phone_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this phone. Raises NoMeter, MeterError."""
    if shutil.which(COMMAND) is None:
        raise NoMeter(f"no {COMMAND}")

    def look() -> float:
        return phone_watts(status(output((COMMAND,))))

    first = status(output((COMMAND,)))
    phone_watts(first)
    about = PHONE if volts(first) else replace(PHONE, error=NO_VOLTAGE_ERROR)
    return PolledMeter(about, look, PowerIntegral(about.every_s), clock)
