"""When a run is given up: nobody can be asked any more, or whoever is asked is asked in vain."""

from __future__ import annotations

from device_runtime.aggregator.rounds.events import Extend
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.errors import SimulationError

MOST_EXTENSIONS = 1000
"""Deadlines in a row that may pass with devices asked, and no update; then the fleet cannot do the task."""
MOST_ASKS = 100
"""Times that each device of the fleet, on average, may be asked in vain."""
ALONE_S = 2 * 86_400.0
"""Seconds in which nobody can be asked, after which nobody will be: devices come and go by the day."""


class Patience:
    """Told of a run as it goes; `extended` raises SimulationError when it is at an end."""

    def __init__(self, task: Task, devices: int) -> None:
        self._task, self._devices = task, devices
        self._extensions = self._asks = self._asks_then = 0
        self._asked_s = 0.0

    def asked(self, now: float, count: int) -> None:
        """So many devices were asked."""
        if count:
            self._asked_s, self._asks = now, self._asks + count

    def kept(self) -> None:
        """An update counts."""
        self._extensions = self._asks = self._asks_then = 0

    def extended(self, extended: Extend, now: float, at_work: int) -> None:
        """A deadline has passed with too few updates, and `at_work` devices are at work."""
        task, what = self._task, f"round {extended.round} has {extended.contributions} of "
        what += f"{self._task.min_contributions} updates"
        if self._asks > self._asks_then:
            self._extensions, self._asks_then = self._extensions + 1, self._asks
        if self._extensions >= MOST_EXTENSIONS or self._asks >= MOST_ASKS * self._devices:
            raise SimulationError(
                f"{what}: devices were asked {self._asks} times in vain since the last one, "
                f"in {self._extensions} times {task.round_deadline_s:g} s; the fleet cannot do this task"
            )
        if not at_work and now - self._asked_s > max(ALONE_S, 2 * task.round_deadline_s):
            raise SimulationError(
                f"{what}: no device could be asked for {(now - self._asked_s) / 3600:.0f} hours; the fleet "
                "is away, at work, or has empty batteries"
            )
