"""Ray clusters of their own: of one node, and of two, one of which is killed in the middle of a round."""

from dataclasses import replace

import pytest

from device_runtime.models.bundles.names import EngineSettings
from device_runtime.simulation.executors.ray_cluster import import_ray
from device_runtime.simulation.executors.ray_executor import RayExecutor

from .conftest import assert_trained_together, jobs_of, same


@pytest.mark.slow
def test_families_memories_and_what_is_beside_the_base_are_the_plain_executors(lesson, kept_plainly):
    pytest.importorskip("ray")
    executor = RayExecutor(lesson.inputs, workers=1)
    try:
        assert same(executor.run(lesson.bases, lesson.jobs)) == kept_plainly
    finally:
        executor.close()


@pytest.mark.slow
def test_workers_train_many_networks_at_once(inputs, bases):
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    on_torch = replace(inputs, engine=EngineSettings("torch"))
    executor = RayExecutor(on_torch, workers=2, together=3)
    assert_trained_together(executor, on_torch, bases, [*jobs_of("full"), *jobs_of("class-means")])


@pytest.mark.slow
def test_a_node_killed_in_the_middle_of_a_round_changes_no_bit(inputs, bases, every_kind, plainly):
    pytest.importorskip("ray")
    ray = import_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        executor = RayExecutor(inputs, address=cluster.address)
        assert executor.name == "ray (3)"
        results = executor.run(bases, every_kind)
        results_ = same([next(results), next(results)])
        cluster.remove_node(node, allow_graceful=False)
        results_ += same(results)
        assert results_ == plainly
        assert executor.name == "ray (1)"
        assert same(executor.run(bases, every_kind)) == plainly
        executor.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
