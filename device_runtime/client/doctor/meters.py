"""What tells this device's energy, and what could."""

from __future__ import annotations

from collections.abc import Iterator

from device_runtime.client import energy as meters
from device_runtime.profiles.measure import UNKNOWN_POWER

from .installation import Finding


def energy(found: meters.Found | None = None) -> Iterator[Finding]:
    """The meter that is used, and those that are here and cannot be read. Looks for them where not given."""
    found = found or meters.find()
    said = f"{found.source}: {found.said(UNKNOWN_POWER)}"
    if found.meter is None:
        advice = "give `join` one by --meter: a smart plug, a sensor, a command"
        yield Finding("energy meter", "missing", said, advice)
    else:
        yield Finding("energy meter", "ok", said)
    for why in found.passed:
        name, _, reason = why.partition(": ")
        yield Finding(f"energy meter {name}", "missing", reason)
