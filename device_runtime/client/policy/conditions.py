"""This machine as its owner's rules look at it: power, heat, network, load; only what a policy asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from device_runtime.profiles.machine_memory import text_of

from . import external_programs as programs
from . import readouts
from .readouts import Ticks
from .rules import NOT_LOOKED_AT, Charge, Conditions, Policy, Seen

COMMAND_S = 5.0
"""Seconds that another program may take to say something."""
COMMANDS_EACH_S = 30.0
"""Seconds for which what other programs said is taken to hold."""
LOAD_OVER_S = 5.0
"""Seconds over which, at least, the load of others is looked at."""
NETWORK_MANAGER = (
    *("busctl", "--system", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)
NMCLI = ("nmcli", "-t", "-f", "GENERAL.METERED", "device", "show")

Say = Callable[[Sequence[str]], str]
"""What a program says; empty where it is not there, fails or takes too long."""


def said(command: Sequence[str]) -> str:
    """See `Say`."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = programs.asked(command, COMMAND_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def own_cpu_s() -> float:
    """Processor time of this process and of all that it started, in seconds."""
    import psutil  # 2 MB: not for a device whose owner has no rule that needs it

    ended, running = os.times(), psutil.Process().children(recursive=True)
    seconds = time.process_time() + ended.children_user + ended.children_system
    for process in running:
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


@dataclass
class Load:
    """Percent of the machine's processor time that others used since it was last looked at."""

    stat: Path = Path("/proc/stat")
    own_s: Callable[[], float] = own_cpu_s
    clock: Callable[[], float] = time.monotonic
    _before: tuple[float, Ticks, float] | None = None
    _seen: Seen[float] = NOT_LOOKED_AT

    def seen(self) -> Seen[float]:
        now = self.clock()
        if self._before is not None and now - self._before[0] < LOAD_OVER_S:
            return self._seen
        known, own_s = readouts.ticks(text_of(self.stat)), self.own_s()
        if known is None:
            return Seen(None, f"{self.stat} cannot be read")
        if self._before is None:
            self._seen = self._average()
        else:
            _, ticks, own_before_s = self._before
            own = (own_s - own_before_s) * os.sysconf("SC_CLK_TCK")
            whole, used = known.whole - ticks.whole, known.used - ticks.used
            percent = 100 * (used - own) / whole if whole > 0 else 0.0
            self._seen = Seen(min(100.0, max(0.0, percent)), "/proc/stat, without this process")
        self._before = (now, known, own_s)
        return self._seen

    @staticmethod
    def _average() -> Seen[float]:
        """At the first look, when this process has done nothing yet."""
        return Seen(min(100.0, 100 * os.getloadavg()[0] / (os.cpu_count() or 1)), "load of the last minute")


@dataclass
class Look:
    """Reads the conditions that a policy asks for. `clock` in seconds, `now` in local time."""

    policy: Policy
    bytes_today: Callable[[], int] = lambda: 0
    say: Say = said
    load: Load = field(default_factory=Load)
    supplies: Path = Path("/sys/class/power_supply")
    now: Callable[[], datetime] = lambda: datetime.now().astimezone()
    clock: Callable[[], float] = time.monotonic
    _heard: dict[tuple[str, ...], tuple[float, str]] = field(default_factory=dict)

    def conditions(self, paused: str = "") -> Conditions:
        """As they are now; `paused` by hand, and by whom. Nothing that the policy does not ask for."""
        policy = self.policy
        powered = policy.mains or policy.battery_above is not None
        return Conditions(
            when=self.now(),
            paused=paused,
            charge=self._charge() if powered else Seen(None, NOT_LOOKED_AT.source),
            celsius=self._celsius() if policy.below_c is not None else NOT_LOOKED_AT,
            metered=self._metered() if policy.unmetered else Seen(None, NOT_LOOKED_AT.source),
            others=self.load.seen() if policy.others_below is not None else NOT_LOOKED_AT,
            bytes_today=self.bytes_today() if policy.daily_bytes is not None else 0,
        )

    def _charge(self) -> Seen[Charge]:
        import psutil

        if text := self._asked(("termux-battery-status",)):
            return Seen(readouts.charge_by_termux(text), "termux-battery-status")
        try:
            if self.supplies.exists():
                return self._charge_of_linux()
            found = getattr(psutil, "sensors_battery", lambda: None)()
        except OSError as error:  # Android shows its sensors to nobody
            return Seen(None, f"the battery cannot be read: {error.strerror}; install Termux:API")
        if found is None:
            return Seen(Charge(None, True), "it has no battery")
        if found.power_plugged is None:
            return Seen(None, "the battery does not say whether it is charged")
        return Seen(Charge(float(found.percent), bool(found.power_plugged)), "the system")

    def _charge_of_linux(self) -> Seen[Charge]:
        """Raises OSError where not all can be read: what cannot may be a battery."""
        texts = [(one / "uevent").read_text(errors="replace") for one in sorted(self.supplies.iterdir())]
        charge = readouts.charge_by_supplies(texts)
        if charge is None:
            return Seen(None, "the battery does not say how full it is, or whether it is charged")
        return Seen(charge, "it has no battery" if charge.percent is None else "the system")

    def _celsius(self) -> Seen[float]:
        import psutil

        if text := self._asked(("termux-battery-status",)):
            return Seen(readouts.celsius_by_termux(text), "the battery, termux-battery-status")
        try:
            found: dict[str, list[Any]] = getattr(psutil, "sensors_temperatures", dict)()
        except OSError as error:
            return Seen(None, f"sensors cannot be read: {error.strerror}")
        celsius = [float(entry.current) for group in found.values() for entry in group if entry.current]
        return Seen(max(celsius), "the hottest sensor") if celsius else Seen(None, "no sensor says")

    def _metered(self) -> Seen[bool]:
        known = readouts.metered_by_busctl(self._asked(NETWORK_MANAGER))
        if known is None and (interface := readouts.default_interface(text_of(Path("/proc/net/route")))):
            known = readouts.metered_by_nmcli(self._asked((*NMCLI, interface)))
        if known is not None:
            return Seen(known, "NetworkManager")
        wifi = readouts.wifi_by_termux(self._asked(("termux-wifi-connectioninfo",)))
        if wifi is not None:
            return Seen(not wifi, "taken so: by Wi-Fi" if wifi else "taken so: no Wi-Fi")
        return Seen(None, "neither NetworkManager nor Termux:API says")

    def _asked(self, command: tuple[str, ...]) -> str:
        now, (when, text) = self.clock(), self._heard.get(command, (float("-inf"), ""))
        if now - when >= COMMANDS_EACH_S:
            text = self.say(command)
            self._heard[command] = (now, text)
        return text
