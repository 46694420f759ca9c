"""What devices with little memory choose in tasks that name no kinds, with the predictions of the product."""

from dataclasses import replace

import msgspec
import pytest

from device_runtime.aggregator.tasks.feasible import with_members, with_possible_head
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.engine.engine_guard import LEAST_RUN_BYTES
from device_runtime.device.selection.choose import MAIN, choose
from device_runtime.models.bundles.targets import targets_of
from device_runtime.profiles import Bandwidth, Memory, Speed, shipped
from device_runtime.strategies.training.workload import workload

BOARD = shipped("pi-4")


def planned(manifest, limit_bytes):
    """The choice of a fast device with a wide link whose process may have so much memory."""
    task = with_possible_head(with_members(Task(bundle="b"), ()), manifest)
    memory = Memory(BOARD.memory.total_bytes, int(limit_bytes), BOARD.memory.resident_bytes)
    speed = Speed(1e9, run_bytes=LEAST_RUN_BYTES)
    device = replace(BOARD, memory=memory, speed=speed, bandwidth=Bandwidth(1e6, 1e7))
    return choose(device, task.preferred(2), {MAIN: workload(manifest, (18,) * 10)}, 60.0)


def chosen(manifest, limit_bytes):
    plan = planned(manifest, limit_bytes)
    return plan.chosen.kind if plan.chosen else ""


def needs(manifest):
    """The memory of each form, in bytes, on a device with little."""
    candidates = planned(manifest, 1e6).candidates
    return {each.label: each.cost.peak_memory_bytes for each in candidates if each.cost}


@pytest.fixture
def next_token(bundle):
    """The manifest of a bundle with a loss of its own, for which there are no class means."""
    own = targets_of("next_token", bundle.manifest.labels, "classes", True)
    return msgspec.structs.replace(bundle.manifest, loss=own)


def test_scalars_are_for_memory_of_a_forward_pass_alone_where_there_are_no_class_means(next_token):
    memory = needs(next_token)
    assert {label.split()[0] for label in memory} == {"full", "zeroth-order"}
    scalars, full = memory.pop("zeroth-order"), min(memory.values())
    limits = (scalars - 1, scalars, full - 1, full)
    assert [chosen(next_token, limit) for limit in limits] == ["", "zeroth-order", "zeroth-order", "full"]


def test_in_tasks_of_classes_devices_with_that_memory_send_heads(bundle):
    memory = needs(bundle.manifest)
    assert memory["few-shot"] < memory["full epochs=1"] < memory["full"]
    limits = (memory["zeroth-order"], memory["full epochs=1"] - 1, 2 * memory["full"])
    assert [chosen(bundle.manifest, limit) for limit in limits] == ["few-shot", "few-shot", "full"]
