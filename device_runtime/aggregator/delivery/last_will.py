"""Last wills that may not mean it: a broker that ends speaks those of all its clients. No clock; in seconds.

A will that is heard while the broker is there counts after a moment, if nothing was heard of the device by
then; if the broker is lost in that moment, or the will is one that it kept, devices have as long to come back
as it takes them to connect again. A device that says itself that it leaves is gone at once, and has no will.
"""

from __future__ import annotations

from math import inf

from device_runtime.broker.wire.messages import State

GRACE_S = 2.0
"""Seconds in which a broker that ends is noticed."""
RETURN_S = 30.0
"""Seconds after a lost broker is back in which devices are: their longest wait between two attempts."""


class LastWills:
    """Those that are held, by device."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._held: dict[str, tuple[State, float]] = {}
        self._back_s = -inf

    def holds(self, device: str, will: State, kept: bool, now: float) -> bool:
        """Whether it is held for now. `kept`: by the broker, from before we were connected."""
        until = self._back_s if kept else now + self._grace_s
        if until > now:
            self._held[device] = will, until
        return until > now

    def heard(self, device: str) -> None:
        """It is here, or has left: its will is of no account."""
        self._held.pop(device, None)

    def broker_lost(self) -> None:
        """Those that were just heard are its own."""
        self._held = {device: (will, inf) for device, (will, _) in self._held.items()}

    def broker_back(self, now: float) -> None:
        """From now on devices come back."""
        self._back_s = now + RETURN_S
        held = self._held.items()
        self._held = {device: (will, min(until, self._back_s)) for device, (will, until) in held}

    def due(self, now: float) -> list[tuple[str, State]]:
        """Those that count now; they are held no longer."""
        found = [(device, will) for device, (will, until) in self._held.items() if now >= until]
        for device, _ in found:
            del self._held[device]
        return found
