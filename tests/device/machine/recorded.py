"""Records what devices' machines do, as traces that a machine in another language must reproduce.

A trace is the state at its beginning, and for each step the event, the commands and the fields of the state
that changed. Blobs and bundles are named by numbers, in the order in which they occur, as hashes of trained
weights differ from one processor to the next.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from device_runtime.device.agent import runner
from device_runtime.device.machine import step as machine
from device_runtime.device.machine.events import DeviceCommand, DeviceEvent
from device_runtime.device.machine.state import DeviceState

SHA = re.compile(r"\b[0-9a-f]{64}\b")


class Recorder:
    """Traces of devices, in the order of their starts; each start of a device's process is one."""

    def __init__(self) -> None:
        self.traces: list[list[Any]] = []
        self._ends: dict[int, tuple[DeviceState, list[Any]]] = {}
        self._names: dict[str, str] = {}

    def saw(
        self, before: DeviceState, event: DeviceEvent, commands: tuple[DeviceCommand, ...], after: DeviceState
    ) -> None:
        """Take a step, which goes on with the trace that ended in the state before it."""
        _, trace = self._ends.pop(id(before), (None, None))
        if trace is None:
            trace = [self._plain(before)]
            self.traces.append(trace)
        old, new = self._plain(before), self._plain(after)
        changes = {name: value for name, value in new.items() if value != old[name]}
        trace.append([self._plain(event), [self._plain(command) for command in commands], changes])
        self._ends[id(after)] = (after, trace)

    def _plain(self, value: Any) -> Any:
        """The value of JSON, with hashes named by their order."""
        return self._named(msgspec.to_builtins(value))

    def _named(self, value: Any) -> Any:
        if isinstance(value, str):
            return SHA.sub(lambda sha: self._names.setdefault(sha[0], f"blob{len(self._names)}"), value)
        if isinstance(value, dict):
            return {name: self._named(item) for name, item in value.items()}
        return [self._named(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record all devices of this process inside."""
    recorder = Recorder()

    def step(state: DeviceState, event: DeviceEvent) -> machine.Result:
        after, commands = machine.step(state, event)
        recorder.saw(state, event, commands, after)
        return after, commands

    with mock.patch.object(runner, "step", step):
        yield recorder
