"""Abandons simulated runs that make no progress."""

from __future__ import annotations

from device_runtime.aggregator.machine.events import Extend
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.errors import SimulationError

MOST_EXTENSIONS = 1000
"""Deadlines in a row that may pass without an update of the asked devices; then the run is abandoned."""
MOST_ASKS = 100
"""Times that each device, on average, may be asked without an update; then the run is abandoned."""
ALONE_S = 2 * 86_400.0
"""Seconds without a device that can be asked, after which the run is abandoned.

Two days, because devices come and go by the day.
"""


class ProgressGuard:
    """Abandons a run in which no device can be asked, or asked devices send no updates.

    `extended` then raises SimulationError.
    """

    def __init__(self, task: Task, devices: int) -> None:
        self._task, self._devices = task, devices
        self._extensions = self._asks = self._asks_then = 0
        self._asked_s = 0.0

    def asked(self, now: float, count: int) -> None:
        """Notes that `count` devices were asked."""
        if count:
            self._asked_s, self._asks = now, self._asks + count

    def kept(self) -> None:
        """Notes an update that counts."""
        self._extensions = self._asks = self._asks_then = 0

    def extended(self, extended: Extend, now: float, at_work: int) -> None:
        """Notes a deadline that passed with too few updates while `at_work` devices are at work."""
        task, what = self._task, f"round {extended.round} has {extended.contributions} of "
        what += f"{self._task.min_contributions} updates"
        if self._asks > self._asks_then:
            self._extensions, self._asks_then = self._extensions + 1, self._asks
        if self._extensions >= MOST_EXTENSIONS or self._asks >= MOST_ASKS * self._devices:
            raise SimulationError(
                f"{what}: devices were asked {self._asks} times in vain since the last one, in "
                f"{self._extensions} deadlines of {task.round_deadline_s:g} s; the fleet cannot do this task"
            )
        if not at_work and now - self._asked_s > max(ALONE_S, 2 * task.round_deadline_s):
            raise SimulationError(
                f"{what}: no device could be asked for {(now - self._asked_s) / 3600:.0f} hours; all are "
                "unavailable, at work, or out of battery"
            )
