"""Every system by its name: real agents and the real service exchange encoded messages, to the last round."""

from pathlib import Path

import numpy as np
import pytest

from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.known_systems import SYSTEMS
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles.device import Emulation
from tests.simulation.wire.run import WireCourse, WireMember, run_on_wire

ROUNDS, DEVICES, SAMPLES = 3, 3, 24
QUICK = {"epochs": 1, "lr": 0.05, "batch": 8}
FAMILIES = {"fedat": "small", "fedmd": "small", "fedkad": "small", "heterofl": "half"}
BUNDLES = dict.fromkeys(("fedat", "fedmd", "fedkad", "fedsplit", "heterofl"), "taught")
BUNDLES |= {f"fedpeft-{name}": "vit" for name in ("adapter", "prompt", "prefix")}
COMPOSED = ("fedncm+ft+fedadam", "fedpeft-bias+moon+fedprox", "moon+", "fedpeft-lora+fedyogi")


@pytest.fixture(scope="module")
def fleet(split):
    profile = Emulation.of("pi-5").profile
    x, y = split.train.x, split.train.y
    parts = (slice(i * SAMPLES, (i + 1) * SAMPLES) for i in range(DEVICES))
    return [WireMember(f"pi-{i}", profile, x[part], y[part]) for i, part in enumerate(parts)]


def task_for(name, exported):
    family = (getattr(exported, FAMILIES[name]),) if name in FAMILIES else ()
    return Task(
        bundle=getattr(exported, BUNDLES.get(name, "tuned")),
        rounds=ROUNDS,
        round_deadline_s=30.0,
        min_devices=DEVICES,
        min_contributions=DEVICES,
        family=family,
        generic=exported.generic,
        kinds=(
            KindSettings(name="full", settings=QUICK),
            KindSettings(name="peft", settings=QUICK),
            KindSettings(name="sparse", settings=QUICK),
            KindSettings(name="entropy-subset", settings=QUICK),
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SYSTEMS, *COMPOSED])
def test_a_system_runs_by_its_name_from_the_first_hello_to_the_last_receipt(name, fleet, exported):
    task = systems.task_as_system(name, task_for(name, exported))
    finished = run_on_wire(task, fleet, WireCourse(seed=1, until_s=1000))
    assert [line.participants for line in finished.rounds] == [DEVICES] * task.rounds
    for number in range(1, task.rounds + 1):
        sent = {record.kind for _, record in finished.contributions if record.round == number}
        assert sent == {task.offered(number)[0].name}
    before = Bundle.open(Path(task.bundle)).weights()
    moved = [key for key, value in finished.weights.items() if not np.array_equal(value, before[key])]
    assert moved
    assert all(np.isfinite(value).all() for value in finished.weights.values())
