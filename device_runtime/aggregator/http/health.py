"""Whether a task is well: the loop alive, the broker there, the disk writable, the last round moving."""

from __future__ import annotations

from collections.abc import Iterator

from device_runtime.aggregator.serving.config import HttpSection

from .hosted import Hosted
from .shapes import Check, Health, Live

DEADLINES = 3
"""Deadlines of a round in which nothing at all may happen."""


def examine(hosted: list[Hosted], settings: HttpSection) -> Health:
    """All checks of all tasks. Reads only."""
    checks = [check for one in hosted for check in _checks(one, settings)]
    return Health(all(check.ok for check in checks), checks)


def without_details(health: Health) -> Health:
    """As those see it who have no token."""
    return Health(health.ok, [Check(check.name, check.task, check.ok) for check in health.checks])


def _checks(one: Hosted, settings: HttpSection) -> Iterator[Check]:
    task, live = one.task.name, one.watch.live()
    finished = live.phase == "finished"
    silence_s = one.pulse.silence_s
    yield Check("loop", task, finished or silence_s < settings.stalled_s, f"looked {silence_s:.1f} s ago")
    up = one.link.connected
    yield Check("broker", task, up or finished, "connected" if up else "not connected, trying again")
    yield _disk(one, settings.min_free_mb)
    yield _round(live, one.clock(), settings.stalled_s)


def _disk(one: Hosted, min_free_mb: int) -> Check:
    try:
        free_mb = one.writable() // 10**6
    except OSError as error:
        return Check("disk", one.task.name, False, f"cannot write {one.folder}: {error.strerror or error}")
    text = f"{free_mb} MB free in {one.folder}, expected at least {min_free_mb}"
    return Check("disk", one.task.name, free_mb >= min_free_mb, text)


def _round(live: Live, now: float, stalled_s: float) -> Check:
    """Moving: it opened, or a contribution came, not too long ago."""
    where = f"round {live.round} of {live.rounds}"
    if live.phase != "collecting" or live.moved_at is None:
        return Check("round", live.task, True, f"{where}, {live.phase}")
    still_s, limit_s = now - live.moved_at, max(stalled_s, DEADLINES * (live.deadline_s or 0.0))
    text = f"{where}: nothing has come for {still_s:.0f} s, extended {live.extended} times"
    return Check("round", live.task, still_s < limit_s, text if live.extended or still_s > limit_s else where)
