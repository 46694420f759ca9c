"""Estimates the bandwidth of the device's link from the transfers of its rounds."""

from __future__ import annotations

from device_runtime.profiles import Bandwidth

LARGE_BYTES = 64 * 1024
"""Smaller transfers are ignored: they measure the round trip rather than the bandwidth."""


class LinkSpeed:
    """A moving average over large transfers, for each direction; assumed values hold until one is seen."""

    def __init__(self) -> None:
        self._up: float | None = None
        self._down: float | None = None

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Up and down, in bytes per second; None for a direction not seen yet."""
        return self._up, self._down

    @rates.setter
    def rates(self, rates: tuple[float | None, float | None]) -> None:
        self._up, self._down = rates

    def saw_up(self, size: int, seconds: float) -> None:
        """`size` bytes took `seconds` from sending to the receipt."""
        self._up = _averaged(self._up, size, seconds)

    def saw_down(self, size: int, seconds: float) -> None:
        """`size` bytes took `seconds` from asking to having them."""
        self._down = _averaged(self._down, size, seconds)

    def over(self, assumed: Bandwidth) -> Bandwidth:
        """The bandwidth seen, or assumed where none was, in bytes per second."""
        if self._up is None and self._down is None:
            return assumed
        return Bandwidth(self._up or assumed.up, self._down or assumed.down, "seen in earlier rounds")


def _averaged(average: float | None, size: int, seconds: float, rate: float = 0.5) -> float | None:
    if size < LARGE_BYTES or seconds <= 0:
        return average
    latest = size / seconds
    return latest if average is None else (1 - rate) * average + rate * latest
