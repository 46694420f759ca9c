"""A queue of timed actions in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class VirtualTimeQueue:
    """A queue of timed actions in virtual time; those of one moment are done in the order they were added.

    `now` is in virtual seconds; it moves only when the next action is done.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def at(self, when: float, action: Action) -> None:
        """Adds an action; one for a time before now is done now."""
        self._count += 1
        heapq.heappush(self._entries, (max(when, self.now), self._count, action))

    def step(self) -> bool:
        """Does the next action; returns whether there was one."""
        if not self._entries:
            return False
        self.now, _, action = heapq.heappop(self._entries)
        action()
        return True
