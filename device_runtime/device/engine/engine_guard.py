"""Keeps an engine within the memory that a device may use.

Watches the engine: refuses work that would exceed the memory, and slows an emulated device down.

Both use the same hook, `EngineWatch`: it is called before a session is made and after each run.

Ends work before memory runs out if its prediction was wrong: by a thread and a kernel limit.

The limit is on private writable memory (RLIMIT_DATA): an allocation beyond it fails, and the engine reports
that; without it the kernel would end this process, or another.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from device_runtime.device.errors import OutOfMemory
from device_runtime.device.policy import conditions
from device_runtime.machine_readings import collect_and_trim, resident_bytes
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.names import RUN_BYTES
from device_runtime.models.data.local_data import SLACK, limit_memory, unlimit_memory
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import DeviceProfile, Memory
from device_runtime.profiles.cost import session_bytes
from device_runtime.profiles.device import Emulation, Time
from device_runtime.profiles.measure import MachineMemory, available_memory

ENGINE_BYTES = 30 * 2**20
"""What loading ONNX Runtime adds to the process (measured 19 to 28 MB)."""
RUN_SHARE, LEAST_RUN_BYTES = 6, 2**20
"""A run needs RUN_SHARE times its live activations free; otherwise it takes fewer samples.

A training step was seen to hold up to 2.5 times as many, and its session, the update, weights and samples
come on top. LEAST_RUN_BYTES is the smallest run.
"""

MARGIN, MARGIN_BYTES = 1.1, 8 * 2**20
"""How much more a graph may hold than was seen: a factor, and bytes."""


class EngineGuard:
    """Called before each session and after each run; see `models.engines.base.EngineWatch`.

    `limit_bytes` is the most that the process may hold; `held_bytes` what a graph with a whole run in it
    holds, by its name, where that is known; `run_bytes` limits the samples of a run. `elsewhere_bytes` are
    not in `limit_bytes`, because another process of the device holds them. `emulation` makes every run take
    as long as that device would take for its FLOPs, unless this machine took longer.
    """

    def __init__(
        self,
        limit_bytes: int,
        emulation: Emulation | None = None,
        batch: int = 32,
        time: Time | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.emulation = emulation
        self.peak_bytes = 0
        self._batch = batch
        self._time = time or Time()
        self._owed_s = 0.0
        self._alarm = ""
        self._before: dict[str, int] = {}
        self._grown: dict[str, int] = {}
        self.held_bytes: Mapping[str, int] = {}
        self.run_bytes = RUN_BYTES
        self.elsewhere_bytes = 0
        self.hooked()

    def hooked(
        self, pause_point: Callable[[], None] = lambda: None, began: Callable[[], None] = lambda: None
    ) -> None:
        """Set hooks: `pause_point` is called after each run and may raise, `began` when work begins."""
        self._pause_point, self._began = pause_point, began

    def alarm(self, text: str) -> None:
        """Memory runs out: end the work at its next step. May be called from another thread."""
        self._alarm = text

    def check_alarm(self) -> None:
        """Raises OutOfMemory if there was an alarm; once for each."""
        text, self._alarm = self._alarm, ""
        if text:
            raise OutOfMemory(text)

    @property
    def grown(self) -> dict[str, int]:
        """Bytes by which the process grew with each graph that had a whole run in it, plus a margin.

        The margin is for memory that was free then and may not be free again.
        """
        return {name: round(MARGIN * grown) + MARGIN_BYTES for name, grown in self._grown.items()}

    def forget(self) -> None:
        """Forget the growth seen so far: it includes an engine that was loaded."""
        self._grown.clear()

    def will_load(self, name: str, graph: Graph) -> None:
        """Raises OutOfMemory when the session and one batch through it would not fit."""
        needed, most = self._needed(name, graph), self._most()
        if needed > most and self.emulation is None:
            collect_and_trim()  # earlier work may have left memory to give back
            needed, most = self._needed(name, graph), self._most()
        if needed > most:
            raise OutOfMemory(
                f"{name} needs {needed / 1e6:.0f} MB in all, this device may use {most / 1e6:.0f} MB"
                + (self._held_elsewhere if most == self.limit_bytes else "")
            )
        self._before[name] = self.resident()

    def ran(self, name: str, graph: Graph, samples: int, seconds: float) -> None:
        """Sleep while the emulated device would still be computing, and note the memory held.

        Raises OutOfMemory if the process has exceeded its limit: the work is given up, not the device.
        """
        size = self.resident()
        if samples >= self._rows(graph):
            self._grown[name] = max(self._grown.get(name, 0), size - self._before.get(name, size))
        if size > self.limit_bytes:
            raise OutOfMemory(
                f"{name} took the process to {size / 1e6:.0f} MB, over its {self.limit_bytes / 1e6:.0f} MB"
                + self._held_elsewhere
            )
        self.check_alarm()
        self._pause_point()
        if self.emulation is not None:
            emulated_s = samples * graph.flops / self.emulation.profile.speed.flops_per_s
            self.wait(emulated_s - seconds)

    def wait(self, seconds: float) -> None:
        """Sleep; the error of each sleep is made up for by the next, so that the sum is right."""
        self._owed_s += seconds
        if self._owed_s > 0.001:
            began = self._time.clock()
            self._time.sleep(self._owed_s)
            self._owed_s -= self._time.clock() - began

    def start(self) -> None:
        """Begin a new piece of work: reset the sleep still owed, the alarm and the peak."""
        self._owed_s, self._alarm = 0.0, ""
        self.peak_bytes = self.resident()
        self._began()

    def clear(self, model: DeviceModel) -> None:
        """Unload the model of work that was given up: the next work was promised its memory."""
        model.unload()

    @property
    def _held_elsewhere(self) -> str:
        size = f"{self.elsewhere_bytes / 1e6:.0f} MB"
        return f" ({size} of its limit are held by its other process)" if self.elsewhere_bytes else ""

    def _rows(self, graph: Graph) -> int:
        return graph.rows(self._batch, self.run_bytes)

    def _needed(self, name: str, graph: Graph) -> int:
        """Bytes of the whole process with a session of this graph, and one run in it."""
        predicted = session_bytes(graph.bytes) + graph.memory_bytes(self._rows(graph))
        return self.resident() + self.held_bytes.get(name, predicted)

    def _most(self) -> int:
        """Bytes that the process may hold now: others may have taken some since the limit was set."""
        if self.emulation is not None:
            return self.limit_bytes
        return min(self.limit_bytes, self.resident() + available_memory().usable)

    def resident(self) -> int:
        """Bytes that the process holds; also notes the peak."""
        size = resident_bytes()
        self.peak_bytes = max(self.peak_bytes, size)
        return size


class VirtualEngineGuard(EngineGuard):
    """Watches a virtual device: each run takes the profile's time, on the device's own clock.

    Memory is the profile's plus what is predicted for the sessions, since this process holds many devices.
    """

    def __init__(self, limit_bytes: int, profile: DeviceProfile, time: Time) -> None:
        super().__init__(limit_bytes, Emulation(profile, time=time), time=time)
        self._profile = profile

    def ran(self, name: str, graph: Graph, samples: int, seconds: float) -> None:
        self._time.sleep(samples * self._profile.speed.of(name, graph.flops))

    def _needed(self, name: str, graph: Graph) -> int:
        needed = super()._needed(name, graph)
        self.peak_bytes = max(self.peak_bytes, min(needed, self.limit_bytes))
        return needed

    def clear(self, model: DeviceModel) -> None:
        """Does nothing: many devices share the model."""

    def resident(self) -> int:
        return self._profile.memory.resident_bytes


def guard_engine(emulation: Emulation | None, memory_bytes: int | None) -> EngineGuard:
    """The engine guard for this device; `memory_bytes` is its limit, if one is set by hand."""
    limit = limit_bytes(emulation, memory_bytes)
    if emulation is not None and emulation.time is not None:
        return VirtualEngineGuard(limit, emulation.profile, emulation.time)
    watch = EngineGuard(limit, emulation)
    watch.run_bytes = run_bytes(limit - watch.resident())
    return watch


def run_bytes(free: int) -> int:
    """Live activations of one run for `free` bytes: RUN_BYTES, halved until RUN_SHARE times them fit."""
    if "onnxruntime" not in sys.modules:
        free -= ENGINE_BYTES
    halvings = range((RUN_BYTES // LEAST_RUN_BYTES).bit_length())
    sizes = [RUN_BYTES >> halved for halved in halvings]
    return next((size for size in sizes if RUN_SHARE * size <= free), LEAST_RUN_BYTES)


def own_memory(profile: DeviceProfile, memory_bytes: int | None) -> DeviceProfile:
    """The profile with a memory limit set by hand."""
    if memory_bytes is None:
        return profile
    memory = Memory(profile.memory.total_bytes, memory_bytes, profile.memory.resident_bytes)
    return replace(profile, memory=memory)


def limit_bytes(emulation: Emulation | None, memory_bytes: int | None) -> int:
    """Most bytes that the process may hold: as set by hand, as on the emulated device, or what is free."""
    if memory_bytes is not None:
        return memory_bytes
    if emulation is not None:
        return emulation.profile.memory.limit_bytes
    return available_memory().usable + resident_bytes()


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
