"""Meters a Raspberry Pi 5 by the rails of its power management chip: `vcgencmd pmic_read_adc`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from .command import output
from .meter import MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

ABOUT = MeterInfo("pmic", "the board, from its twelve rails", error=0.10)
COMMAND = ("vcgencmd", "pmic_read_adc")
SLOPE, REST_W = 1.1327, 0.6444
"""Board power is SLOPE times that of the rails plus REST_W, for losses and what is on no rail.

Fitted to a meter at the USB-C plug by github.com/jfikar/RPi5-power (README).
"""

_LINE = re.compile(r"\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=([0-9.]+)[AV]\s*")


def rails(text: str) -> dict[str, float]:
    """Watts by rail: each current times the voltage of the same name. Raises MeterError if there is none.

    The supply (EXT5V) and the clock's battery (BATT) have a voltage and no current.
    """
    values = {(m[1], m[2]): float(m[3]) for m in map(_LINE.fullmatch, text.splitlines()) if m}
    watts = {
        rail: amperes * values[rail, "V"]
        for (rail, unit), amperes in values.items()
        if unit == "A" and (rail, "V") in values
    }
    if not watts:
        first = text.strip().splitlines()[0] if text.strip() else "nothing"
        raise MeterError(f"{' '.join(COMMAND)} says {first!r}, expected currents and voltages of rails")
    return watts


def board(text: str) -> float:
    """Watts of the whole board. Raises MeterError."""
    return SLOPE * sum(rails(text).values()) + REST_W


def find_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this board. Raises NoMeter, MeterError."""
    model = root / "proc/device-tree/model"
    if "Raspberry Pi 5" not in _model(model) or shutil.which(COMMAND[0]) is None:
        raise NoMeter("no Raspberry Pi 5 with vcgencmd")

    def look() -> float:
        return board(output(COMMAND))

    look()
    return PolledMeter(ABOUT, look, PowerIntegral(ABOUT.every_s), clock)


def _model(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
