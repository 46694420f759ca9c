"""Meters of energy: one file for each source, a contract, and how one is chosen."""

from .accounting import Account, modelled, resting
from .finding import AUTO, WISHES, Found, find, listens
from .meter import MODELLED, About, Energy, Meter, MeterError, NoMeter, Reading, spent, together

__all__ = [
    "AUTO",
    "MODELLED",
    "WISHES",
    "About",
    "Account",
    "Energy",
    "Found",
    "Meter",
    "MeterError",
    "NoMeter",
    "Reading",
    "find",
    "listens",
    "modelled",
    "resting",
    "spent",
    "together",
]
