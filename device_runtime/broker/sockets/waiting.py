"""Waits for a socket, with an end."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

SLICE_S = 0.1
"""Seconds after which a wait looks whether it is to end."""


class Abandoned(OSError):
    """The wait ended because the link is being closed."""


@dataclass(frozen=True)
class StepLimit:
    """When a step of connecting ends: at `end_at` (monotonic seconds), or as soon as `closing` says so."""

    end_at: float
    closing: Callable[[], bool] = lambda: False

    @classmethod
    def of(cls, seconds: float, closing: Callable[[], bool] = lambda: False) -> StepLimit:
        """The limit of a step that begins now."""
        return cls(time.monotonic() + seconds, closing)

    def slice_s(self) -> float:
        """Seconds to wait before looking again. Raises TimeoutError at the end, Abandoned when closing."""
        if self.closing():
            raise Abandoned("the link is being closed")
        left_s = self.end_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(left_s, SLICE_S)


def wait_until_ready(waiting: socket.socket, events: int, limit: StepLimit) -> None:
    """Wait for `events` (of select.poll). Raises TimeoutError, Abandoned."""
    poll = select.poll()
    poll.register(waiting, events)
    while not poll.poll(1 + int(1000 * limit.slice_s())):
        pass
