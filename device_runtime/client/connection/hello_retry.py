"""Repeats a hello until an offer answers it.

If a hello were lost, the device would wait for an offer that nobody sends.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from device_runtime.client.delivery.sending import MAX_RESEND_S, RESEND_S


class HelloRetry:
    """Tracks hellos and answers. `unacknowledged` counts hellos that the broker has not acknowledged."""

    def __init__(self, unacknowledged: Callable[[], int]) -> None:
        self._unacknowledged = unacknowledged
        self._since_s = inf
        self._wait_s = RESEND_S

    @property
    def waiting(self) -> bool:
        """Whether an answer is awaited."""
        return self._since_s < inf

    def sent(self, now: float) -> None:
        """A hello is sent."""
        self._since_s = now

    def answered(self) -> None:
        """An offer has come."""
        self._since_s, self._wait_s = inf, RESEND_S

    def due(self, now: float) -> bool:
        """Whether to repeat the hello: after silence on the link, with waits that double up to a minute."""
        if not self.waiting:
            return False
        if self._unacknowledged():
            self._since_s = now
        if now - self._since_s < self._wait_s:
            return False
        self._wait_s = min(2 * self._wait_s, MAX_RESEND_S)
        return True
