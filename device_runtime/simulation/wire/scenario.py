"""A scenario on the simulated wire, as `simulation.run` has it in fast virtual time."""

from __future__ import annotations

import msgspec

from device_runtime.simulation.clock.devices import Devices
from device_runtime.simulation.run import Prepared

from .run import Course, Finished, Member, run_on_wire


def members(prepared: Prepared) -> list[Member]:
    """The scenario's devices, each with its samples, its own speed, bandwidth and latency."""
    scenario, clients = prepared.scenario, prepared.world.clients
    fleet = scenario.fleet.draw(scenario.devices, prepared.seed)
    manifests = {member: bundle.manifest for member, bundle in prepared.world.bundles.items()}
    devices = Devices(fleet, clients, manifests, scenario.slow)
    made = []
    for number, name in enumerate(devices.names()):
        held = clients.indices(number)
        x, y = clients.x[held], clients.y[held]
        made.append(Member(name, devices.profile(number), x, y, fleet.latency_s(number)))
    return made


def perform(prepared: Prepared, course: Course | None = None) -> Finished:
    """All rounds; the first waits for all devices. What `course` names goes wrong, and nothing else.

    What the fleet draws anew in each round (jitter, crashes, hours of the day) has no part in this.
    Raises as `run_on_wire` does.
    """
    scenario = prepared.scenario
    task = msgspec.structs.replace(scenario.task, seed=prepared.seed, min_devices=scenario.devices)
    return run_on_wire(task, members(prepared), course or Course(prepared.seed))
