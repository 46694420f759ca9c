"""Energy where no meter is: from the power figures of a profile and the time that the process computed."""

from __future__ import annotations

from device_runtime.profiles import Power

from .meter import MODELLED, Energy


def modelled(power: Power, seconds: float, busy_s: float) -> Energy:
    """Load power for the seconds in which the processor worked for us, idle power for the others.

    `load_w` stands for a device that trains, as in the cost model, however many of its cores that keeps busy.
    """
    busy_s = min(max(0.0, busy_s), seconds)
    above = busy_s * max(0.0, power.load_w - power.idle_w)
    return Energy(seconds * power.idle_w + above, MODELLED, power.uncertainty, above)
