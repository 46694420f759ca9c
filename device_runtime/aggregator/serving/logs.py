"""Logs what happens in the rounds of a task, one line per event."""

from __future__ import annotations

import logging
from dataclasses import asdict

from device_runtime.aggregator.views.listener import (
    Contributed,
    ContributionRefused,
    DeviceSeen,
    Finished,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RunEvent,
    Started,
    SumsAwaited,
)
from device_runtime.console import log_as_service

from .config import LogSection

log = logging.getLogger(__name__)


def configure(settings: LogSection) -> None:
    """Sets the format of the log and the level of our packages; other packages log warnings."""
    log_as_service(settings.format, settings.level)


class EventLog:
    """An observer that logs rounds at level info and what single devices do at level debug."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __call__(self, happening: RunEvent) -> None:
        match happening:
            case Started():
                closed = len(happening.closed)
                self._log("task started", run=happening.run, resumed=happening.resumed, closed=closed)
            case RoundOpened():
                self._log("round opened", **asdict(happening))
            case RoundExtended():
                self._log("round extended", **asdict(happening))
            case SumsAwaited():
                self._log("mask helpers awaited", **asdict(happening))
            case RoundClosed():
                self._log("round closed", **asdict(happening.record), note=happening.note)
            case Finished():
                self._log("task finished", run=happening.run, rounds=happening.rounds)
            case Contributed():
                self._log("contribution", logging.DEBUG, **asdict(happening.record))
            case ContributionRefused():
                self._log("contribution not counted", logging.DEBUG, **asdict(happening))
            case DeviceSeen() | PlanReported():
                event = "device" if isinstance(happening, DeviceSeen) else "plan"
                self._log(event, logging.DEBUG, **asdict(happening))

    def close(self) -> None:
        """Nothing to restore."""

    def _log(self, event: str, level: int = logging.INFO, /, **fields: object) -> None:
        if log.isEnabledFor(level):
            log.log(level, event, extra={"fields": {"task": self._task, **fields}})
