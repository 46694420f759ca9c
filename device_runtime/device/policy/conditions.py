"""Reads power, temperature, network and load of this machine for the owner's rules.

Only what a policy asks for is read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path

from device_runtime.device.energy.battery import is_battery, supply
from device_runtime.machine_readings import SensorDenied, battery, hottest_celsius, load_per_core, own_cpu_s
from device_runtime.service_process import run_program

from .rules import NOT_LOOKED_AT, Charge, Conditions, Policy, Reading

# Parsers of what programs and the kernel print. No I/O; each returns None for a text that does not say.

_NM_METERED = {1: True, 2: False, 3: True, 4: False}
"""NetworkManager's NMMetered: 3 and 4 are guesses, by the sort of link and its peer's hints; 0: unknown."""


@dataclass(frozen=True)
class Ticks:
    """Processor time since the machine started, in clock ticks: in all, and the used part."""

    whole: int
    used: int


def metered_by_busctl(text: str) -> bool | None:
    """From `busctl get-property ... org.freedesktop.NetworkManager Metered`: "u 4"."""
    match = re.fullmatch(r"u (\d+)", text.strip())
    return _NM_METERED.get(int(match[1])) if match else None


def metered_by_nmcli(text: str) -> bool | None:
    """From `nmcli -t -f GENERAL.METERED device show IF`: "GENERAL.METERED:no (guessed)"."""
    match = re.search(r"^GENERAL\.METERED:\s*(yes|no)\b", text, re.MULTILINE)
    return match[1] == "yes" if match else None


def wifi_by_termux(text: str) -> bool | None:
    """Whether Wi-Fi is connected, from `termux-wifi-connectioninfo`."""
    connection = _json(text)
    state = connection.get("supplicant_state")
    if not isinstance(state, str):
        return None
    return state == "COMPLETED" and connection.get("ip") not in (None, "", "0.0.0.0")  # noqa: S104  # no address


def charge_by_supplies(texts: Sequence[str]) -> Charge | None:
    """The charge from all /sys/class/power_supply/*/uevent: of this machine's batteries, not a mouse's.

    Several batteries count as one if they tell their content, else the emptier one counts. A battery that
    neither charges nor discharges, as one that is kept from being full, is on mains.
    """
    supplies = [supply(text) for text in texts]
    batteries = [uevent for uevent in supplies if is_battery(uevent)]
    if not batteries:
        return Charge(None, True)
    statuses = {uevent.get("STATUS", "Unknown") for uevent in batteries}
    charged = any(uevent.get("ONLINE") == "1" for uevent in supplies if not is_battery(uevent))
    if statuses == {"Unknown"} and not charged:
        return None
    percent = _together(batteries)
    return None if percent is None else Charge(percent, charged or "Discharging" not in statuses)


def _together(batteries: Sequence[Mapping[str, str]]) -> float | None:
    """Percent of what all the batteries hold when full."""
    for quantity in ("ENERGY", "CHARGE"):
        now = [_number(uevent.get(f"{quantity}_NOW")) for uevent in batteries]
        full = [_number(uevent.get(f"{quantity}_FULL")) for uevent in batteries]
        if None not in (*now, *full) and (most := sum(filter(None, full))) > 0:
            return min(100.0, 100 * sum(filter(None, now)) / most)
    capacities = [_number(uevent.get("CAPACITY")) for uevent in batteries]
    return min((value for value in capacities if value is not None), default=None)


def charge_by_termux(text: str) -> Charge | None:
    """The charge from `termux-battery-status`."""
    status = _json(text)
    percent, plugged = _number(status.get("percentage")), status.get("plugged")
    if percent is None or not 0 <= percent <= 100 or not isinstance(plugged, str):
        return None
    return Charge(percent, plugged != "UNPLUGGED")


def celsius_by_termux(text: str) -> float | None:
    """The battery's temperature, from `termux-battery-status`: phones throttle by it."""
    return _number(_json(text).get("temperature"))


def read_ticks(text: str) -> Ticks | None:
    """From /proc/stat.

    Time that was idle, waited for the disk or was given to other guests is not used.
    """
    match = re.match(r"cpu\s+((?:\d+ ?){4,})", text)
    if not match:
        return None
    user, nice, system, idle, *more = map(int, match[1].split())
    wait, irq, soft, steal = (*more, 0, 0, 0, 0)[:4]  # guests' time is in the users' already
    used = user + nice + system + irq + soft
    return Ticks(used + idle + wait + steal, used)


def stalled(text: str) -> float:
    """Percent of the last ten seconds in which all processes waited for memory; 0 where unknown.

    From /proc/pressure/memory.
    """
    match = re.search(r"^full avg10=(\d+\.\d+)", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def default_interface(text: str) -> str | None:
    """The interface of the default route, from /proc/net/route.

    Of several routes, that of the least metric counts.
    """
    routes: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        cells: Sequence[str] = line.split()
        if len(cells) > 7 and cells[1] == "00000000" and cells[7] == "00000000" and cells[6].isdecimal():
            routes.append((int(cells[6]), cells[0]))
    return min(routes)[1] if routes else None


def _json(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(quantity: object) -> float | None:
    """Some versions of Termux write numbers as strings."""
    try:
        value = float(quantity) if isinstance(quantity, (int, float, str)) else float("nan")
    except ValueError:
        return None
    return value if isfinite(value) else None


COMMAND_S = 5.0
"""Seconds that another program may take to answer."""
COMMANDS_EACH_S = 30.0
"""Seconds for which an answer of another program is reused."""
LOAD_OVER_S = 5.0
"""The load of other processes is measured over at least so many seconds."""
NETWORK_MANAGER = (
    *("busctl", "--system", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)
NMCLI = ("nmcli", "-t", "-f", "GENERAL.METERED", "device", "show")

ProgramOutput = Callable[[Sequence[str]], str]
"""What a program prints; empty if it is missing, fails or takes too long."""


def program_output(command: Sequence[str]) -> str:
    """See `ProgramOutput`."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = run_program(command, COMMAND_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass
class Load:
    """Percent of the machine's processor time that other processes used since the last look."""

    stat: Path = Path("/proc/stat")
    own_s: Callable[[], float] = own_cpu_s
    clock: Callable[[], float] = time.monotonic
    _before: tuple[float, Ticks, float] | None = None
    _reading: Reading[float] = NOT_LOOKED_AT

    def reading(self) -> Reading[float]:
        now = self.clock()
        if self._before is not None and now - self._before[0] < LOAD_OVER_S:
            return self._reading
        ticks_now = read_ticks(_read(self.stat))
        if ticks_now is None:
            return Reading(None, f"{self.stat} cannot be read")
        own_s = self.own_s()
        if self._before is None:
            self._reading = self._average()
        else:
            _, ticks, own_before_s = self._before
            own = (own_s - own_before_s) * os.sysconf("SC_CLK_TCK")
            whole, used = ticks_now.whole - ticks.whole, ticks_now.used - ticks.used
            percent = 100 * (used - own) / whole if whole > 0 else 0.0
            self._reading = Reading(min(100.0, max(0.0, percent)), "/proc/stat, without this process")
        self._before = (now, ticks_now, own_s)
        return self._reading

    @staticmethod
    def _average() -> Reading[float]:
        """For the first look, when this process has done nothing yet."""
        load = load_per_core()
        if load is None:
            return Reading(None, "the load cannot be read yet")
        return Reading(min(100.0, 100 * load), "load of the last minute")


@dataclass
class ConditionReader:
    """Reads the conditions that a policy asks for. `clock` in seconds, `now` in local time."""

    policy: Policy
    bytes_today: Callable[[], int] = lambda: 0
    output_of: ProgramOutput = program_output
    load: Load = field(default_factory=Load)
    supplies: Path = Path("/sys/class/power_supply")
    now: Callable[[], datetime] = lambda: datetime.now().astimezone()
    clock: Callable[[], float] = time.monotonic
    _outputs: dict[tuple[str, ...], tuple[float, str]] = field(default_factory=dict)

    def conditions(self, paused: str = "") -> Conditions:
        """The conditions that the policy asks for; `paused` says since when it is paused by hand."""
        policy = self.policy
        powered = policy.mains or policy.battery_above is not None
        return Conditions(
            when=self.now(),
            paused=paused,
            charge=self._charge() if powered else Reading(None, NOT_LOOKED_AT.source),
            celsius=self._celsius() if policy.below_c is not None else NOT_LOOKED_AT,
            metered=self._metered() if policy.unmetered else Reading(None, NOT_LOOKED_AT.source),
            others=self.load.reading() if policy.others_below is not None else NOT_LOOKED_AT,
            bytes_today=self.bytes_today() if policy.daily_bytes is not None else 0,
        )

    def _charge(self) -> Reading[Charge]:
        if text := self._run_program(("termux-battery-status",)):
            return Reading(charge_by_termux(text), "termux-battery-status")
        try:
            if self.supplies.exists():
                return self._charge_of_linux()
            if sys.platform == "linux" and not self.supplies.parent.is_dir():
                return Reading(None, f"the battery cannot be read: there is no {self.supplies.parent}")
            power = battery()
        except (OSError, SensorDenied) as error:  # Android denies access to its sensors
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            return Reading(None, f"the battery cannot be read: {why.lower()}; install Termux:API")
        if power is None:
            return Reading(Charge(None, True), "it has no battery")
        if power.plugged is None:
            return Reading(None, "the battery does not say whether it is charged")
        return Reading(Charge(power.percent, power.plugged), "the system")

    def _charge_of_linux(self) -> Reading[Charge]:
        """Raises OSError if any supply cannot be read, as that may be a battery."""
        texts = [(path / "uevent").read_text(errors="replace") for path in sorted(self.supplies.iterdir())]
        charge = charge_by_supplies(texts)
        if charge is None:
            return Reading(None, "the battery does not say how full it is, or whether it is charged")
        return Reading(charge, "it has no battery" if charge.percent is None else "the system")

    def _celsius(self) -> Reading[float]:
        if text := self._run_program(("termux-battery-status",)):
            return Reading(celsius_by_termux(text), "the battery, termux-battery-status")
        try:
            celsius = hottest_celsius()
        except SensorDenied as error:
            return Reading(None, f"sensors cannot be read: {error}")
        return Reading(celsius, "no sensor says" if celsius is None else "the hottest sensor")

    def _metered(self) -> Reading[bool]:
        metered = metered_by_busctl(self._run_program(NETWORK_MANAGER))
        if metered is None and (interface := default_interface(_read(Path("/proc/net/route")))):
            metered = metered_by_nmcli(self._run_program((*NMCLI, interface)))
        if metered is not None:
            return Reading(metered, "NetworkManager")
        wifi = wifi_by_termux(self._run_program(("termux-wifi-connectioninfo",)))
        if wifi is not None:
            return Reading(not wifi, "taken so: by Wi-Fi" if wifi else "taken so: no Wi-Fi")
        return Reading(None, "neither NetworkManager nor Termux:API says")

    def _run_program(self, command: tuple[str, ...]) -> str:
        now, (when, text) = self.clock(), self._outputs.get(command, (float("-inf"), ""))
        if now - when >= COMMANDS_EACH_S:
            text = self.output_of(command)
            self._outputs[command] = (now, text)
        return text


def _read(path: Path) -> str:
    from device_runtime.profiles.measure import read_system_file  # 50 kB, needed by few rules

    return read_system_file(path)
