"""Formats amounts for people: a few digits and a fitting unit; a dash for what was not measured."""

from __future__ import annotations

from math import floor, isnan, log10

from device_runtime.aggregator.tasks.closing import FullBuffer
from device_runtime.aggregator.tasks.task import Task

DASH = "–"
Units = tuple[tuple[str, float], ...]
"""Units with their sizes, the largest first."""
TIMES: Units = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
BYTES: Units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
JOULE: Units = (("MWh", 3.6e9), ("kWh", 3.6e6), ("kJ", 1e3), ("J", 1.0))


def unit_for(amount: float, units: Units) -> tuple[str, float]:
    """The largest unit of which the amount has at least two, or else the smallest."""
    return next((unit for unit in units if abs(amount) >= 2 * unit[1]), units[-1])


def duration(seconds: float) -> str:
    """A duration as text: 5 ms, 48 s, 12 min, 3.4 h, 2.1 days."""
    if isnan(seconds):
        return DASH
    if 0 < seconds < 0.1:
        return f"{digits(1000 * seconds, 2)} ms"
    unit, size = unit_for(seconds, TIMES)
    return f"{digits(seconds / size, 2)} {unit}"


def digits(value: float, significant: int = 3) -> str:
    """A number with at least `significant` digits, and all of its whole part: 3.14, 31.4, 314, 3140."""
    if isnan(value):
        return DASH
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.{decimals(value, significant)}f}"


def decimals(value: float, significant: int = 3) -> int:
    """The decimal places that show `significant` digits."""
    return max(0, significant - 1 - floor(log10(abs(value)))) if value else 0


def asked_devices(task: Task) -> str:
    """A phrase that says which devices are asked, and when a round closes before its deadline."""
    if not isinstance(task.closing, FullBuffer):
        cohort = (
            f"{task.devices_per_round:,} devices" if task.devices_per_round else "every device that is there"
        )
        first = task.ask_all_rounds if task.devices_per_round else 0
        number = f" {first:,}" if first > 1 else ""
        return f"{cohort} asked in each" + (f", all in the first{number}" if first else "")
    at_work = (
        f"{task.devices_per_round:,} devices" if task.devices_per_round else "all devices that are there"
    )
    return f"{at_work} at work, closed by {task.closing.size:,} updates"
