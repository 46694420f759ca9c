"""Logs what happens in the rounds of a task, one line per event."""

from __future__ import annotations

import logging
from dataclasses import asdict

from device_runtime.aggregator.machine.run_events import (
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

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                closed = len(event.closed)
                self._log("task started", run=event.run, resumed=event.resumed, closed=closed)
            case RoundOpened():
                self._log("round opened", **asdict(event))
            case RoundExtended():
                self._log("round extended", **asdict(event))
            case SumsAwaited():
                self._log("mask helpers awaited", **asdict(event))
            case RoundClosed():
                self._log("round closed", **asdict(event.record), note=event.note)
            case Finished():
                self._log("task finished", run=event.run, rounds=event.rounds)
            case Contributed():
                self._log("contribution", logging.DEBUG, **asdict(event.record))
            case ContributionRefused():
                self._log("contribution not counted", logging.DEBUG, **asdict(event))
            case DeviceSeen() | PlanReported():
                what = "device" if isinstance(event, DeviceSeen) else "plan"
                self._log(what, logging.DEBUG, **asdict(event))

    def close(self) -> None:
        """Nothing to restore."""

    def _log(self, event: str, level: int = logging.INFO, /, **fields: object) -> None:
        if log.isEnabledFor(level):
            log.log(level, event, extra={"fields": {"task": self._task, **fields}})
