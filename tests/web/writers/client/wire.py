"""Devices on a simulated wire, with crashes and lost links: what their machines do."""

from typing import Any

import numpy as np

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.profiles.device import Emulation
from tests.device.machine.recorded import recording
from tests.simulation.wire.run import (
    AggregatorKilled,
    Crash,
    LinkLost,
    WireCourse,
    WireMember,
    run_on_wire,
)

PROFILES = {"a": "pi-zero-2w", "b": "orin-nano"}
FAULTS = {
    "undisturbed": (),
    "a crash and a lost link": (Crash(3.0, 8.0, "a"), LinkLost(2.5, 9.0, "b")),
    "an aggregator that is killed": (AggregatorKilled(1.5, 4.0),),
}


def vectors() -> dict[str, Any]:
    return {
        f"{what}: device {number}": trace
        for what, faults in FAULTS.items()
        for number, trace in enumerate(traces(faults), 1)
    }


def traces(faults: tuple[Any, ...]) -> list[list[Any]]:
    """The traces of two devices through three rounds of class means, each life of a process by itself."""
    draws = np.random.default_rng(1)
    fleet = [
        WireMember(
            name,
            Emulation.of(profile, slow=50.0).profile,
            draws.integers(0, 17, (40, 8, 8), np.uint8),
            np.arange(40) % 4,
            latency_s=0.05,
        )
        for name, profile in PROFILES.items()
    ]
    task = Task(
        bundle="digits-wrn-10-1",
        rounds=3,
        round_deadline_s=20.0,
        min_devices=2,
        min_contributions=2,
        kinds=(KindSettings(name="class-means"),),
    )
    with recording() as recorder:
        run_on_wire(task, fleet, WireCourse(seed=1, faults=faults, until_s=400.0))
    return recorder.traces
