"""Measures this machine: memory, cores, battery, temperature, and how fast a bundle runs on it."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from device_runtime.machine_readings import SensorDenied, battery, core_count, hottest_celsius, resident_bytes

from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed
from .machine import available_memory

log = logging.getLogger(__name__)

UNMEASURED_LINK = Bandwidth(up=1e6, down=4e6, source="assumed until seen")
UNKNOWN_POWER = Power(idle_w=2.0, load_w=8.0, source="assumed: no profile", uncertainty=1.0)


REPEATS = 5
"""Most runs of a trial whose median counts, after the first."""
THROTTLED_ABOVE = 1.1
"""Wall-clock over CPU seconds above which other processes, or a CPU limit, are taken to slow this one."""


@dataclass(frozen=True)
class Clocks:
    """Two clocks in seconds: `passed` is wall-clock time, `busy` is this process's computing time.

    They are the same clock where the computing time is unknown (a GPU, an emulated device).
    """

    passed: Callable[[], float]
    busy: Callable[[], float]


@dataclass(frozen=True)
class SpeedTrial:
    """A graph to time: `run()` puts `samples` samples through it, at `flops` operations each.

    The first run opens the graph. `close()` is called after the timing, also if it failed.
    """

    run: Callable[[], object]
    samples: int
    flops: float
    close: Callable[[], object] = lambda: None


def measure_speed(
    trials: Mapping[str, SpeedTrial],
    clocks: Clocks,
    budget_s: float = 2.5,
    left_out: type[Exception] | tuple[()] = (),
) -> Speed:
    """Times each graph, in the order of `trials`, within `budget_s` seconds in all.

    Each trial runs once to open the graph and then up to five times, within its share of the time left; the
    median counts. Where the process gets less than one core, the median of CPU seconds counts, multiplied by
    wall-clock over CPU seconds of the whole measurement, since a single run may fall between two pauses.
    A graph is not measured, and predicted from its FLOPs later, if no time is left for it or if it raises an
    error of type `left_out`. The first graph is always measured, or its error raised.
    """
    took: dict[str, _RunSeconds] = {}
    rate = 0.0
    began, busy = clocks.passed(), clocks.busy()
    end = began + budget_s
    for position, (name, trial) in enumerate(trials.items()):
        expected = trial.samples * trial.flops / rate if rate else 0.0
        now = clocks.passed()
        if took and now + 2 * expected > end:
            continue
        share = (end - now) / (len(trials) - position)
        try:
            took[name] = _time(trial, clocks, now + share)
        except left_out as error:
            if not took:
                raise
            log.debug("%s is not measured: %s", name, error)
            continue
        finally:
            trial.close()
        rate = rate or trial.samples * trial.flops / max(took[name].passed, 1e-9)
    if not took:
        raise ValueError("measure_speed was given nothing to time")
    return _speed(trials, took, (clocks.passed() - began) / max(clocks.busy() - busy, 1e-9))


@dataclass(frozen=True)
class _RunSeconds:
    """Median seconds of one run, and the further seconds of the first run; by both clocks."""

    passed: float
    busy: float
    opening_passed: float
    opening_busy: float


def _speed(trials: Mapping[str, SpeedTrial], took: Mapping[str, _RunSeconds], stretch: float) -> Speed:
    """The speed from the times of the trials. `stretch`: wall-clock over CPU seconds."""
    throttled = stretch > THROTTLED_ABOVE
    runs = {name: stretch * run.busy if throttled else run.passed for name, run in took.items()}
    opening = {
        name: stretch * run.opening_busy if throttled else run.opening_passed for name, run in took.items()
    }
    seconds = {name: run / trials[name].samples for name, run in runs.items()}
    first = next(iter(seconds))
    rate = trials[first].flops / max(seconds[first], 1e-9)
    return Speed(rate, seconds, source="measured on this bundle", opening=opening)


def _time(trial: SpeedTrial, clocks: Clocks, end: float) -> _RunSeconds:
    runs = [_once(trial, clocks)]
    while len(runs) <= REPEATS and (len(runs) == 1 or clocks.passed() + runs[-1][0] < end):
        runs.append(_once(trial, clocks))
    passed, busy = (median(times) for times in zip(*runs[1:], strict=True))
    return _RunSeconds(passed, busy, max(0.0, runs[0][0] - passed), max(0.0, runs[0][1] - busy))


def _once(trial: SpeedTrial, clocks: Clocks) -> tuple[float, float]:
    passed, busy = clocks.passed(), clocks.busy()
    trial.run()
    return clocks.passed() - passed, clocks.busy() - busy


def host_profile(speed: Speed, engine: str = "") -> DeviceProfile:
    """The profile of this machine now. Power is marked as assumed until a meter or a profile gives it."""
    memory = available_memory()
    resident = resident_bytes()
    return DeviceProfile(
        name=platform.node() or "this machine",
        cores=core_count(physical=True),
        memory=Memory(memory.total, memory.usable + resident, resident),
        speed=speed,
        bandwidth=UNMEASURED_LINK,
        power=UNKNOWN_POWER,
        battery=_battery(),
        temperature_c=_temperature(),
        engine=engine,
    )


def _battery() -> Battery | None:
    """None without one, and where it cannot be read: Android denies access to its sensors."""
    try:
        reading = battery()
    except SensorDenied:
        return None
    return None if reading is None else Battery(reading.percent, bool(reading.plugged))


def _temperature() -> float | None:
    """Degrees Celsius of the hottest sensor, on which throttling depends; None where none can be read."""
    try:
        return hottest_celsius()
    except SensorDenied:
        return None
