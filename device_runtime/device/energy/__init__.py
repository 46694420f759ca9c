"""Energy meters, by source, and the choice among them."""

from .meter import (
    MODELLED,
    Account,
    Energy,
    Meter,
    MeterError,
    MeterInfo,
    MeterReading,
    NoMeter,
    energy_of,
    modelled,
    resting,
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
    "energy_of",
    "find_meter",
    "modelled",
    "needs_listening",
    "resting",
    "together",
]
