"""Holds devices' last wills until it is clear that the device is gone, and not the broker.

A broker that stops publishes the last wills of all its clients. A will that comes while the broker is
connected therefore counts only after a grace period, and only if no message of the device came in it. If the
broker is lost within the grace period, or if the will is one that it retained, devices get the time that they
need to connect again. A device that announces that it leaves is gone at once, and has no will.

There is no clock here: times are in seconds, and given by the caller.
"""

from __future__ import annotations

from math import inf

from device_runtime.broker.wire.messages import State

GRACE_S = 2.0
"""Seconds in which the loss of a broker is noticed."""
RETURN_S = 30.0
"""Seconds that devices get to connect to a broker that is back: their longest wait between two attempts."""


class HeldWills:
    """The wills that are held back, by device."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._wills: dict[str, tuple[State, float]] = {}
        self._back_at = -inf

    def holds(self, device: str, will: State, retain: bool, now: float) -> bool:
        """Whether the will is held back. `retain`: the broker retained it from before we connected."""
        until = self._back_at if retain else now + self._grace_s
        if until > now:
            self._wills[device] = will, until
        return until > now

    def heard(self, device: str) -> None:
        """Drop the will of a device that sent a message, or that announced that it leaves."""
        self._wills.pop(device, None)

    def broker_lost(self) -> None:
        """Hold the wills of the grace period until the broker is back: the broker itself caused them."""
        self._wills = {device: (will, inf) for device, (will, _) in self._wills.items()}

    def broker_back(self, now: float) -> None:
        """Give devices RETURN_S to connect again."""
        self._back_at = now + RETURN_S
        wills = self._wills.items()
        self._wills = {device: (will, min(until, self._back_at)) for device, (will, until) in wills}

    def due(self, now: float) -> list[tuple[str, State]]:
        """Remove and return the wills that count now, with their devices."""
        wills = [(device, will) for device, (will, until) in self._wills.items() if now >= until]
        for device, _ in wills:
            del self._wills[device]
        return wills
