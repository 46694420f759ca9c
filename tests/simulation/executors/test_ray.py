"""The executor of a Ray cluster: equal to the plain one, also when a worker is lost in mid-round."""

import sys
from dataclasses import replace
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import TensorError
from device_runtime.models.errors import BundleError, EngineError, ModelError
from device_runtime.simulation.errors import ExecutorError
from device_runtime.simulation.executors.job import FailedJob, PlainExecutor, TrainingJob
from device_runtime.simulation.executors.packing import error_of, read_replies
from device_runtime.simulation.executors.ray_cluster import RayInputs, RayWorker, placement
from device_runtime.simulation.executors.ray_executor import RayExecutor
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

from .conftest import jobs_of, same

pytestmark = pytest.mark.slow

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def executor(inputs):
    """On a cluster of its own, of two workers."""
    pool = RayExecutor(inputs, workers=2)
    yield pool
    pool.close()


@with_ray
def test_every_kind_of_update_is_the_plain_executors_bit_for_bit(executor, bases, every_kind, plainly):
    assert executor.name == "ray (2)"
    assert same(executor.run(bases, every_kind)) == plainly


@with_ray
def test_a_base_model_of_the_same_number_may_be_another_in_the_next_run(executor, inputs, bases):
    jobs = [replace(job, base="1") for job in jobs_of("class-means")]
    for weights in (bases["1"], bases["4"], bases["1"]):
        assert same(executor.run({"1": weights}, jobs)) == same(
            PlainExecutor(inputs).run({"1": weights}, jobs)
        )


@with_ray
def test_a_job_that_diverges_says_so_and_the_next_goes_on(executor, bases):
    wild = TrainingJob(2, "pi-2", FedAvg(epochs=2, lr=1e30), seed=77, base="1")
    diverged, fine = executor.run(bases, [wild, *jobs_of("class-means", 1)])
    assert isinstance(diverged, FailedJob)
    assert "non-finite" in diverged.why
    assert fine.kind == "class-means"


@with_ray
def test_what_cannot_be_done_is_said_as_plainly(executor, inputs, bases):
    jobs = [*jobs_of("class-means", 2), TrainingJob(0, "pi-0", ZerothOrder(tunable="lora"), 77, "1")]
    with pytest.raises(ModelError) as plainly:
        list(PlainExecutor(inputs).run(bases, jobs))
    with pytest.raises(type(plainly.value)) as raised:
        list(executor.run(bases, jobs))
    assert str(raised.value) == str(plainly.value)
    partial = {name: value for name, value in bases["1"].items() if "head" not in name}
    with pytest.raises(TensorError, match=r"head.* missing"):
        list(executor.run({"1": partial, "4": partial}, jobs))


@with_ray
def test_a_run_that_is_left_early_does_not_disturb_the_next(executor, bases, every_kind, plainly):
    results = executor.run(bases, every_kind)
    next(results)
    with pytest.raises(ExecutorError, match="a run is going on"):
        next(executor.run(bases, every_kind))
    results.close()
    assert same(executor.run(bases, every_kind)) == plainly


@with_ray
def test_a_worker_killed_in_the_middle_changes_no_bit(executor, bases, every_kind, plainly):
    results = executor.run(bases, every_kind)
    first = same([next(results)])
    victim = executor._cluster._actors[min(executor._load)]
    executor._cluster.ray.kill(victim)
    assert first + same(results) == plainly


def test_without_ray_it_is_said_what_to_install(inputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"pip install 'device-runtime\[ray\]'"):
        RayExecutor(inputs)


def test_workers_on_gpus_have_equal_shares_of_them():
    """3 workers on 2 GPUs: two on one of them, as a third of both would put them all on the first."""
    shares = [placement(workers, gpus).get("num_gpus") for workers, gpus in ((4, 4), (3, 2), (2, 4), (7, 1))]
    assert shares == [1.0, 0.5, 1.0, 0.1428]
    assert "num_gpus" not in placement(4, 0)


@with_ray
def test_a_cluster_without_a_gpu_says_so(inputs):
    pytest.importorskip("torch")
    with pytest.raises(ExecutorError, match="device is cuda, and no node of the Ray cluster has a GPU"):
        RayExecutor(replace(inputs, engine=EngineSettings("torch", device="cuda")), workers=1)


def test_no_workers_are_refused(inputs):
    with pytest.raises(ExecutorError, match="workers is 0, expected at least 1"):
        RayExecutor(inputs, workers=0)


@pytest.mark.parametrize(
    ("settings", "error"),
    [(EngineSettings(engine="abacus"), EngineError), (EngineSettings(precision="int8"), BundleError)],
)
def test_what_a_worker_finds_wrong_at_its_start_is_told_as_it_is(inputs, settings, error):
    zipped, clients = np.frombuffer(inputs.bundle.packed(), np.uint8), inputs.clients
    arrays = clients.x, clients.y, clients.order, clients.offsets
    opening = msgspec.msgpack.encode(RayInputs(settings, ()))
    [reply] = read_replies(RayWorker().open(opening, *arrays, zipped))
    with pytest.raises(error, match=settings.engine if error is EngineError else settings.precision):
        raise error_of(reply)
