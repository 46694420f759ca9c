"""Meters NVIDIA's Jetson boards by their INA3221 power monitors.

The driver may be the older one (iio) or the newer one (hwmon).

The rails that make up the whole board are by NVIDIA's Jetson Developer Guide and
github.com/energymon/energymon (jetson/README.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .meter import MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

ABOUT = MeterInfo("jetson", "the module's input", error=0.05, every_s=0.2)
DRIVERS = "sys/bus/i2c/drivers"

WHOLE = (
    ("VDD_IN", "VDD_MUX"),  # TX1, TX2: module, and carrier board
    ("VDD_IN",),  # Xavier NX, Orin Nano, Orin NX
    ("POM_5V_IN",),  # Nano
    ("5V_IN",),  # Xavier NX with the older driver
    ("VIN",),  # Thor
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)
"""Rails that together supply a whole board: the first of these sets that is complete counts."""

_LABEL = re.compile(r"in(\d+)_label|rail_name_(\d+)")


def rails(files: Mapping[str, str]) -> dict[str, float]:
    """Watts by rail label, from one monitor's files (name to text).

    hwmon: in1_label, in1_input (mV), curr1_input (mA). iio: rail_name_0, in_power0_input (mW), or
    in_voltage0_input and in_current0_input. A channel that is off or has no current is left out.
    """
    by_label = {}
    for name, label in files.items():
        if match := _LABEL.fullmatch(name):
            hwmon, iio = match.groups()
            watts = _hwmon(files, hwmon) if hwmon else _iio(files, iio)
            if watts is not None:
                by_label[label.strip()] = watts
    return by_label


def whole(watts: Mapping[str, float]) -> float:
    """Watts of the whole board. Raises MeterError if it is not known which rails make it up."""
    for names in WHOLE:
        if all(name in watts for name in names):
            return sum(watts[name] for name in names)
    labels = ", ".join(watts) or "none"
    raise MeterError(f"rails {labels}: which of them are the whole board is not known")


def find_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this board. Raises NoMeter, MeterError."""
    folders = list(_monitors(root))
    if not folders:
        raise NoMeter(f"no INA3221 below /{DRIVERS}")

    def look() -> float:
        watts: dict[str, float] = {}
        for folder in folders:
            watts |= rails(_files(folder))
        return whole(watts)

    look()
    return PolledMeter(ABOUT, look, PowerIntegral(ABOUT.every_s), clock)


def _hwmon(files: Mapping[str, str], channel: str) -> float | None:
    millivolts, milliamperes = _number(files, f"in{channel}_input"), _number(files, f"curr{channel}_input")
    return None if millivolts is None or milliamperes is None else millivolts * milliamperes / 1e6


def _iio(files: Mapping[str, str], channel: str) -> float | None:
    if (milliwatts := _number(files, f"in_power{channel}_input")) is not None:
        return milliwatts / 1e3
    millivolts = _number(files, f"in_voltage{channel}_input")
    milliamperes = _number(files, f"in_current{channel}_input")
    return None if millivolts is None or milliamperes is None else millivolts * milliamperes / 1e6


def _number(files: Mapping[str, str], name: str) -> float | None:
    try:
        return float(files[name])
    except (KeyError, ValueError):
        return None


def _monitors(root: Path) -> Iterator[Path]:
    for pattern in ("ina3221/*/hwmon/hwmon*", "ina3221x/*/iio:device*", "ina3221x/*/iio_device"):
        yield from sorted((root / DRIVERS).glob(pattern))


def _files(folder: Path) -> dict[str, str]:
    texts = {}
    for path in folder.iterdir():
        if re.fullmatch(
            r"in\d+_label|rail_name_\d+|(in|curr|in_power|in_voltage|in_current)\d+_input", path.name
        ):
            try:
                texts[path.name] = path.read_text(errors="replace")
            except OSError:  # a channel that is switched off
                continue
    return texts
