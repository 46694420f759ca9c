"""A whole run on a simulated network, from the first hello to the last receipt, with injected faults.

The devices and the aggregator are the real ones; links, broker and time are simulated. `perform` runs a
scenario this way that `simulation.rounds.run` runs in fast virtual time.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRecord,
    PlanReported,
    RoundClosed,
    RoundRecord,
    RunEvent,
)
from device_runtime.aggregator.storage.model_versions import SERVED
from device_runtime.aggregator.storage.store import Identity, Store
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.topics import check_device
from device_runtime.device.selection.choose import MAIN
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.profiles import DeviceProfile
from device_runtime.simulation.clock.devices import FleetState
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.rounds.run import PreparedRun
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from tests.simulation.wire.broker import PacketLog, PassedPacket, VirtualBroker
from tests.simulation.wire.device import PlacedDevice, VirtualDevice
from tests.simulation.wire.host import VirtualAggregator
from tests.simulation.wire.link import LinkCapacity

log = logging.getLogger(__name__)

RUNS = 2
"""Purpose of the random draw that names the run."""
MEMORY_FOLDER = Path("/dev/shm")  # a folder with a drawn name is made in it
"""A folder in memory: devices and the aggregator write files as durably as real ones, without a disk."""


@dataclass(frozen=True)
class _Fault:
    """A fault from `at_s` to `back_at`, in virtual seconds since the run began. Raises ScenarioError."""

    at_s: float
    back_at: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < self.back_at:
            raise ScenarioError(
                f"a fault from {self.at_s} s to {self.back_at} s: it begins at 0 or later, and ends after"
            )


@dataclass(frozen=True)
class Crash(_Fault):
    """A device loses power; from `back_at` on a new process continues with what is on its disk."""

    device: str = ""


@dataclass(frozen=True)
class LinkLost(_Fault):
    """A device is off the network until `back_at`; it continues to compute."""

    device: str = ""


@dataclass(frozen=True)
class AggregatorKilled(_Fault):
    """The aggregator's process is killed; at `back_at` it is started again on its run folder."""


Fault = Crash | LinkLost | AggregatorKilled


@dataclass(frozen=True)
class WireMember:
    """A device of the fleet: `x` raw inputs (n, ...), `y` labels int64 (n,).

    Its link has the profile's bandwidth, and `latency_s` each way.
    """

    name: str
    profile: DeviceProfile
    x: NDArray[Any]
    y: NDArray[np.int64]
    latency_s: float = 0.0


@dataclass(frozen=True)
class WireCourse:
    """The course of a run: its faults, and the virtual seconds `until_s` by which it must end.

    `seed` draws the names of the run and of the devices' boots; the task has a seed of its own.
    """

    seed: int = 0
    faults: tuple[Fault, ...] = ()
    keepalive_s: float = 30.0
    until_s: float = inf


@dataclass(frozen=True)
class WireResult:
    """The result of a run: the served weights, and the aggregator's events with virtual seconds."""

    weights: Tensors
    events: tuple[tuple[float, RunEvent], ...]
    log: tuple[PassedPacket, ...]
    seconds: float

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        return tuple(what.record for _, what in self.events if isinstance(what, RoundClosed))

    @property
    def contributions(self) -> tuple[tuple[float, ContributionRecord], ...]:
        """The contributions that counted, each with its time in virtual seconds."""
        return tuple((at_s, what.record) for at_s, what in self.events if isinstance(what, Contributed))

    @property
    def plans(self) -> tuple[tuple[float, PlanReported], ...]:
        return tuple((at_s, what) for at_s, what in self.events if isinstance(what, PlanReported))


def run_on_wire(task: Task, fleet: Sequence[WireMember], course: WireCourse | None = None) -> WireResult:
    """Runs the task to its end. Single-threaded; equal arguments give equal messages and weights.

    Raises SimulationError when nothing more can happen or `until_s` passes before the end, ScenarioError for
    faults of unknown devices and for masked updates, TopicError for names that are not valid in a topic, and
    the errors of Service and Agent.
    """
    if task.masks is not None:
        raise ScenarioError("task.masks: a run on a simulated network has no mask helpers, leave them out")
    course = course or WireCourse()
    where = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="wire-", dir=where) as folder:
        return _Run(task, fleet, course, Path(folder)).through()


class _Run:
    def __init__(self, task: Task, fleet: Sequence[WireMember], course: WireCourse, folder: Path) -> None:
        self._course, self._folder = course, folder
        self._agenda, self._log = VirtualTimeQueue(), PacketLog()
        broker = VirtualBroker(self._agenda, course.keepalive_s)
        _make_run_folder(task, folder / "run", course.seed)
        self._host = VirtualAggregator(task, folder / "run", broker, self._log)
        self._devices = {
            member.name: VirtualDevice(self._placed(number, member), broker, self._log, course.seed)
            for number, member in enumerate(fleet)
        }
        if len(self._devices) < len(fleet):
            raise ScenarioError(f"{len(fleet)} devices have only {len(self._devices)} names")

    def through(self) -> WireResult:
        for fault in self._course.faults:
            self._schedule(fault)
        self._host.start()
        for device in self._devices.values():
            device.start()
        try:
            while not self._host.finished:
                if not self._agenda.step():
                    raise SimulationError(
                        f"nothing happens after {self._agenda.now:.1f} s: {self._host.where}"
                    )
                if self._agenda.now > self._course.until_s:
                    raise SimulationError(f"not done after {self._course.until_s} s: {self._host.where}")
        finally:
            self._host.close()
        weights = tensors.decode((self._folder / "run" / SERVED).read_bytes())
        return WireResult(weights, tuple(self._host.events), tuple(self._log.passed), self._agenda.now)

    def _placed(self, number: int, member: WireMember) -> PlacedDevice:
        data = self._folder / "data" / f"{check_device(member.name)}.npz"
        data.parent.mkdir(exist_ok=True)
        np.savez(data, x=member.x, y=member.y)
        link = member.profile.bandwidth
        line = LinkCapacity(link.up, link.down, member.latency_s)
        folder = self._folder / "devices" / member.name
        return PlacedDevice(member.name, number, member.profile, data, folder, line)

    def _schedule(self, fault: Fault) -> None:
        match fault:
            case AggregatorKilled():
                begins, ends = self._host.kill, self._host.start
            case Crash():
                device = self._device(fault.device)
                device.dies_at(fault.at_s)
                begins, ends = device.crash, device.start
            case LinkLost():
                device = self._device(fault.device)
                begins, ends = device.lose, device.regain
        self._agenda.at(fault.at_s, begins)
        if fault.back_at < inf:
            self._agenda.at(fault.back_at, ends)

    def _device(self, name: str) -> VirtualDevice:
        if name not in self._devices:
            raise ScenarioError(f"no device named {name!r}; there are {', '.join(self._devices)}")
        return self._devices[name]


def _make_run_folder(task: Task, folder: Path, seed: int) -> None:
    """Makes the run folder, with a run name drawn by the seed, because it is part of every message."""
    name = np.random.default_rng([seed, RUNS]).bytes(4).hex()
    store = Store(folder)
    try:
        models = (Bundle.open(bundles.find_bundle(path)) for path in (task.bundle, *task.family))
        shas = [store.models.put(model.packed()).sha for model in models]
        store.begin_run(Identity(task.json(), name, b"".join(shas)))
    finally:
        store.close()


def members(prepared: PreparedRun) -> list[WireMember]:
    """The scenario's devices, each with its samples, its own speed, bandwidth and latency."""
    scenario, clients = prepared.scenario, prepared.inputs.clients
    fleet = scenario.fleet.draw(scenario.devices, prepared.seed)
    manifests = {member: bundle.manifest for member, bundle in prepared.inputs.bundles.items()}
    devices = FleetState(fleet, clients, manifests, scenario.slow)
    wire_members = []
    for number in range(len(devices)):
        indices = clients.indices(number)
        x, y = clients.x[indices], manifests[MAIN].target.raw(clients.y[indices])
        wire_members.append(
            WireMember(fleet.name(number), devices.profile(number), x, y, fleet.latency_s(number))
        )
    return wire_members


def perform(prepared: PreparedRun, course: WireCourse | None = None) -> WireResult:
    """Runs all rounds of a scenario with the faults of `course`; the first round waits for all devices.

    The fleet's random draws of each round (jitter, crashes, hours of the day, a redrawn fleet) are ignored,
    and so are its groups' `members`. Raises as `run_on_wire` does.
    """
    scenario = prepared.scenario
    task = msgspec.structs.replace(scenario.task, seed=prepared.seed, min_devices=scenario.devices)
    return run_on_wire(task, members(prepared), course or WireCourse(prepared.seed))
