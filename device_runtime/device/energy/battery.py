"""Meters this machine by its battery, as Linux shows it: /sys/class/power_supply/NAME/uevent.

Source of the format: Documentation/ABI/testing/sysfs-class-power of the Linux kernel: millionths of W, Wh, A,
Ah and V. Drivers differ in the sign of a current; the status says which way it flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
