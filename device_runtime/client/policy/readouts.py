"""What other programs and the kernel say of this machine, as text, and what it means. No I/O.

Each returns None for a text that does not say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from device_runtime.client.energy.battery import is_battery, supply

from .rules import Charge

_NM_METERED = {1: True, 2: False, 3: True, 4: False}
"""NetworkManager's NMMetered: 3 and 4 are guesses, by the sort of link and its peer's hints; 0: unknown."""


@dataclass(frozen=True)
class Ticks:
    """Processor time since the start of the machine, in ticks of its clock: in all, and what was used."""

    whole: int
    used: int


def metered_by_busctl(text: str) -> bool | None:
    """Of `busctl get-property ... org.freedesktop.NetworkManager Metered`: "u 4"."""
    found = re.fullmatch(r"u (\d+)", text.strip())
    return _NM_METERED.get(int(found[1])) if found else None


def metered_by_nmcli(text: str) -> bool | None:
    """Of `nmcli -t -f GENERAL.METERED device show IF`: "GENERAL.METERED:no (guessed)"."""
    found = re.search(r"^GENERAL\.METERED:\s*(yes|no)\b", text, re.MULTILINE)
    return found[1] == "yes" if found else None


def wifi_by_termux(text: str) -> bool | None:
    """Whether Wi-Fi is connected, of `termux-wifi-connectioninfo`."""
    known = _json(text)
    state = known.get("supplicant_state")
    if not isinstance(state, str):
        return None
    return state == "COMPLETED" and known.get("ip") not in (None, "", "0.0.0.0")  # noqa: S104  # no address


def charge_by_supplies(texts: Sequence[str]) -> Charge | None:
    """Of all /sys/class/power_supply/*/uevent: of this machine's batteries, not a mouse's.

    Of several the sum of what is in them counts, where they say it, else the emptier one. A battery that
    neither charges nor discharges, as one that is kept from being full, is on mains.
    """
    supplies = [supply(text) for text in texts]
    batteries = [one for one in supplies if is_battery(one)]
    if not batteries:
        return Charge(None, True)
    statuses = {one.get("STATUS", "Unknown") for one in batteries}
    charged = any(one.get("ONLINE") == "1" for one in supplies if not is_battery(one))
    if statuses == {"Unknown"} and not charged:
        return None
    percent = _together(batteries)
    return None if percent is None else Charge(percent, charged or "Discharging" not in statuses)


def _together(batteries: Sequence[Mapping[str, str]]) -> float | None:
    """Percent of what would be in them if they were full."""
    for quantity in ("ENERGY", "CHARGE"):
        now = [_number(one.get(f"{quantity}_NOW")) for one in batteries]
        full = [_number(one.get(f"{quantity}_FULL")) for one in batteries]
        if None not in (*now, *full) and (most := sum(filter(None, full))) > 0:
            return min(100.0, 100 * sum(filter(None, now)) / most)
    told = [_number(one.get("CAPACITY")) for one in batteries]
    return min((value for value in told if value is not None), default=None)


def charge_by_termux(text: str) -> Charge | None:
    """Of `termux-battery-status`."""
    known = _json(text)
    percent, plugged = _number(known.get("percentage")), known.get("plugged")
    if percent is None or not 0 <= percent <= 100 or not isinstance(plugged, str):
        return None
    return Charge(percent, plugged != "UNPLUGGED")


def celsius_by_termux(text: str) -> float | None:
    """The battery's temperature, of `termux-battery-status`: phones throttle by it."""
    return _number(_json(text).get("temperature"))


def ticks(text: str) -> Ticks | None:
    """Of /proc/stat. Time that was idle, waited for the disk or was given to other guests is not used."""
    found = re.match(r"cpu\s+((?:\d+ ?){4,})", text)
    if not found:
        return None
    user, nice, system, idle, *more = map(int, found[1].split())
    wait, irq, soft, steal = (*more, 0, 0, 0, 0)[:4]  # guests' time is in the users' already
    used = user + nice + system + irq + soft
    return Ticks(used + idle + wait + steal, used)


def stalled(text: str) -> float:
    """Percent of the last ten seconds in which all stood still, of /proc/pressure/memory; 0 where unknown."""
    found = re.search(r"^full avg10=(\d+\.\d+)", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def default_interface(text: str) -> str | None:
    """Through which the default route goes, of /proc/net/route; of several, that of the least metric."""
    routes: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        cells: Sequence[str] = line.split()
        if len(cells) > 7 and cells[1] == "00000000" and cells[7] == "00000000" and cells[6].isdecimal():
            routes.append((int(cells[6]), cells[0]))
    return min(routes)[1] if routes else None


def _json(text: str) -> dict[str, object]:
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _number(given: object) -> float | None:
    """Some versions of Termux write numbers as strings."""
    try:
        value = float(given) if isinstance(given, (int, float, str)) else float("nan")
    except ValueError:
        return None
    return value if isfinite(value) else None
