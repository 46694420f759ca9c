"""Six boards on handwritten digits, as in the demo, all on simulated wires."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.aggregator.tasks.task import Task
from device_runtime.profiles.device import Emulation
from device_runtime.simulation import digits
from device_runtime.simulation.demo.fleet import MIXED, SLOW, DemoDevice
from tests.simulation.wire.run import WireCourse, WireMember, run_on_wire

SAMPLES = 60
SLOWER = SLOW * 150 / SAMPLES
"""So that 60 digits weigh on these boards as 150 do on the demo's."""
FLEET = (
    DemoDevice("phone-a", "phone-high"),
    DemoDevice("board-a", "pi-5"),
    DemoDevice("phone-c", "phone-mid"),
    DemoDevice("jetson", "jetson-nano", digits=(6,)),
    DemoDevice("buoy", "jetson-nano", uplink=300.0, digits=(7,)),
    DemoDevice("pi-zero", "pi-zero-2w", digits=(8, 9)),
)


@pytest.fixture(scope="session")
def split():
    return digits.load(np.random.default_rng(1))


@pytest.fixture(scope="session")
def members(split):
    parts = np.split(np.arange(SAMPLES * len(FLEET)), len(FLEET))
    return [
        WireMember(
            m.name,
            Emulation.of(m.profile, SLOWER, m.uplink).profile,
            split.train.x[part],
            split.train.y[part],
        )
        for m, part in zip(FLEET, parts, strict=True)
    ]


@pytest.fixture(scope="session")
def mixed(split, tmp_path_factory):
    """Three rounds that wait for everyone; they offer all kinds, few-shot from the second on."""
    path = tmp_path_factory.mktemp("evaluation") / "evaluation.npz"
    np.savez(path, x=split.test.x, y=split.test.y)
    return Task(
        bundle="digits-wrn-10-1",
        rounds=3,
        round_deadline_s=2.8,
        min_devices=len(FLEET),
        min_contributions=len(FLEET),
        kinds=MIXED,
        eval_data=str(path),
    )


@pytest.fixture(scope="session")
def undisturbed(mixed, members):
    return run_on_wire(mixed, members, WireCourse(seed=1, until_s=100))


@pytest.fixture
def one_member(split):
    """Makes a single device with 40 samples, of a shipped profile with changes."""

    def make(name, latency_s=0.0, **changes):
        profile = replace(Emulation.of(name).profile, **changes)
        return WireMember("alone", profile, split.train.x[:40], split.train.y[:40], latency_s)

    return make
