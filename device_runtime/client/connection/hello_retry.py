"""When to say hello again: one that is lost would leave the device waiting for an offer that nobody sends."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from device_runtime.client.delivery.sending import MAX_RESEND_S, RESEND_S


class Greeting:
    """Hellos and their answers. `under_way` says whether one has not reached the broker for sure yet."""

    def __init__(self, under_way: Callable[[], int]) -> None:
        self._under_way = under_way
        self._since_s = inf
        self._wait_s = RESEND_S

    @property
    def waiting(self) -> bool:
        """Whether an answer is awaited."""
        return self._since_s < inf

    def said(self, now: float) -> None:
        """A hello goes out."""
        self._since_s = now

    def answered(self) -> None:
        """An offer has come."""
        self._since_s, self._wait_s = inf, RESEND_S

    def due(self, now: float) -> bool:
        """Whether it is to be said again: after waits that double up to a minute, of silence on the link."""
        if not self.waiting:
            return False
        if self._under_way():
            self._since_s = now
        if now - self._since_s < self._wait_s:
            return False
        self._wait_s = min(2 * self._wait_s, MAX_RESEND_S)
        return True
