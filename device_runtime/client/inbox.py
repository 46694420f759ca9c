"""What the link reports, each with the moment at which it came."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from device_runtime.broker.wire.link import Event, Received

_WAKE = Received("", b"")


class Inbox(queue.SimpleQueue[Event]):
    """Events in order. An offer that came while the device trained has been running since it came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._moments: deque[float] = deque()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        self._moments.append(self._clock())
        super().put(item, block, timeout)

    def wake(self) -> None:
        """End a wait that is going on, or the next one. May be called in a signal handler.

        A signal that comes as a wait times out would else make it a wait for ever (CPython 3.11, _queue.c:
        what is left of the timeout is below 0 then, which means none).
        """
        self.put(_WAKE)

    def next(self, timeout: float) -> tuple[Event, float] | None:
        """The next event and when it came, on the device's clock; None after `timeout` seconds without."""
        try:
            event, came = self.get(timeout=timeout), self._moments.popleft()
        except queue.Empty:
            return None
        return None if event is _WAKE else (event, came)
