"""What the link reports, each with the moment at which it came."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from broker.link import Event


class Inbox(queue.SimpleQueue[Event]):
    """Events in order. An offer that came while the device trained has been running since it came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._moments: deque[float] = deque()

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        self._moments.append(self._clock())
        super().put(item, block, timeout)

    def next(self, timeout: float) -> tuple[Event, float] | None:
        """The next event and when it came, on the device's clock; None after `timeout` seconds without."""
        try:
            return self.get(timeout=timeout), self._moments.popleft()
        except queue.Empty:
            return None
