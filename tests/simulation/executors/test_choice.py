"""Which executor is chosen, and why."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.errors import EngineError
from device_runtime.profiles.measure import cpu_quota
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError
from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorRequest, choose, job_flops, make, names
from device_runtime.strategies.kinds import registry

from .conftest import jobs_of, same

FULL = registry.make("full", {"epochs": 1})
HEADS = [registry.make("few-shot"), registry.make("class-means")]
ONE = ExecutorRequest(workers=1)
FOUR = ExecutorRequest(workers=4)


@pytest.fixture
def chosen(inputs):
    """What is chosen, said shortly: who trains one by one, and whether others are batched."""

    def short(executor_request, kinds, **changes):
        choice_ = choose(replace(inputs, **changes), executor_request, kinds)
        return choice_.name, choice_.batched, choice_.networks

    return short


def with_samples(inputs, count: int):
    """One device of so many samples."""
    return Clients(inputs.clients.x, inputs.clients.y, np.zeros(count, np.int64), np.array([0, count]))


def test_operations_of_a_job_are_those_of_a_device_of_mean_size(inputs):
    """40 samples of six devices: seven, once through train.all."""
    expected = 7 * inputs.bundle.manifest.graphs["train.all"].flops
    assert job_flops(inputs, FULL) == expected
    assert job_flops(inputs, registry.make("zeroth-order", {"tunable": "lora"})) == 0.0


def test_heavy_jobs_go_to_processes_where_there_is_more_than_one_core(chosen, inputs):
    assert job_flops(inputs, FULL) > choice.HEAVY_FLOPS
    assert chosen(FOUR, [FULL]) == ("processes", False, False)
    assert chosen(ONE, [FULL]) == ("plain", False, False)


def test_light_jobs_stay_here(chosen, inputs):
    samples = int(choice.HEAVY_FLOPS // inputs.bundle.manifest.graphs["train.all"].flops)
    assert chosen(FOUR, [FULL], clients=with_samples(inputs, samples)) == ("plain", False, False)
    assert chosen(FOUR, [FULL], clients=with_samples(inputs, samples + 1)) == ("processes", False, False)


def test_heads_are_batched_and_the_rest_as_if_they_were_not_there(chosen):
    assert chosen(FOUR, HEADS) == ("plain", True, False)
    assert chosen(FOUR, [FULL, *HEADS]) == ("processes", True, False)
    assert chosen(ONE, [FULL, *HEADS]) == ("plain", True, False)
    assert chosen(FOUR, []) == ("plain", False, False)


def test_small_networks_are_batched_on_torch_where_cores_are_few(chosen):
    pytest.importorskip("torch")
    assert chosen(ONE, [FULL], engine=EngineSettings(engine="torch")) == ("plain", True, True)
    assert chosen(FOUR, [FULL], engine=EngineSettings(engine="torch", device="cuda")) == ("plain", True, True)
    assert chosen(ExecutorRequest(workers=2), [FULL], engine=EngineSettings(engine="torch"))[2]
    assert chosen(FOUR, [FULL], engine=EngineSettings(engine="torch")) == ("processes", False, False)
    assert chosen(FOUR, HEADS, engine=EngineSettings(engine="torch")) == ("plain", True, False)


@pytest.mark.parametrize(("device", "networks"), [("cpu", False), ("cuda", True)])
def test_large_networks_with_batch_statistics_are_batched_on_a_gpu_alone(chosen, bundle, device, networks):
    pytest.importorskip("torch")
    slow = msgspec.structs.replace(
        bundle.manifest.graphs["train.all"], flops=1e9, statistics=("body.norm.running_mean",)
    )
    graphs = {**bundle.manifest.graphs, "train.all": slow}
    large = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, graphs=graphs))
    engine = EngineSettings("torch", device=device)
    assert chosen(ONE, [FULL], bundle=large, engine=engine) == ("plain", networks, networks)


def test_a_named_cluster_is_used(chosen):
    assert chosen(ExecutorRequest(address="auto"), [FULL, *HEADS]) == ("ray", False, False)


@pytest.mark.parametrize("name", choice.NAMES)
def test_what_is_asked_for_is_taken(chosen, name):
    trains, batched, _ = chosen(ExecutorRequest(name), [FULL])
    assert (trains, batched) == (("plain", True) if name == "batched" else (name, False))


def test_why_is_said_with_figures(inputs):
    assert choose(inputs, FOUR, [FULL]).why == f"{job_flops(inputs, FULL) / 1e6:.3g} MFLOP a job, 4 cores"
    assert choose(inputs, ONE, [FULL]).why == "one core is usable"
    assert choose(inputs, ONE, HEADS[:1]).why == "few-shot of many devices is one matrix product"
    assert choose(inputs, ExecutorRequest("plain"), [FULL]).why == "as asked for"
    assert choose(inputs, ExecutorRequest(address="h:1"), [FULL]).why == "a Ray cluster is named: h:1"


def test_requests_that_cannot_be_met_are_refused(inputs):
    with pytest.raises(ExecutorError, match="no executor 'abacus'; there are auto, plain, batched"):
        choose(inputs, ExecutorRequest("abacus"), [FULL])
    with pytest.raises(ExecutorError, match="executor plain takes no address"):
        choose(inputs, ExecutorRequest("plain", address="h:1"), [FULL])
    with pytest.raises(EngineError, match="no engine 'abacus'"):
        make(replace(inputs, engine=EngineSettings(engine="abacus")), ONE, [FULL])
    assert names() == ("auto", "plain", "batched", "processes", "ray")


@pytest.mark.parametrize(
    ("executor_request", "kinds", "name"),
    [
        (ONE, [FULL], "plain"),
        (ExecutorRequest("processes", workers=1), [FULL], "processes (1)"),
        (ONE, HEADS, "batched, plain"),
        (ExecutorRequest("batched"), [FULL], "batched, plain"),
        (ExecutorRequest(workers=2), [FULL, *HEADS], "batched, processes (2)"),
    ],
)
def test_what_is_made_says_what_it_is_and_works(inputs, bases, executor_request, kinds, name):
    executor = make(inputs, executor_request, kinds)
    try:
        assert executor.name == name
        assert len(same(executor.run(bases, jobs_of("full", 2)))) == 2
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({"cpu.max": "150000 100000"}, {"": "/"}, 1.5),
        ({"cpu.max": "max 100000"}, {"": "/"}, None),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, {"": "/a/b"}, 4.0),
        ({"a/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, {"": "/a"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, {"cpu": "/gone"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, {"cpu": "/"}, None),
        ({}, {}, None),
    ],
)
def test_a_quota_is_the_smallest_of_the_groups_that_hold_the_process(tmp_path, files, groups, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert cpu_quota(tmp_path, groups) == cores
