"""Finds the meter that a device uses: the one asked for, or the best on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_runtime.profiles import Power

from . import battery, boards
from .meter import MODELLED, Meter, MeterError, NoMeter

AUTO = "auto"
HERE: dict[str, Callable[[Path, Callable[[], float]], Meter]] = {
    "jetson": boards.jetson_meter,
    "pmic": boards.pmic_meter,
    "rapl": boards.rapl_meter,
    "battery": battery.find_meter,
    "termux": battery.phone_meter,
}
"""Meters that "auto" looks for, the best first: of the whole board, then exact ones, then coarse ones.

An INA219 is not among them: to address it on a bus may disturb whatever else is there.
"""
_WRONG = (MeterError, OSError, ValueError)
"""Errors at the first reading of a meter: its files may be gone, or have invalid content."""
METER_OPTIONS = (AUTO, *HERE, "ina219[:BUS,ADDRESS,OHM]", "command:...", "mqtt://...", MODELLED)


@dataclass(frozen=True)
class FoundMeter:
    """The meter; None if energy is modelled. `passed`: meters that are here but cannot be read, and why."""

    meter: Meter | None
    passed: tuple[str, ...] = ()

    def description(self, power: Power) -> str:
        """For people: what energy figures cover, or where they come from, and their uncertainty."""
        if self.meter is None:
            watts = f"{power.idle_w:g} W idle, {power.load_w:g} W under load"
            return f"from {watts} ({power.source}), ± {power.uncertainty:.0%}"
        about = self.meter.about
        return f"{about.covers}, ± {about.error:.0%}"

    @property
    def source(self) -> str:
        return MODELLED if self.meter is None else self.meter.about.source


def find_meter(
    option: str = AUTO, clock: Callable[[], float] = time.monotonic, root: Path = Path("/")
) -> FoundMeter:
    """The meter for one of `METER_OPTIONS`, by default the best here, if there is one.

    Raises MeterError if it fails.
    """
    if option == AUTO:
        return _best(clock, root)
    try:
        return _named(option, clock, root)
    except _WRONG as error:
        raise MeterError(f"--meter {_without_password(option)}: {error}") from None


def needs_listening(option: str) -> bool:
    """Whether the meter of this option must be listened to all the time.

    Raises as `find_meter` does, as far as can be told without listening.
    """
    if option.partition(":")[0] not in ("mqtt", "mqtts"):
        find_meter(option)
        return False
    from . import mqtt

    mqtt.MeterTopic.of(option)
    return True


def _named(option: str, clock: Callable[[], float], root: Path) -> FoundMeter:
    kind, _, rest = option.partition(":")
    if option == MODELLED:
        return FoundMeter(None)
    if option in HERE:
        return FoundMeter(HERE[option](root, clock))
    if kind == "ina219":
        return FoundMeter(boards.ina219_meter(boards.Wiring.of(rest), root, clock))
    if kind == "command":
        from . import command  # like the next one, loaded only if it is asked for

        return FoundMeter(command.command_meter(rest, clock))
    if kind in ("mqtt", "mqtts"):
        from . import mqtt

        return FoundMeter(mqtt.find_meter(option, clock))
    raise MeterError(f"expected one of {', '.join(METER_OPTIONS)}")


def _best(clock: Callable[[], float], root: Path) -> FoundMeter:
    passed: list[str] = []
    for name, make in HERE.items():
        try:
            return FoundMeter(make(root, clock), tuple(passed))
        except NoMeter:
            continue
        except _WRONG as error:
            passed.append(f"{name}: {error}")
    return FoundMeter(None, tuple(passed))


def _without_password(option: str) -> str:
    """The option without a broker's password."""
    scheme, mark, rest = option.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else option
