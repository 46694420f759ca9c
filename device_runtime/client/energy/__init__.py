"""Energy meters, one file for each source, and the choice among them."""

from .accounting import Account, modelled, resting
from .finding import AUTO, WISHES, FoundMeter, find, needs_listening
from .meter import MODELLED, Energy, Meter, MeterError, MeterInfo, MeterReading, NoMeter, spent, together

__all__ = [
    "AUTO",
    "MODELLED",
    "WISHES",
    "Account",
    "Energy",
    "FoundMeter",
    "Meter",
    "MeterError",
    "MeterInfo",
    "MeterReading",
    "NoMeter",
    "find",
    "modelled",
    "needs_listening",
    "resting",
    "spent",
    "together",
]
