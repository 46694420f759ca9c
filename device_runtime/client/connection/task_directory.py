"""Other tasks that are not over: where a device may go when its own is."""

from __future__ import annotations

TASKS = 64
"""Of which so many are remembered, those heard of last: any of them will do."""


class Elsewhere:
    """Names of tasks."""

    def __init__(self) -> None:
        self._tasks: dict[str, None] = {}

    def add(self, task: str) -> None:
        """One that is open."""
        self._tasks.pop(task, None)
        self._tasks[task] = None
        if len(self._tasks) > TASKS:
            del self._tasks[next(iter(self._tasks))]

    def discard(self, task: str) -> None:
        """One that is over."""
        self._tasks.pop(task, None)

    def take(self) -> str:
        """The first by its name, which is elsewhere no longer; empty where there is none."""
        first = min(self._tasks, default="")
        self.discard(first)
        return first
