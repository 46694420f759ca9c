"""Measures this machine: memory, cores, battery, temperature, and how fast a bundle runs on it.

A container or a systemd unit (`MemoryMax`) may have limits below the machine's. The kernel shows them
only in the files of the control groups, version 1 or 2, and kills a process that exceeds the memory
limit, however much memory the machine has.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from device_runtime.machine_readings import (
    SensorDenied,
    allowed_memory,
    battery,
    core_count,
    hottest_celsius,
    machine_memory,
    resident_bytes,
)

from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 2**60
"""Version 1 states "no limit" as a number of bytes that no machine has."""
MIB = 2**20


@dataclass(frozen=True)
class MachineMemory:
    """Bytes in all, and bytes that are free now, in addition to those that this process uses."""

    total: int
    free: int

    @property
    def reserve(self) -> int:
        """Bytes left to other processes: a fiftieth of all, between 8 and 64 MiB."""
        return min(max(self.total // 50, 8 * MIB), 64 * MIB)

    @property
    def usable(self) -> int:
        """Bytes that this process may take now: those that are free, without the reserve."""
        return max(0, self.free - self.reserve)


@dataclass(frozen=True)
class _GroupFiles:
    """File names in a control group's folder, and the key of `memory.stat` for reclaimable bytes."""

    limits: tuple[str, ...]
    used: str
    reclaimable: str


_V1 = _GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _GroupFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")


def available_memory(root: Path = ROOT, own: Path = OWN) -> MachineMemory:
    """The memory of the machine, or of the tightest limit or control group around this process."""
    rooms = [MachineMemory(*machine_memory()), *_groups(root, own)]
    if (allowed := allowed_memory()) is not None:
        rooms.append(MachineMemory(*allowed))
    return MachineMemory(min(room.total for room in rooms), min(room.free for room in rooms))


def _groups(root: Path, own: Path) -> Iterator[MachineMemory]:
    """The memory of each control group around this process that has a limit."""
    paths = own_groups(read_system_file(own))
    for mount, controller, files in ((root / "memory", "memory", _V1), (root, "", _V2)):
        for folder in _with_parents(paths.get(controller, "/")):
            if memory := _group_memory(mount / folder, files):
                yield memory


def own_groups(text: str) -> dict[str, str]:
    """Parses /proc/self/cgroup into the group's path by controller; "" is version 2's.

    In a container the paths may not exist; then only the root does, which is the container's own group.
    """
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _group_memory(folder: Path, files: _GroupFiles) -> MachineMemory | None:
    numbers = [_number(read_system_file(folder / name)) for name in files.limits]
    limits = [limit for limit in numbers if limit is not None and limit < NO_LIMIT]
    used = _number(read_system_file(folder / files.used))
    if not limits or used is None:
        return None
    stat = re.search(rf"^{files.reclaimable} (\d+)$", read_system_file(folder / "memory.stat"), re.MULTILINE)
    in_use = used - (int(stat[1]) if stat else 0)
    return MachineMemory(min(limits), max(0, min(limits) - in_use))


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def read_system_file(path: Path) -> str:
    """The text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def usable_cores() -> int:
    """Number of cores that this process may use, by its affinity and CPU quota; at least 1.

    A quota of one and a half cores counts as two.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # denied, or another system than Linux
        allowed = os.cpu_count() or 1
    quota = cpu_quota(ROOT, own_groups(read_system_file(OWN)))
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def cpu_quota(root: Path, groups: dict[str, str]) -> float | None:
    """The smallest CPU quota, in cores, of the control groups that hold this process; None without one.

    groups: path of each controller's group below `root`; "" is version 2's. A container sees its own group
    as the root, so the folders above a path are read too, in case the path does not exist.
    """
    quotas = [_quota_v2(root / folder) for folder in _with_parents(groups.get("", "/"))]
    quotas += [_quota_v1(root / "cpu" / folder) for folder in _with_parents(groups.get("cpu", "/"))]
    return min((quota for quota in quotas if quota is not None), default=None)


def _with_parents(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float | None:
    words = read_system_file(folder / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = (read_system_file(folder / f"cpu.cfs_{name}_us").split() for name in ("quota", "period"))
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


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
    from statistics import median  # 2 MB, not needed for the memory of this machine

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
