"""Meters of boards and processors: RAPL, Jetson, Raspberry Pi 5, and an INA219 in the supply.

Meters the processor by Intel's and AMD's energy counters (RAPL) as Linux shows them.

They are at /sys/class/powercap/intel-rapl:N/energy_uj. Source of the format:
Documentation/power/powercap/powercap.rst of the Linux kernel. The zones `core` and `uncore` are parts of
their package, `psys` holds the packages: only packages and `dram` are added up.

Meters NVIDIA's Jetson boards by their INA3221 power monitors.

The driver may be the older one (iio) or the newer one (hwmon).

The rails that make up the whole board are by NVIDIA's Jetson Developer Guide and
github.com/energymon/energymon (jetson/README.md).

Meters a Raspberry Pi 5 by the rails of its power management chip: `vcgencmd pmic_read_adc`.

Meters with an INA219 current sensor in the device's supply, over I2C, by the standard library.

Registers are by Texas Instruments' data sheet SBOS448G, section 8.6: big-endian words; the shunt's voltage in
steps of 10 uV, with a sign; the bus voltage in bits 3 to 15, in steps of 4 mV.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .command import output
from .meter import CounterIntegral, MeterError, MeterInfo, NoMeter, PolledMeter, PowerIntegral

RAPL = MeterInfo("rapl", "processor packages and their memory", error=0.05, step_j=0.01, every_s=60.0)
"""The counter of a package wraps after 262 kJ: 40 minutes at 100 W."""
FOLDER = "sys/class/powercap"


@dataclass(frozen=True)
class Zone:
    """One counter in microjoules, which wraps to 0 after `range_uj`."""

    energy_uj: int
    range_uj: int


def counts(name: str) -> bool:
    """Whether a zone of this name is added up."""
    return name.startswith("package") or name == "dram"


def zone(name: str, energy: str, most: str) -> Zone:
    """A zone from the texts of its files. Raises MeterError."""
    try:
        return Zone(int(energy), int(most))
    except ValueError:
        raise MeterError(f"zone {name} says {energy!r} of {most!r}, expected microjoules") from None


def grown(before: Mapping[str, Zone], now: Mapping[str, Zone]) -> float:
    """Joules between two readings; each counter may wrap once in between."""
    total = 0
    for name, then in before.items():
        if name in now:
            step = now[name].energy_uj - then.energy_uj
            total += step if step >= 0 else step + then.range_uj
    return total / 1e6


def rapl_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this machine. Raises NoMeter, or MeterError without permission to read it."""
    folders = [
        path for path in sorted((root / FOLDER).glob("intel-rapl:*")) if counts(_text(path / "name", "?"))
    ]
    if not folders:
        raise NoMeter(f"no package below /{FOLDER}")
    return PolledMeter(RAPL, _Total(folders), CounterIntegral(), clock)


class _Total:
    """Sums the joules of all zones since it was made."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._last = self._zones()
        self._joules = 0.0

    def __call__(self) -> float:
        now = self._zones()
        self._joules += grown(self._last, now)
        self._last = now
        return self._joules

    def _zones(self) -> dict[str, Zone]:
        return {
            folder.name: zone(folder.name, _text(folder / "energy_uj"), _text(folder / "max_energy_range_uj"))
            for folder in self._folders
        }


def _text(path: Path, otherwise: str | None = None) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except PermissionError:
        raise MeterError(
            f"{path} may be read by root only: sudo chmod a+r {path.parent.parent}/intel-rapl:*/energy_uj "
            "(each time the machine has started; others can then watch what is computed, see CVE-2020-8694)"
        ) from None
    except OSError as error:
        if otherwise is None:
            raise MeterError(f"{path}: {error.strerror or error}") from None
        return otherwise


JETSON = MeterInfo("jetson", "the module's input", error=0.05, every_s=0.2)
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


def jetson_rails(files: Mapping[str, str]) -> dict[str, float]:
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


def jetson_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this board. Raises NoMeter, MeterError."""
    folders = list(_monitors(root))
    if not folders:
        raise NoMeter(f"no INA3221 below /{DRIVERS}")

    def look() -> float:
        watts: dict[str, float] = {}
        for folder in folders:
            watts |= jetson_rails(_files(folder))
        return whole(watts)

    look()
    return PolledMeter(JETSON, look, PowerIntegral(JETSON.every_s), clock)


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


PMIC = MeterInfo("pmic", "the board, from its twelve rails", error=0.10)
COMMAND = ("vcgencmd", "pmic_read_adc")
SLOPE, REST_W = 1.1327, 0.6444
"""Board power is SLOPE times that of the rails plus REST_W, for losses and what is on no rail.

Fitted to a meter at the USB-C plug by github.com/jfikar/RPi5-power (README).
"""

_LINE = re.compile(r"\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=([0-9.]+)[AV]\s*")


def pmic_rails(text: str) -> dict[str, float]:
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
    return SLOPE * sum(pmic_rails(text).values()) + REST_W


def pmic_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this board. Raises NoMeter, MeterError."""
    model = root / "proc/device-tree/model"
    if "Raspberry Pi 5" not in _model(model) or shutil.which(COMMAND[0]) is None:
        raise NoMeter("no Raspberry Pi 5 with vcgencmd")

    def look() -> float:
        return board(output(COMMAND))

    look()
    return PolledMeter(PMIC, look, PowerIntegral(PMIC.every_s), clock)


def _model(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


INA219 = MeterInfo("ina219", "what is behind the sensor", error=0.02, every_s=0.1)
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


def ina219_watts(shunt: bytes, bus: bytes, ohms: float) -> float:
    """Power of the load, from the words of two registers. Raises MeterError if the sensor overflowed."""
    if len(shunt) != 2 or len(bus) != 2:
        raise MeterError(f"registers of {len(shunt)} and {len(bus)} bytes, expected 2 and 2")
    across = int.from_bytes(shunt, "big", signed=True) * 10e-6
    word = int.from_bytes(bus, "big")
    if word & OVERFLOW:
        raise MeterError(f"more current than it can tell through {ohms:g} ohms")
    return abs(across / ohms) * (word >> 3) * 4e-3


def ina219_meter(wiring: Wiring, root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The sensor. Raises NoMeter if there is no such bus, MeterError."""
    path = root / "dev" / f"i2c-{wiring.bus}"
    if not path.exists():
        raise NoMeter(f"no {path}: is I2C switched on?")

    def look() -> float:
        return ina219_watts(_word(path, wiring.address, SHUNT), _word(path, wiring.address, BUS), wiring.ohms)

    look()
    return PolledMeter(INA219, look, PowerIntegral(INA219.every_s), clock)


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
