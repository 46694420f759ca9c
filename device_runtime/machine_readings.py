"""Reads memory, processors and sensors of this machine; no function raises where the system denies it.

Android and hardened containers hide parts of /proc and /sys, and psutil then raises errors of many types.
What cannot be read is logged once, with the value that is taken in its place: the one that is safe to work
with. Only this module calls psutil.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
MIB = 2**20
ASSUMED_TOTAL, ASSUMED_FREE = 256 * MIB, 128 * MIB
"""Bytes of memory taken for a machine that says nothing: what the smallest boards have."""


class SensorDenied(Exception):
    """The system does not let a sensor be read; the text says why."""


class BatteryReading(NamedTuple):
    """Percent of charge, and whether it is charged; None if the battery does not say."""

    percent: float
    plugged: bool | None


def resident_bytes() -> int:
    """Bytes of memory that this process holds; where that is hidden, the most that it has held."""
    return _read("the memory of this process", _resident, _peak)


def machine_memory() -> tuple[int, int]:
    """Bytes of memory in all, and those that are free now."""
    return _read("the memory of this machine", _memory, _memory_of_kernel)


def allowed_memory() -> tuple[int, int] | None:
    """The least limit on this process's memory (ulimit -v, -d) and what it leaves; bytes. None: no limit."""
    allowances = []
    limits = (
        (resource.getrlimit(resource.RLIMIT_AS)[0], "VmSize"),
        (resource.getrlimit(resource.RLIMIT_DATA)[1], "VmData"),  # the soft one is set by `models/data`
    )
    for limit, word in limits:
        used = None if limit == resource.RLIM_INFINITY else _status_bytes(word)
        if used is not None:
            allowances.append((limit, max(0, limit - used)))
    return min(allowances, key=lambda allowance: allowance[1], default=None)


def core_count(physical: bool = False) -> int:
    """Processor cores of this machine; at least 1."""

    def count() -> int:
        import psutil  # 2 MB: not needed by a device that waits

        return int((psutil.cpu_count(logical=False) if physical else None) or psutil.cpu_count() or 1)

    return _read("the number of cores", count, lambda: os.cpu_count() or 1)


def load_per_core() -> float | None:
    """Processes that compute or wait for a core, per core, over the last minute; None where it is hidden."""
    try:
        return os.getloadavg()[0] / core_count()
    except (OSError, AttributeError):
        return None


def own_cpu_s() -> float:
    """Processor time of this process and of all that it started, in seconds.

    Where the processes that still run are hidden, it is of this one and of those that have ended.
    """

    def running() -> float:
        import psutil

        seconds = 0.0
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has ended meanwhile
                continue
            seconds += times.user + times.system
        return seconds

    ended = os.times()
    more = _read("the processes that this one started", running, lambda: 0.0)
    return time.process_time() + ended.children_user + ended.children_system + more


def battery() -> BatteryReading | None:
    """The battery; None without one. Raises SensorDenied."""

    def read() -> BatteryReading | None:
        import psutil

        reading = getattr(psutil, "sensors_battery", lambda: None)()
        if reading is None:
            return None
        plugged = None if reading.power_plugged is None else bool(reading.power_plugged)
        return BatteryReading(float(reading.percent), plugged)

    try:
        return read()
    except FileNotFoundError:  # raised by psutil without the folder
        return None
    except Exception as error:
        raise SensorDenied(_why(error)) from None


def hottest_celsius() -> float | None:
    """Degrees Celsius of the hottest sensor; None if there is none. Raises SensorDenied."""
    try:
        import psutil

        groups: dict[str, list[Any]] = getattr(psutil, "sensors_temperatures", dict)()
    except Exception as error:
        raise SensorDenied(_why(error)) from None
    return max(
        (float(sensor.current) for group in groups.values() for sensor in group if sensor.current),
        default=None,
    )


def fit_thread_pools() -> None:
    """Has numpy's library start no threads where none can be started: it would send SIGINT at its import."""
    lock = threading.Lock()
    with lock:
        try:
            for _ in range((os.cpu_count() or 1) - 1):
                threading.Thread(target=_wait_for, args=(lock,), daemon=True).start()
        except RuntimeError:
            for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
                os.environ[name] = "1"


def _wait_for(lock: threading.Lock) -> None:
    with lock:
        pass


def use_idle_disk() -> None:
    """Use the disk only when nobody else does. Raises OSError where that is not possible."""
    try:
        import psutil

        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    except Exception as error:
        raise OSError(_why(error)) from None


def process_name(number: int) -> str | None:
    """The name of a process; None if there is none. Raises PermissionError where it is hidden."""
    import psutil

    try:
        return str(psutil.Process(number).name())
    except (psutil.NoSuchProcess, ValueError):
        return None
    except Exception as error:
        raise PermissionError(_why(error)) from None


def _read(what: str, read: Callable[[], T], instead: Callable[[], T]) -> T:
    """What `read` returns, or `instead`; psutil raises its own errors, OSError, ValueError and others."""
    try:
        return read()
    except Exception as error:
        _say_once(what, _why(error))
        return instead()


@cache
def _say_once(what: str, why: str) -> None:
    log.warning("%s cannot be read here (%s): a cautious value is taken instead", what, why)


def _why(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).lower()


def _resident() -> int:
    return int(_process(os.getpid()).memory_info().rss)


@cache
def _process(number: int) -> Any:
    """This process, by its number: a child that was forked is another."""
    import psutil

    return psutil.Process(number)


def _peak() -> int:
    """Bytes; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _memory() -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _memory_of_kernel() -> tuple[int, int]:
    """Memory by sysconf, which asks the kernel without /proc; free pages only, without caches."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError):
        total = free = 0
    return (total, free) if 0 < free <= total else (ASSUMED_TOTAL, ASSUMED_FREE)


def _status_bytes(word: str) -> int | None:
    """A line of /proc/self/status; None where that is hidden, or not Linux."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
            line = next((line for line in status if line.startswith(f"{word}:")), "")
        return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None


def trim_heap() -> bool:
    """Returns freed heap memory to the system; False if the C library cannot (it is not glibc).

    That is tens of MB after a bundle was read and a session made, and takes about a millisecond.
    """
    import ctypes  # here, since it takes memory itself

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return False
    trim(0)
    return True


def collect_and_trim() -> None:
    """Collects garbage and returns freed memory to the system, so that a device is small between rounds.

    Only glibc would keep it (9 of 88 MB after measuring a small network).
    """
    gc.collect()
    trim_heap()
