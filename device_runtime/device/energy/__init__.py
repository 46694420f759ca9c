"""Energy meters, one file for each source, and the choice among them."""

from .accounting import Account, modelled, resting
from .meter import (
    MODELLED,
    Energy,
    Meter,
    MeterError,
    MeterInfo,
    MeterReading,
    NoMeter,
    energy_between,
    together,
)
from .meter_choice import AUTO, METER_OPTIONS, FoundMeter, find_meter, needs_listening

__all__ = [
    "AUTO",
    "METER_OPTIONS",
    "MODELLED",
    "Account",
    "Energy",
    "FoundMeter",
    "Meter",
    "MeterError",
    "MeterInfo",
    "MeterReading",
    "NoMeter",
    "energy_between",
    "find_meter",
    "modelled",
    "needs_listening",
    "resting",
    "together",
]
