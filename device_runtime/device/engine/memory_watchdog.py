"""Ends work before memory runs out if its prediction was wrong: by a thread and a kernel limit.

The limit is on private writable memory (RLIMIT_DATA): an allocation beyond it fails, and the engine reports
that; without it the kernel would end this process, or another.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from device_runtime.device.policy import conditions
from device_runtime.models.data.local_data import SLACK, limit_memory, unlimit_memory
from device_runtime.profiles.machine import MachineMemory, available_memory

from .engine_guard import EngineGuard, VirtualEngineGuard

LOOK_S = 0.1
"""Seconds between looks."""
STALLED = 20.0
"""Percent of the last ten seconds in which all processes waited for memory: so many are too many."""
PRESSURE = Path("/proc/pressure/memory")


class MemoryWatchdog:
    """Alarms an engine guard when memory runs out; the work in progress then ends at its next step."""

    def __init__(
        self,
        engine_guard: EngineGuard,
        look: Callable[[], MachineMemory] = available_memory,
        pressure: Path = PRESSURE,
    ) -> None:
        self._watcher, self._available, self._pressure = engine_guard, look, pressure
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watchdog", daemon=True)

    def start(self) -> None:
        """Starts the thread, once."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Stops the thread, if it was started."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def shortage(self) -> str:
        """Why memory is short now; empty when it is not."""
        resident, limit = self._watcher.resident(), self._watcher.limit_bytes
        if resident > limit:
            return f"the process holds {resident / 1e6:.0f} MB, over its {limit / 1e6:.0f} MB"
        left = self._available()
        if left.free < left.reserve:
            return f"{left.free / 1e6:.0f} MB of memory are left here, of {left.total / 1e6:.0f}"
        try:
            stalled = conditions.stalled(self._pressure.read_text())
        except OSError:  # a kernel without pressure figures
            return ""
        return (
            f"memory is short here: all stood still for {stalled:.0f}% of 10 s" if stalled >= STALLED else ""
        )

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            if wrong := self.shortage():
                self._watcher.alarm(wrong)


@contextmanager
def guarded(engine_guard: EngineGuard, pause_point: Callable[[], None]) -> Iterator[None]:
    """Watch the memory of work inside, from its beginning.

    `pause_point` is called after each run of an engine. A virtual device is not watched: its memory is
    predicted, and this process holds many devices.
    """
    if isinstance(engine_guard, VirtualEngineGuard):
        yield
        return
    watchdog, before = MemoryWatchdog(engine_guard), resource.getrlimit(resource.RLIMIT_DATA)

    def begin() -> None:
        watchdog.start()  # while there is still memory for its stack
        if engine_guard.emulation is None:
            free = max(0, min(engine_guard.limit_bytes - engine_guard.resident(), available_memory().free))
            limit_memory(free + max(SLACK, free // 2))

    engine_guard.hooked(pause_point, begin)
    try:
        yield
    finally:
        engine_guard.hooked()
        watchdog.stop()
        unlimit_memory(before)
