"""Parses power and energy as people and smart plugs write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import msgspec

from .meter import MeterError

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
