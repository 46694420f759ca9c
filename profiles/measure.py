"""Measuring this machine: memory, cores, battery, temperature, and how fast a bundle runs on it."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import psutil

from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed
from .machine_memory import room

log = logging.getLogger(__name__)

UNMEASURED_LINK = Bandwidth(up=1e6, down=4e6, source="assumed until seen")
UNKNOWN_POWER = Power(idle_w=2.0, load_w=8.0, source="assumed: no profile", uncertainty=1.0)


@dataclass(frozen=True)
class Trial:
    """A graph to time: `run()` puts `samples` samples through it, at `flops` operations each.

    `close()` is called when it has been timed, whatever came of it.
    """

    run: Callable[[], object]
    samples: int
    flops: float
    close: Callable[[], object] = lambda: None


def measure_speed(
    trials: Mapping[str, Trial],
    clock: Callable[[], float],
    budget_s: float = 2.5,
    left_out: type[Exception] | tuple[()] = (),
) -> Speed:
    """Time each graph, the first in order first, within `budget_s` seconds in all.

    Every trial is run once to warm up and then up to five times, in its share of the time that is left; the
    median counts. A graph for which no time is left is not measured and will be predicted from its FLOPs.
    Nor is one that raises an error of type `left_out`. The first is always measured, or its error raised.
    """
    seconds: dict[str, float] = {}
    rate = 0.0
    end = clock() + budget_s
    for position, (name, trial) in enumerate(trials.items()):
        expected = trial.samples * trial.flops / rate if rate else 0.0
        now = clock()
        if seconds and now + 2 * expected > end:
            continue
        share = (end - now) / (len(trials) - position)
        try:
            per_sample = _time(trial, clock, now + share) / trial.samples
        except left_out as error:
            if not seconds:
                raise
            log.debug("%s is not measured: %s", name, error)
            continue
        finally:
            trial.close()
        seconds[name] = per_sample
        rate = rate or trial.flops / max(per_sample, 1e-9)
    if not seconds:
        raise ValueError("measure_speed was given nothing to time")
    return Speed(rate, seconds, source="measured on this bundle")


def _time(trial: Trial, clock: Callable[[], float], end: float, repeats: int = 5) -> float:
    trial.run()
    times: list[float] = []
    while len(times) < repeats and (not times or clock() + times[-1] < end):
        start = clock()
        trial.run()
        times.append(clock() - start)
    return median(times)


def host_profile(speed: Speed, engine: str = "") -> DeviceProfile:
    """This machine as it is now. Power is assumed, and said to be, until there is a meter or a profile."""
    memory = room()
    resident = psutil.Process().memory_info().rss
    return DeviceProfile(
        name=platform.node() or "this machine",
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        memory=Memory(memory.total, memory.usable + resident, resident),
        speed=speed,
        bandwidth=UNMEASURED_LINK,
        power=UNKNOWN_POWER,
        battery=_battery(),
        temperature_c=_temperature(),
        engine=engine,
    )


def _battery() -> Battery | None:
    found = getattr(psutil, "sensors_battery", lambda: None)()
    return None if found is None else Battery(float(found.percent), bool(found.power_plugged))


def _temperature() -> float | None:
    """The hottest sensor: what throttling looks at."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    groups = psutil.sensors_temperatures().values()
    readings = [float(entry.current) for group in groups for entry in group if entry.current]
    return max(readings, default=None)
