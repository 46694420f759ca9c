"""A device in a control group of its own, smaller than its work: it steps down, and nothing is killed."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

from device_runtime.profiles.measure import OWN, own_groups

TRAIN = """
import json, os, sys, time
import numpy as np
from dataclasses import replace
from pathlib import Path
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.local_task import DeviceTask, Settings
from device_runtime.device.engine.engine_guard import guarded
from device_runtime.device.engine.engine_guard import EngineGuard
from device_runtime.device.training.work import Assignment, train_richest
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.profiles.measure import available_memory
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg

folder, wrong, leave = Path(sys.argv[1]), sys.argv[3] == "wrong", int(sys.argv[4])
if wrong:
    cost = FedAvg.cost
    FedAvg.cost = lambda *a: replace(cost(*a), peak_memory_bytes=1)
    EngineGuard._needed = lambda *_: 1
bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
task = DeviceTask(Settings("a", folder / "a.npz", folder), {"": bundle}, time.monotonic, LinkSpeed())
total = available_memory().total
hoard = np.ones(max(0, available_memory().free - leave) if leave else 0, np.uint8)
profile = task._as_it_is_now()
task.engine_guard.limit_bytes = profile.memory.limit_bytes
kinds = (FedAvg(epochs=1), ClassMeans())
with guarded(task.engine_guard, lambda: None):
    outcome = train_richest(task._worker, profile, Assignment(kinds, 1, time.monotonic() + 600))
chosen = outcome.plan.chosen
print(json.dumps([total, chosen and chosen.kind, outcome.peak_memory_bytes, list(outcome.reasons)]))
"""


def limits():
    """Where a control group can be made in which memory is limited, and the name of its limit."""
    paths = own_groups(OWN.read_text()) if OWN.exists() else {}
    for base, limit in (
        (Path("/sys/fs/cgroup/memory" + paths.get("memory", "")), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup" + paths.get("", "")), "memory.max"),
    ):
        folder = base / f"test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            return folder, limit
        folder.rmdir()
    return None


@pytest.fixture
def group():
    limit = limits()
    if limit is None:
        pytest.skip("no control group can be made here")
    yield limit
    limit[0].rmdir()


def trained(folder, group, predicted="right", leave=0):
    """[total, kind, peak, reasons] of a process with 300 MB in all, of which it leaves `leave` bytes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(folder / "a.npz", x=digits.images[:400].astype(np.uint8), y=digits.target[:400])
    control, limit = group
    (control / limit).write_text("300000000")
    ended = subprocess.run(
        [sys.executable, "-c", TRAIN, str(folder), str(control), predicted, str(leave)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr  # -9 where the kernel has ended it
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_group_s_limit_is_the_memory_of_the_device(tmp_path, group):
    total, kind, peak, _ = trained(tmp_path, group)
    assert abs(total - 300e6) < 2**20
    assert kind == "full"
    assert peak > 0


@pytest.mark.slow
@pytest.mark.parametrize("predicted", ["right", "wrong"])
def test_work_that_does_not_fit_is_stepped_down_also_where_it_was_thought_to(tmp_path, group, predicted):
    """Predicted rightly it is refused; else the watch ends it, or the kernel refuses it memory."""
    _, kind, _, reasons = trained(tmp_path, group, predicted, leave=12_000_000)
    assert kind in ("class-means", None)
    assert any(reason.startswith("full") for reason in reasons)
