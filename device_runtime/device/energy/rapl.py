"""Meters the processor by Intel's and AMD's energy counters (RAPL) as Linux shows them.

They are at /sys/class/powercap/intel-rapl:N/energy_uj. Source of the format:
Documentation/power/powercap/powercap.rst of the Linux kernel. The zones `core` and `uncore` are parts of
their package, `psys` holds the packages: only packages and `dram` are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .meter import CounterIntegral, MeterError, MeterInfo, NoMeter, PolledMeter

ABOUT = MeterInfo("rapl", "processor packages and their memory", error=0.05, step_j=0.01, every_s=60.0)
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


def find_meter(root: Path, clock: Callable[[], float]) -> PolledMeter:
    """The meter of this machine. Raises NoMeter, or MeterError without permission to read it."""
    folders = [
        path for path in sorted((root / FOLDER).glob("intel-rapl:*")) if counts(_text(path / "name", "?"))
    ]
    if not folders:
        raise NoMeter(f"no package below /{FOLDER}")
    return PolledMeter(ABOUT, _Total(folders), CounterIntegral(), clock)


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
