"""What hyperparameters may be: they come over the wire, and are checked before anything is done with them.

Every function raises ValueError, naming the setting, its value and what was expected.
"""

from __future__ import annotations

from math import isfinite

from models.names import TUNABLE_SETS

MOST = 1_000_000
"""Epochs, samples of a batch, shots: more is a mistake, not a setting."""


def counts(most: int = MOST, **settings: int) -> None:
    """From 1 to `most`."""
    for name, value in settings.items():
        if not 1 <= value <= most:
            raise ValueError(f"{name} is {value}, expected 1 to {most}")


def positive(**settings: float) -> None:
    """Finite and more than 0."""
    for name, value in settings.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}, expected more than 0")


def not_negative(**settings: float) -> None:
    """Finite and 0 or more."""
    for name, value in settings.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}, expected 0 or more")


def below_one(**settings: float) -> None:
    """At least 0 and less than 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}, expected at least 0 and less than 1")


def momentum(value: float) -> None:
    """At least 0 and less than 1."""
    below_one(momentum=value)


def tunable_set(name: str) -> None:
    """One that bundles have."""
    if name not in TUNABLE_SETS:
        raise ValueError(f"there is no tunable set {name!r}; there are {', '.join(TUNABLE_SETS)}")
