"""Observes tasks for HTTP: their devices, open and closed rounds, and whether each task is healthy."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Protocol

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.machine.ports import LoopClock
from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRefused,
    DeviceSeen,
    Finished,
    Observer,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RunEvent,
    Started,
    SumsAwaited,
)
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.manifest import Manifest

from .devices import DeviceFilter, WatchedDevices, page_of
from .journal import Journal
from .shapes import Check, DevicePage, Health, KindFigures, RoundPage, RoundStatus, TaskStatus, measured

PAGE_LIMIT = 1000
"""The most rounds or devices on one page."""


class TaskWatch:
    """The state of one task, written by the aggregator's loop and read by any thread.

    `clock` gives seconds since 1970. Everything returned is frozen or a copy, and the lock is never held
    longer than it takes to copy a list of references.
    """

    def __init__(self, task: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._devices = WatchedDevices()
        self._rounds: list[RoundStatus] = []
        self._counts: dict[str, int] = {}
        self._live = TaskStatus(task)
        self.manifest: Manifest | None = None
        """The manifest of the task's bundle; None until the service has started."""
        self.model_bytes = 0
        """What a device fetches before its first round; 0 until the service has started."""

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self._live = replace(self._live, version=self._live.version + 1)
            self._take(event, self._clock())

    def live(self) -> TaskStatus:
        """The state of the task now."""
        with self._lock:
            return replace(
                self._live,
                contributions=dict(sorted(self._counts.items())),
                sitting_out=len(self._devices.sitting_out),
                devices=len(self._devices.statuses),
                online=self._devices.online,
                closed_rounds=len(self._rounds),
            )

    def devices(self, selection: DeviceFilter) -> DevicePage:
        """The selected devices, those online first, then by name."""
        with self._lock:
            statuses = list(self._devices.statuses.values())
        return page_of(statuses, selection)

    def rounds(self, after: int = 0, limit: int = PAGE_LIMIT) -> RoundPage:
        """The closed rounds after round `after`, at most `limit`."""
        with self._lock:
            rounds = self._rounds[:]
        return RoundPage(len(rounds), [record for record in rounds if record.round > after][:limit])

    def _take(self, event: RunEvent, now: float) -> None:
        match event:
            case Started():
                self._start(event)
            case RoundOpened():
                self._open(event, now)
            case RoundExtended():
                self._extend(event, now)
            case SumsAwaited():
                moved = {} if event.deadlines else {"moved_at": now}
                self._change(phase="unmasking", closes_at=None, note=event.text, **moved)
            case DeviceSeen():
                self._devices.seen(event, now)
            case PlanReported():
                self._devices.planned(event, now)
            case Contributed(record=record):
                self._devices.contributed(record, now)
                self._counts[record.kind] = self._counts.get(record.kind, 0) + 1
                self._change(moved_at=now)
            case ContributionRefused():
                self._devices.refused(event, now)
                self._change(not_counted=self._live.not_counted + 1)
            case RoundClosed():
                self._close(event)
            case Finished():
                self._change(phase="finished", closes_at=None, moved_at=now)

    def _start(self, event: Started) -> None:
        self.manifest, self.model_bytes = event.manifest, event.model_bytes
        for closed in event.closed:
            self._close(closed)
            self._devices.closed(closed)
        phase = "finished" if len(event.closed) >= event.task.rounds else "waiting"
        needed = event.task.min_contributions
        self._change(run=event.run, rounds=event.task.rounds, phase=phase, needed=needed)

    def _open(self, event: RoundOpened, now: float) -> None:
        self._counts, self._devices.sitting_out = {}, set()
        if event.again and event.contributions:
            self._counts = {"before the restart": event.contributions}
        self._change(
            phase="collecting",
            round=event.round,
            offered=event.kinds,
            opened_at=now,
            closes_at=now + event.deadline_s,
            moved_at=now,
            deadline_s=event.deadline_s,
            extended=0,
            not_counted=0,
            note="resumed" if event.again else "",
        )

    def _extend(self, event: RoundExtended, now: float) -> None:
        self._devices.sitting_out = set()
        counted = f"{event.contributions} of {event.needed} contributions"
        self._change(
            closes_at=now + event.deadline_s,
            extended=self._live.extended + 1,
            note=f"extended: {counted}{event.outlook}",
        )

    def _close(self, closed: RoundClosed) -> None:
        record = closed.record
        self._rounds.append(_status_of(closed))
        self._change(
            round=record.round,
            accuracy=measured(record.eval_acc),
            loss=measured(record.eval_loss),
            bytes_up=self._live.bytes_up + record.bytes_up,
            bytes_down=self._live.bytes_down + record.bytes_down,
            energy_j=self._live.energy_j + record.energy_j,
            moved_at=measured(closed.at),
            note=closed.note,
            metric=record.metric,
            metrics=record.metrics,
            held_out_accuracy=measured(record.held_out_acc),
            held_out_samples=record.held_out_samples,
            held_out_head=record.held_out_head,
            held_out_other_accuracy=measured(record.held_out_other_acc),
        )

    def _change(self, **changes: object) -> None:
        self._live = replace(self._live, **changes)  # type: ignore[arg-type]


def _status_of(closed: RoundClosed) -> RoundStatus:
    """A closed round as HTTP shows it."""
    record = closed.record
    return RoundStatus(
        round=record.round,
        closed_at=measured(closed.at),
        accuracy=measured(record.eval_acc),
        loss=measured(record.eval_loss),
        base_accuracy=measured(record.base_eval_acc),
        train_loss=measured(record.train_loss),
        participants=record.participants,
        bytes_up=record.bytes_up,
        bytes_down=record.bytes_down,
        energy_j=record.energy_j,
        train_s=record.train_time_s,
        duration_s=record.duration_s,
        note=closed.note,
        kinds=by_kind(closed),
        metric=record.metric,
        metrics=record.metrics,
        held_out_accuracy=measured(record.held_out_acc),
        held_out_samples=record.held_out_samples,
        held_out_head=record.held_out_head,
        held_out_other_accuracy=measured(record.held_out_other_acc),
    )


def by_kind(closed: RoundClosed) -> dict[str, KindFigures]:
    """Sums over the contributions of each kind, in the order in which they were merged."""
    figures: dict[str, KindFigures] = {}
    for record in closed.contributions:
        sums = figures.get(record.kind, KindFigures())
        figures[record.kind] = KindFigures(
            sums.contributions + 1,
            sums.num_examples + record.num_examples,
            sums.bytes_up + record.bytes_up,
            sums.bytes_down + record.bytes_down,
            sums.energy_j + (0.0 if isnan(record.energy_j) else record.energy_j),
            sums.train_s + record.train_time_s,
        )
    return figures


class LinkCounters(Protocol):
    """The part of `broker.wire.link.Link` that is used here; read from any thread."""

    @property
    def bytes_up(self) -> int:
        """Bytes sent since the start, all of them."""

    @property
    def bytes_down(self) -> int:
        """Bytes received since the start, all of them."""

    @property
    def connected(self) -> bool:
        """Whether the link to the broker is up."""


class ServedTask:
    """A task that HTTP serves: its run folder, its link, its observers, and the clock of its loop.

    `clock` gives seconds since 1970; `database` as in Ports.
    """

    def __init__(
        self,
        task: Task,
        folder: Path,
        link: LinkCounters,
        loop_clock: LoopClock,
        clock: Callable[[], float] = time.time,
        database: str = "",
    ) -> None:
        self.task = task
        self.folder = folder
        self.database = database
        self.link = link
        self.loop_clock = loop_clock
        self.clock = clock
        self.watch = TaskWatch(task.name, clock)
        self.journal = Journal(folder, clock)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The observers that the task's service must have."""
        return self.watch, self.journal

    def writable(self) -> int | None:
        """The bytes that are free for the run folder; None where its file system does not say.

        Raises OSError if the folder cannot be written, according to the system: nothing is written to try it,
        as /healthz may be asked without a token.
        """
        about = os.statvfs(self.folder)
        if about.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return about.f_bavail * about.f_frsize if about.f_blocks else None

    def free_bytes(self) -> int | None:
        """As `writable`, and 0 where the folder cannot be written."""
        try:
            return self.writable()
        except OSError:
            return 0


# Health: the loop runs, the broker is connected, the disk is writable, the open round gets contributions.

STALLED_DEADLINES = 3
"""A round is unhealthy after this many of its deadlines without a contribution."""


def health_of(hosted: list[ServedTask], settings: HttpSection) -> Health:
    """Check the health of all tasks. Only reads."""
    checks = [check for service in hosted for check in _checks(service, settings)]
    return Health(all(check.ok for check in checks), checks)


def without_details(health: Health) -> Health:
    """The health as it is shown without a token."""
    return Health(health.ok, [Check(check.name, check.task, check.ok) for check in health.checks])


def _checks(service: ServedTask, settings: HttpSection) -> Iterator[Check]:
    task, live = service.task.name, service.watch.live()
    finished = live.phase == "finished"
    silence_s = service.loop_clock.silence_s
    yield Check(
        "loop", task, finished or silence_s < settings.stalled_s, f"last active {silence_s:.1f} s ago"
    )
    up = service.link.connected
    down = "not needed any more" if finished else "not connected, trying again"
    yield Check("broker", task, up or finished, "connected" if up else down)
    yield _disk(service, settings.min_free_mb)
    yield _round(live, service.clock(), settings.stalled_s)


def _disk(service: ServedTask, min_free_mb: int) -> Check:
    try:
        free = service.writable()
    except OSError as error:
        return Check(
            "disk", service.task.name, False, f"cannot write {service.folder}: {error.strerror or error}"
        )
    if free is None:
        return Check("disk", service.task.name, True, f"{service.folder} does not say how much is free")
    free_mb = free // 10**6
    text = f"{free_mb} MB free in {service.folder}, expected at least {min_free_mb}"
    return Check("disk", service.task.name, free_mb >= min_free_mb, text)


def _round(live: TaskStatus, now: float, stalled_s: float) -> Check:
    """Whether the open round has opened, or got a contribution or a sum, not too long ago."""
    where = f"round {live.round} of {live.rounds}"
    if live.phase not in ("collecting", "unmasking") or live.moved_at is None:
        return Check("round", live.task, True, f"{where}, {live.phase}")
    still_s, limit_s = now - live.moved_at, max(stalled_s, STALLED_DEADLINES * (live.deadline_s or 0.0))
    text = f"{where}: nothing has come for {still_s:.0f} s, extended {live.extended} times"
    return Check("round", live.task, still_s < limit_s, text if live.extended or still_s > limit_s else where)
