"""Meters with an INA219 current sensor in the device's supply, over I2C, by the standard library.

Registers are by Texas Instruments' data sheet SBOS448G, section 8.6: big-endian words; the shunt's voltage in
steps of 10 uV, with a sign; the bus voltage in bits 3 to 15, in steps of 4 mV.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .meter import MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

ABOUT = MeterInfo("ina219", "what is behind the sensor", error=0.02, every_s=0.1)
SHUNT, BUS = 0x01, 0x02
OVERFLOW = 0x0001
I2C_SLAVE = 0x0703
"""The request of Linux's i2c-dev that sets the address for the next reads and writes."""
USAGE = "ina219[:BUS[,ADDRESS[,OHM]]], as ina219:1,0x40,0.1"


@dataclass(frozen=True)
class Wiring:
    """Bus number (/dev/i2c-N), address on it, and the shunt in ohms; defaults are the usual board's."""

    bus: int = 1
    address: int = 0x40
    ohms: float = 0.1

    @classmethod
    def of(cls, text: str) -> Wiring:
        """From "1,0x40,0.1"; parts left out have their default. Raises MeterError."""
        try:
            parts = [part.strip() for part in text.split(",")] if text else []
            if len(parts) > 3:
                raise ValueError
            bus, address, ohms = (*parts, *("1", "0x40", "0.1")[len(parts) :])
            wiring = cls(int(bus), int(address, 0), float(ohms))
        except ValueError:
            raise MeterError(f"{text!r}: expected {USAGE}") from None
        if not (0x08 <= wiring.address <= 0x77 and wiring.ohms > 0):
            raise MeterError(f"{text!r}: an address is 0x08 to 0x77, a shunt more than 0 ohms")
        return wiring


def watts(shunt: bytes, bus: bytes, ohms: float) -> float:
    """Power of the load, from the words of two registers. Raises MeterError if the sensor overflowed."""
    if len(shunt) != 2 or len(bus) != 2:
        raise MeterError(f"registers of {len(shunt)} and {len(bus)} bytes, expected 2 and 2")
    across = int.from_bytes(shunt, "big", signed=True) * 10e-6
    word = int.from_bytes(bus, "big")
    if word & OVERFLOW:
        raise MeterError(f"more current than it can tell through {ohms:g} ohms")
    return abs(across / ohms) * (word >> 3) * 4e-3


def find_meter(wiring: Wiring, root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The sensor. Raises NoMeter if there is no such bus, MeterError."""
    path = root / "dev" / f"i2c-{wiring.bus}"
    if not path.exists():
        raise NoMeter(f"no {path}: is I2C switched on?")

    def look() -> float:
        return watts(_word(path, wiring.address, SHUNT), _word(path, wiring.address, BUS), wiring.ohms)

    look()
    return PolledMeter(ABOUT, look, PowerIntegral(ABOUT.every_s), clock)


def _word(path: Path, address: int, register: int) -> bytes:
    """Read one register. Raises MeterError."""
    from fcntl import ioctl  # not on every system

    try:
        bus = os.open(path, os.O_RDWR)
        try:
            ioctl(bus, I2C_SLAVE, address)
            os.write(bus, bytes((register,)))
            return os.read(bus, 2)
        finally:
            os.close(bus)
    except PermissionError:
        raise MeterError(f"{path}: permission denied: sudo usermod -aG i2c $USER, and log in again") from None
    except OSError as error:
        raise MeterError(f"{path}, address {address:#x}: {error.strerror or error}") from None
