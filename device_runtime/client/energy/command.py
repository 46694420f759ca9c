"""Any meter that a program can ask: it prints watts, or the joules of a counter."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from .integral import Integral, Joules, Watts
from .meter import About, MeterError
from .polled import Polled
from .programs import output
from .quantity import Quantity, quantity

POWER = About("command", "what the command measures", error=0.05, every_s=1.0)
ENERGY = About("command", "what the command measures", error=0.05, every_s=60.0)
USAGE = (
    "command:PROGRAM ARGUMENTS, which prints as its last line watts (12.3) or another unit (815 J, 0.5 kWh)"
)


def last_line(text: str) -> Quantity:
    """What a program printed last. Raises MeterError."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise MeterError(f"nothing was printed: expected {USAGE}")
    return quantity(lines[-1])


def found(command: str, clock: Callable[[], float]) -> Polled:
    """The meter that this command line asks. Raises MeterError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MeterError(f"{error}") from None
    if not words:
        raise MeterError(f"expected {USAGE}")
    folder = str(Path.cwd())  # its files may be named from here, and who trains goes elsewhere
    energy = last_line(output(words, folder)).energy

    def look() -> float:
        said = last_line(output(words, folder))
        if said.energy is not energy:
            raise MeterError(f"{command} says now power, now energy")
        return said.value

    about = ENERGY if energy else POWER
    integral: Integral = Joules() if energy else Watts(POWER.every_s)
    return Polled(about, look, integral, clock)
