"""Memory while work is done, where its prediction was wrong: looked at on a thread, and capped by the kernel.

The cap is on private memory that may be written (RLIMIT_DATA): what goes over it is refused to whoever asks,
and an engine says so, where the kernel would else end the process, or another.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from device_runtime.client.policy import conditions
from device_runtime.models.data.bounded import SLACK, cap
from device_runtime.profiles.machine import MachineMemory, room

from .engine_guard import VirtualWatcher, Watcher

LOOK_S = 0.1
"""Seconds between looks."""
STALLED = 20.0
"""Percent of the last ten seconds, in which all stood still for want of memory, that are too many."""
PRESSURE = Path("/proc/pressure/memory")


class MemoryWatchdog:
    """Tells a watcher when memory runs out; what is being done then ends at its next step."""

    def __init__(
        self, watcher: Watcher, look: Callable[[], MachineMemory] = room, pressure: Path = PRESSURE
    ) -> None:
        self._watcher, self._room, self._pressure = watcher, look, pressure
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watchdog", daemon=True)

    def start(self) -> None:
        """Once."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Also one that was never started."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def shortage(self) -> str:
        """What is wrong now; empty when nothing is."""
        held, limit = self._watcher.resident(), self._watcher.limit_bytes
        if held > limit:
            return f"the process holds {held / 1e6:.0f} MB, over its {limit / 1e6:.0f} MB"
        left = self._room()
        if left.free < left.reserve:
            return f"{left.free / 1e6:.0f} MB of memory are left here, of {left.total / 1e6:.0f}"
        try:
            stalled = conditions.stalled(self._pressure.read_text())
        except OSError:  # a kernel without it
            return ""
        return (
            f"memory is short here: all stood still for {stalled:.0f}% of 10 s" if stalled >= STALLED else ""
        )

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            if wrong := self.shortage():
                self._watcher.alarm(wrong)


@contextmanager
def guarded(watcher: Watcher, between: Callable[[], None]) -> Iterator[None]:
    """Work inside is watched from its beginning; `between` is called after each run of an engine.

    That of a virtual device is not: its memory is predicted, and what this process holds is of many.
    """
    if isinstance(watcher, VirtualWatcher):
        yield
        return
    dog, before = MemoryWatchdog(watcher), resource.getrlimit(resource.RLIMIT_DATA)

    def begin() -> None:
        dog.start()  # while its stack is still to be had
        if watcher.pretence is None:
            free = max(0, min(watcher.limit_bytes - watcher.resident(), room().free))
            cap(free + max(SLACK, free // 2))

    watcher.hooked(between, begin)
    try:
        yield
    finally:
        watcher.hooked()
        dog.stop()
        resource.setrlimit(resource.RLIMIT_DATA, before)
