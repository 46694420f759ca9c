"""Which meter this device uses: the one that is asked for, or the best that is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_runtime.profiles import Power

from . import battery, command, ina219, jetson, pmic, rapl, termux
from .meter import MODELLED, Meter, MeterError, NoMeter

AUTO = "auto"
HERE: dict[str, Callable[[Path, Callable[[], float]], Meter]] = {
    "jetson": jetson.found,
    "pmic": pmic.found,
    "rapl": rapl.found,
    "battery": battery.found,
    "termux": termux.found,
}
"""What is looked for by itself, the best first: those of the whole board, then what is exact, then coarse.
An INA219 is not: asking an address on a bus may disturb whatever else is there.
"""
_WRONG = (MeterError, OSError, ValueError)
"""What a meter that is here may raise as it is first looked at: its files may be gone, or say nonsense."""
WISHES = (AUTO, *HERE, "ina219[:BUS,ADDRESS,OHM]", "command:...", "mqtt://...", MODELLED)


@dataclass(frozen=True)
class FoundMeter:
    """The meter; None where energy is modelled. `passed`: those that are here and cannot be read, and why."""

    meter: Meter | None
    passed: tuple[str, ...] = ()

    def said(self, power: Power) -> str:
        """For people: what energy is from, and how far to believe it."""
        if self.meter is None:
            watts = f"{power.idle_w:g} W idle, {power.load_w:g} W under load"
            return f"from {watts} ({power.source}), ± {power.uncertainty:.0%}"
        about = self.meter.about
        return f"{about.covers}, ± {about.error:.0%}"

    @property
    def source(self) -> str:
        return MODELLED if self.meter is None else self.meter.about.source


def find(wish: str = AUTO, clock: Callable[[], float] = time.monotonic, root: Path = Path("/")) -> FoundMeter:
    """The meter for a wish of `WISHES`; "auto" settles for none. Raises MeterError where it cannot be had."""
    if wish == AUTO:
        return _best(clock, root)
    try:
        return _asked(wish, clock, root)
    except _WRONG as error:
        raise MeterError(f"--meter {_shown(wish)}: {error}") from None


def listens(wish: str) -> bool:
    """Whether the meter of this wish must be listened to all the time. Raises as `find`, as far as can be
    told without beginning to.
    """
    if wish.partition(":")[0] not in ("mqtt", "mqtts"):
        find(wish)
        return False
    from . import mqtt

    mqtt.MeterTopic.of(wish)
    return True


def _asked(wish: str, clock: Callable[[], float], root: Path) -> FoundMeter:
    kind, _, rest = wish.partition(":")
    if wish == MODELLED:
        return FoundMeter(None)
    if wish in HERE:
        return FoundMeter(HERE[wish](root, clock))
    if kind == "ina219":
        return FoundMeter(ina219.found(ina219.Wiring.of(rest), root, clock))
    if kind == "command":
        return FoundMeter(command.found(rest, clock))
    if kind in ("mqtt", "mqtts"):
        from . import mqtt  # its client is not loaded for commands that need none

        return FoundMeter(mqtt.found(wish, clock))
    raise MeterError(f"expected one of {', '.join(WISHES)}")


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


def _shown(wish: str) -> str:
    """Without the password of a broker."""
    scheme, mark, rest = wish.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else wish
