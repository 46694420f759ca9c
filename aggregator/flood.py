"""How many messages a device may send: one that has gone wrong must not keep the others from being heard.

A bucket of BURST messages for each device, which fills again by RATE a second. What is over is dropped, and
gets no receipt: a device that means it sends again after a silence, and nothing that counts is lost.
"""

from __future__ import annotations

from collections import OrderedDict

from .crowd import MOST_DEVICES

BURST = 1000.0
RATE = 100.0
"""Messages a second: a device with all kinds of update sends a few a round."""
SAID_EVERY_S = 60.0
"""Seconds between two lines of the log about one device."""


class Flood:
    """`now` is in seconds of any one clock. Of more than `most` devices the one that was silent longest is
    forgotten, and begins anew.
    """

    def __init__(self, burst: float = BURST, rate: float = RATE, most: int = MOST_DEVICES) -> None:
        self._burst, self._rate, self._most = burst, rate, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._said: OrderedDict[str, float] = OrderedDict()

    def lets(self, device: str, now: float) -> bool:
        """Whether one more message of this device is taken."""
        left, then = self._left.pop(device, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - then) * self._rate)
        taken = left >= 1.0
        self._left[device] = (left - 1.0 if taken else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return taken

    def worth_saying(self, device: str, now: float) -> bool:
        """Whether it was not said lately that messages of this device are dropped."""
        if now - self._said.get(device, -SAID_EVERY_S) < SAID_EVERY_S:
            return False
        self._said.pop(device, None)
        self._said[device] = now
        if len(self._said) > self._most:
            self._said.popitem(last=False)
        return True
